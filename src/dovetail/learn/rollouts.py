"""Rollouts: what N worlds did in T ticks, and the advantages that come of it. numpy only.

    buffer = RolloutBuffer(num_envs=4, num_steps=256, observation=policy.spec.observation, num_drawn=6)
    for t in range(256):
        buffer.see(t, observations)              # [N, ...] of each key
        buffer.did(t, drawn=..., log_prob=..., version=..., reward=..., terminated=...)
        buffer.cut(n, t, observation)            # truncated: its true last observation, before any reset
    buffer.see(256, observations)
    arrays = buffer.arrays()

`observation/<key>` is [N, T + 1, ...]: the last one is what the next rollout begins with. A step that was truncated is not
followed by `observation[t + 1]`, which is of the next episode already, but by its row of `final/<key>` [K, ...]; `final_at`
[K] says whose it is, as n * T + t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from dovetail.core.contracts import Algorithm
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array

__all__ = ["Moments", "OnPolicyAlgorithm", "RolloutSettings", "RolloutBuffer", "explained_variance", "gae"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """How an algorithm wants its rollouts: so many worlds, so many ticks of each, and whether it learns meanwhile."""

    num_envs: int
    num_steps: int
    asynchronous: bool = False
    max_staleness: int = 0  # versions that the weights may be behind, of those that a rollout is learned from with
    record: bool = False  # whether its episodes are wanted in the run's log


@runtime_checkable
class OnPolicyAlgorithm(Algorithm, Protocol):
    """Learns from rollouts of its own policy in place of a replay: `update` is given the arrays of a RolloutBuffer, as
    tensors, and with it makes one new version of the weights."""

    @property
    def rollout_settings(self) -> RolloutSettings: ...


class RolloutBuffer:
    """Arrays [N, T] that are filled tick by tick, and handed out as copies."""

    def __init__(
        self, *, num_envs: int, num_steps: int, observation: Mapping[str, ArraySpec], num_drawn: int
    ) -> None:
        self.num_steps = num_steps
        n, t = num_envs, num_steps
        self._steps: dict[str, Array] = {
            "action": np.zeros((n, t, num_drawn), np.float32),
            "log_prob": np.zeros((n, t), np.float32),
            "version": np.zeros((n, t), np.int64),
            "reward": np.zeros((n, t), np.float32),
            "terminated": np.zeros((n, t), np.bool_),
        }
        self._seen = {key: np.zeros((n, t + 1, *spec.shape), spec.dtype) for key, spec in observation.items()}
        self._finals: dict[int, dict[str, Array]] = {}
        self._specs = dict(observation)

    def see(self, t: int, observations: Mapping[str, Array]) -> None:
        for key, seen in self._seen.items():
            seen[:, t] = observations[key]

    def did(
        self, t: int, *, drawn: Array, log_prob: Array, version: int, reward: Array, terminated: Array
    ) -> None:
        steps = self._steps
        steps["action"][:, t], steps["log_prob"][:, t], steps["version"][:, t] = drawn, log_prob, version
        steps["reward"][:, t], steps["terminated"][:, t] = reward, terminated

    def cut(self, n: int, t: int, observation: Mapping[str, Array]) -> None:
        """World n was stopped after tick t, though it could have gone on from here."""
        self._finals[n * self.num_steps + t] = {key: observation[key].copy() for key in self._seen}

    def arrays(self) -> dict[str, Array]:
        """All of it; the buffer is empty then."""
        finals = [self._finals[at] for at in sorted(self._finals)]
        arrays = {
            **{name: values.copy() for name, values in self._steps.items()},
            **{f"observation/{key}": seen.copy() for key, seen in self._seen.items()},
            "final_at": np.array(sorted(self._finals), np.int64),
        }
        for key, spec in self._specs.items():
            rows = np.array([final[key] for final in finals], spec.dtype)
            arrays[f"final/{key}"] = rows.reshape(len(finals), *spec.shape)
        self._finals.clear()
        return arrays


def gae(
    *,
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    lam: float,
) -> Array:
    """Generalised advantages (Schulman et al., 2016), [N, T]; with `values` added, they are the value's targets.

    `next_values` are of what truly followed each step. After a true end there is nothing; a truncated step is worth what
    its last observation is, and no later step's advantage flows back over either.
    """
    deltas = rewards + gamma * next_values * ~terminated - values
    carry = gamma * lam * ~(terminated | truncated)
    advantages = np.zeros_like(deltas)
    following = np.zeros(len(deltas), deltas.dtype)
    for t in reversed(range(deltas.shape[1])):
        following = deltas[:, t] + carry[:, t] * following
        advantages[:, t] = following
    return advantages


def explained_variance(predicted: Array, returns: Array) -> float:
    """1: the value knows the returns; 0: no better than their mean; below: worse. 0 where all returns are alike."""
    variance = float(np.var(returns))
    return 0.0 if variance < 1e-12 else 1.0 - float(np.var(returns - predicted)) / variance


class Moments:
    """Mean and spread of all rows so far, as if they had been kept (Chan et al., 1983)."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size, np.float64)
        self._squares = np.zeros(size, np.float64)  # of the deviations, summed

    @property
    def std(self) -> Array:
        return np.asarray(np.sqrt(self._squares / max(self.count, 1)))

    def add(self, rows: Array) -> None:
        rows = np.asarray(rows, np.float64)
        count = self.count + len(rows)
        mean = rows.mean(0)
        apart = mean - self.mean
        self._squares += ((rows - mean) ** 2).sum(0) + apart**2 * self.count * len(rows) / count
        self.mean += apart * len(rows) / count
        self.count = count

    def to_array(self) -> Array:
        return np.stack((np.full_like(self.mean, self.count), self.mean, self._squares))

    def load_array(self, array: Array) -> None:
        counts, mean, squares = np.array(array, np.float64).reshape(3, len(self.mean))
        self.count, self.mean, self._squares = int(counts[0]), mean.copy(), squares.copy()
