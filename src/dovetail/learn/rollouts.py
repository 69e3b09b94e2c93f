"""Rollouts of N worlds over T steps, and their advantages. numpy only.

    buffer = RolloutBuffer(num_envs=4, num_steps=256, observation=policy.spec.observation, num_drawn=6)
    for t in range(256):
        buffer.add_observations(t, observations)          # [N, ...] of each key
        buffer.add_choice(t, drawn=..., log_prob=..., version=...)
        buffer.add_result(t, slice(0, 4), reward=..., num_executed=..., terminated=...)
        buffer.add_truncation(n, t, observation)          # the last observation before the reset
    buffer.add_observations(256, observations)
    arrays = buffer.take_arrays()

A step is one choice of the policy: an action, or a chunk of which `num_executed` [N, T] actions were executed. `reward` is
the sum of their rewards with their discounts.

`observation/<key>` is [N, T + 1, ...]; the next rollout begins with the last one. After a truncated step, `observation[t +
1]` belongs to the next episode. The episode's last observation is in a row of `final/<key>` [K, ...]; its `final_at` [K] is
n * T + t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from dovetail.core.contracts import Algorithm
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array

__all__ = ["Moments", "OnPolicyAlgorithm", "RolloutBuffer", "RolloutSettings", "explained_variance", "gae"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """The rollouts that an algorithm needs."""

    num_envs: int
    num_steps: int  # per world: actions, or chunks
    gamma: float = 1.0  # discount per action within a chunk
    num_processes: int = 1  # in which the worlds run
    asynchronous: bool = False  # collect the next rollout during an update
    max_staleness: int = 0  # versions by which the collecting weights may be older than the learner's
    record: bool = False  # write the episodes to the run's log


@runtime_checkable
class OnPolicyAlgorithm(Algorithm, Protocol):
    """Learns from rollouts of its current policy instead of a replay. `update` gets the arrays of a RolloutBuffer, as
    tensors, and makes one new version of the weights."""

    @property
    def rollout_settings(self) -> RolloutSettings: ...


class RolloutBuffer:
    """Arrays [N, T] that are filled step by step and returned as copies."""

    def __init__(
        self,
        *,
        num_envs: int,
        num_steps: int,
        observation: Mapping[str, ArraySpec],
        num_drawn: int,
        horizon: int = 1,
    ) -> None:
        """With a `horizon` over 1, `log_prob` is [N, T, H]: that of each action of a chunk."""
        self.num_steps = num_steps
        n, t = num_envs, num_steps
        self._steps: dict[str, Array] = {
            "action": np.zeros((n, t, num_drawn), np.float32),
            "log_prob": np.zeros((n, t, horizon) if horizon > 1 else (n, t), np.float32),
            "version": np.zeros((n, t), np.int64),
            "reward": np.zeros((n, t), np.float32),
            "num_executed": np.ones((n, t), np.int64),
            "terminated": np.zeros((n, t), np.bool_),
        }
        self._observations = {
            key: np.zeros((n, t + 1, *spec.shape), spec.dtype) for key, spec in observation.items()
        }
        self._finals: dict[int, dict[str, Array]] = {}

    def add_observations(self, t: int, observations: Mapping[str, Array]) -> None:
        for key, values in self._observations.items():
            added, width = observations[key], values.shape[-1]
            if added.shape[-1] > width:  # prompts have several widths
                padding = [(0, 0)] * (values.ndim - 1) + [(0, added.shape[-1] - width)]
                values = self._observations[key] = np.pad(values, padding)
            values[:, t, ..., added.shape[-1] :] = 0
            values[:, t, ..., : added.shape[-1]] = added

    def add_choice(self, t: int, *, drawn: Array, log_prob: Array, version: int) -> None:
        """What the policy drew for each world."""
        steps = self._steps
        steps["action"][:, t], steps["log_prob"][:, t], steps["version"][:, t] = drawn, log_prob, version

    def add_result(self, t: int, worlds: slice, *, reward: Array, num_executed: Array, terminated: Array) -> None:
        """What followed in these worlds."""
        steps = self._steps
        steps["reward"][worlds, t], steps["num_executed"][worlds, t] = reward, num_executed
        steps["terminated"][worlds, t] = terminated

    def add_truncation(self, n: int, t: int, observation: Mapping[str, Array]) -> None:
        """World n was truncated after step t, with this last observation."""
        self._finals[n * self.num_steps + t] = {key: observation[key].copy() for key in self._observations}

    def take_arrays(self) -> dict[str, Array]:
        """Return copies of all arrays, and clear the truncations."""
        finals = [self._finals[at] for at in sorted(self._finals)]
        arrays = {
            **{name: values.copy() for name, values in self._steps.items()},
            **{f"observation/{key}": values.copy() for key, values in self._observations.items()},
            "final_at": np.array(sorted(self._finals), np.int64),
        }
        for key, values in self._observations.items():
            rows = np.zeros((len(finals), *values.shape[2:]), values.dtype)
            for row, final in zip(rows, finals, strict=True):
                row[..., : final[key].shape[-1]] = final[key]
            arrays[f"final/{key}"] = rows
        self._finals.clear()
        return arrays


def gae(
    *,
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    gamma: float | Array,
    lam: float,
) -> Array:
    """Generalized advantages (Schulman et al., 2016), [N, T]. Their sum with `values` is the target of the value network.

    `gamma` is the discount of a step; of chunks [N, T], because each has a duration of its own.

    `next_values` belong to the observation that followed each step in its episode. They do not count after a terminated
    step. No advantage flows back across the end of an episode.
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
    """1: the values equal the returns; 0: no better than their mean; negative: worse. 0 if all returns are equal."""
    variance = float(np.var(returns))
    return 0.0 if variance < 1e-12 else 1.0 - float(np.var(returns - predicted)) / variance


class Moments:
    """Running mean and standard deviation of rows (Chan et al., 1983)."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size, np.float64)
        self._squares = np.zeros(size, np.float64)  # sum of squared deviations

    @property
    def std(self) -> Array:
        return np.asarray(np.sqrt(self._squares / max(self.count, 1)))

    def add(self, rows: Array) -> None:
        rows = np.asarray(rows, np.float64)
        count = self.count + len(rows)
        mean = rows.mean(0)
        delta = mean - self.mean
        self._squares += ((rows - mean) ** 2).sum(0) + delta**2 * self.count * len(rows) / count
        self.mean += delta * len(rows) / count
        self.count = count

    def to_array(self) -> Array:
        return np.stack((np.full_like(self.mean, self.count), self.mean, self._squares))

    def load_array(self, array: Array) -> None:
        counts, mean, squares = np.array(array, np.float64).reshape(3, len(self.mean))
        self.count, self.mean, self._squares = int(counts[0]), mean.copy(), squares.copy()
