"""Collect rollouts: one policy chooses the actions of all worlds, which execute them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.core.abilities import CachesFeatures
from dovetail.core.prompts import PROMPT_BYTES
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.streams import stream
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.learn.rollouts import RolloutBuffer, RolloutSettings
from dovetail.policies.trainable import ValuedPolicy
from dovetail.runtime.onpolicy.world_processes import WorldSource
from dovetail.runtime.onpolicy.worlds import PROMPT, stack_rows

__all__ = ["Collector"]


class Collector:
    """`collect()` returns the next rollout. Only `load` changes the policy.

    In addition to the arrays of a RolloutBuffer, a rollout has one value per episode that ended in it (`episode/success`,
    `episode/length`, `episode/at_limit`, `episode/reward/<component>`, `episode/metric/<name>`) and the state of the worlds
    for a resume (`Worlds.state`).
    """

    def __init__(
        self,
        sources: Sequence[WorldSource],
        *,
        policy: ValuedPolicy,
        rollouts: RolloutSettings,
        execution_horizon: int,
        seed: int,
        num_rollouts: int = 0,
    ) -> None:
        """`sources` have the worlds in the order of their numbers. Of each chunk, `execution_horizon` actions are
        executed."""
        self._sources, self._policy, self._seed = list(sources), policy, seed
        self._gamma, self._execution_horizon = rollouts.gamma, execution_horizon
        self.num_rollouts = num_rollouts  # so far
        spec = policy.spec
        self._encoder = policy if isinstance(policy, CachesFeatures) and policy.feature_specs else None
        self._buffer = RolloutBuffer(
            num_envs=rollouts.num_envs,
            num_steps=rollouts.num_steps,
            observation=policy_inputs(spec, {} if self._encoder is None else self._encoder.feature_specs),
            num_drawn=policy.num_drawn,
            horizon=spec.horizon,
        )
        self._rows: list[slice] = []  # of each source
        self._inputs: dict[str, Array] = {}  # of all worlds, as the policy reads them next

    def load(self, weights: Mapping[str, Mapping[str, Array]], *, version: int) -> None:
        """Act with these weights from the next tick on."""
        self._policy.load(WeightSnapshot(version=version, components=weights, hashes={}))

    def collect(self, *, before_tick: Callable[[], None] = lambda: None) -> dict[str, Array]:
        """`before_tick` is called before each step, for example to load new weights."""
        buffer, rng = self._buffer, stream(self._seed, "practice/policy", self.num_rollouts)
        if not self._inputs:
            self._start()
        ended: dict[str, list[Array]] = defaultdict(list)
        for t in range(buffer.num_steps):
            before_tick()
            inputs = self._inputs
            chunk = self._policy.act(inputs, ActContext(seed=int(rng.integers(2**63))))
            results = self._step(chunk)
            self._take(t, results)
            for _, result in results:
                for name, values in result.items():
                    if name.startswith("ended/"):
                        ended[name.removeprefix("ended/")].append(values)
            buffer.add_observations(t, inputs)
            buffer.add_choice(
                t, drawn=chunk.extras["drawn"], log_prob=chunk.extras["log_prob"], version=chunk.policy_version
            )
        buffer.add_observations(buffer.num_steps, self._inputs)
        self.num_rollouts += 1
        episodes = {f"episode/{name}": np.concatenate(values) for name, values in ended.items()}
        return {**buffer.take_arrays(), **episodes, **self._state()}

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def _start(self) -> None:
        replies = self._ask({"do": "start"}, [{} for _ in self._sources])
        counts = [len(next(iter(reply.values()))) for reply in replies]
        ends = np.cumsum(counts).tolist()
        self._rows = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self._inputs = self._encoded(_joined(replies))

    def _encoded(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The inputs with features instead of images, if the policy's encoder is frozen: neither acting nor any epoch of an
        update encodes an image again."""
        if self._encoder is None:
            return inputs
        features = {}
        for key in self._encoder.feature_specs.keys() & inputs.keys():
            frames, shape = inputs[key], self._policy.spec.observation[key].shape
            encoded = self._encoder.encode(key, frames.reshape(-1, *shape))
            features[key] = encoded.reshape(*frames.shape[: frames.ndim - len(shape)], *encoded.shape[1:])
        return {**inputs, **features}

    def _step(self, chunk: ActionChunk) -> list[tuple[slice, dict[str, Array]]]:
        """Let all worlds execute their part of these chunks."""
        executed = chunk.actions[:, : self._execution_horizon]
        arrays = {"actions": executed, **{f"extras/{name}": v for name, v in self._recorded(chunk).items()}}
        message = {"do": "step", "gamma": self._gamma, "version": chunk.policy_version}
        parts = [{name: values[rows] for name, values in arrays.items()} for rows in self._rows]
        replies = self._ask(message, parts)
        self._inputs = self._encoded(_joined(replies))
        return list(zip(self._rows, replies, strict=True))

    def _take(self, t: int, results: Sequence[tuple[slice, Mapping[str, Array]]]) -> None:
        """Store what followed in all worlds."""
        for rows, result in results:
            self._buffer.add_result(
                t,
                rows,
                reward=result["reward"],
                num_executed=result["num_executed"],
                terminated=result["terminated"],
            )
        truncated = [(rows.start, result) for rows, result in results if len(result["final_at"])]
        if not truncated:
            return
        # encoded together, because the batch size changes the rounding: rollouts must not depend on the processes
        finals = self._encoded(_joined([result for _, result in truncated], "final"))
        worlds = [first + int(n) for first, result in truncated for n in result["final_at"]]
        for row, n in enumerate(worlds):
            self._buffer.add_truncation(n, t, {key: values[row] for key, values in finals.items()})

    def _recorded(self, chunk: ActionChunk) -> dict[str, Array]:
        """What episodes record of a choice: everything of a single action, only numbers of a chunk."""
        is_chunk = chunk.actions.shape[1] > 1
        return {name: values for name, values in chunk.extras.items() if not is_chunk or values.ndim == 1}

    def _state(self) -> dict[str, Array]:
        states = self._ask({"do": "state"}, [{} for _ in self._sources])
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def _ask(self, message: Mapping[str, Any], parts: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Send to all, then wait for all, so that they work at the same time."""
        for source, arrays in zip(self._sources, parts, strict=True):
            source.request(message, arrays)
        return [source.reply() for source in self._sources]


def policy_inputs(spec: PolicySpec, features: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """The arrays that a policy reads, per row: histories with their masks, and the prompt. `features` replace images."""
    inputs: dict[str, ArraySpec] = {}
    for key, array in {**spec.observation, **features}.items():
        if ticks := spec.history.get(key):
            inputs[key] = ArraySpec(shape=(ticks, *array.shape), dtype=array.dtype)
            inputs[f"{key}/mask"] = ArraySpec(shape=(ticks,), dtype="bool")
        else:
            inputs[key] = array
    if spec.prompted:
        inputs[PROMPT] = ArraySpec(shape=(PROMPT_BYTES,), dtype="uint8")
    return inputs


def _joined(replies: Sequence[Mapping[str, Array]], kind: str = "observation") -> dict[str, Array]:
    """The inputs of all worlds, or with `final` the last ones of truncated episodes."""
    names = [name for name in replies[0] if name.startswith(f"{kind}/")]
    return {
        name.removeprefix(f"{kind}/"): stack_rows([row for reply in replies for row in reply[name]])
        for name in names
    }
