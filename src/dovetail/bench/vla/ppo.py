"""PPO of a small VLA: a rollout and its update, one after the other and at the same time.

Collecting a rollout (C) and learning from it (T) use one core each. In another process, collecting can shorten a round by at
most (C + T) / max(C, T). The simulation, the cameras and the VLA's forward and backward passes are real; its weights are
random, which costs the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from dovetail.bench.rows import Row, at_least
from dovetail.config.load import load
from dovetail.config.schema import RunConfig
from dovetail.core.specs import RobotSpec
from dovetail.learn.memory import keep_freed_memory
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.build import build_assembly
from dovetail.runtime.onpolicy.training import OnPolicy

__all__ = ["Rounds", "bench", "rows"]

RECIPE = "push-cube-ppo-vla"
SETTINGS = (  # equal updates, so that the bound is constant
    "algorithm.target_kl=null",
    "algorithm.adapt_lr=false",
    "algorithm.actor_after=0",
    "algorithm.num_epochs=4",  # C and T are then about equal, and the bound is near 2
    "algorithm.rollout_steps=16",
)
AIM = 90.0  # % of the bound
_NUM_STARTING = 2  # rounds in which worlds are built and the first rollout is awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Seconds of each round, and of what it waited for."""

    collect_s: Sequence[float]
    update_s: Sequence[float]
    staleness: float  # largest, in versions

    @property
    def round_s(self) -> float:
        return median(c + u for c, u in zip(self.collect_s, self.update_s, strict=True))


def bench(*, quick: bool) -> Iterator[Row]:
    os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa renders on one core, so that collecting uses one
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    sizes = ("algorithm.num_envs=8", "algorithm.rollout_steps=8") if quick else ()
    num_rounds = 3 if quick else 6
    found = {
        is_async: measure(
            load([RECIPE], [*SETTINGS, *sizes, f"algorithm.asynchronous={str(is_async).lower()}"]),
            num_rounds=num_rounds,
        )
        for is_async in (False, True)
    }
    yield from rows(found[False], found[True])


def rows(synchronous: Rounds, asynchronous: Rounds) -> Iterator[Row]:
    collect_s, update_s = median(synchronous.collect_s), median(synchronous.update_s)
    bound = (collect_s + update_s) / max(collect_s, update_s)
    gain = synchronous.round_s / asynchronous.round_s
    yield Row(name="C, collecting a rollout", value=collect_s, unit="s", samples=tuple(synchronous.collect_s))
    yield Row(name="T, learning from it", value=update_s, unit="s", samples=tuple(synchronous.update_s))
    yield Row(name="a round, synchronous", value=synchronous.round_s, unit="s")
    yield Row(name="a round, asynchronous", value=asynchronous.round_s, unit="s")
    yield Row(name="largest staleness, asynchronous", value=asynchronous.staleness, unit="versions")
    yield Row(name="asynchronous, times faster", value=gain, unit="x", baseline="synchronous", ratio=gain)
    yield Row(name="bound (C + T) / max(C, T)", value=bound, unit="x")
    yield at_least("share of the bound", 100.0 * gain / bound, "%", AIM)


def measure(config: RunConfig, *, num_rounds: int) -> Rounds:
    """The last `num_rounds` rounds of a new training."""
    assembly = build_assembly(config)
    try:
        policy = assembly.trainable()
        _fit_statistics(policy, assembly.robot.spec)
        algorithm: OnPolicyAlgorithm = config.algorithm.build(policy=policy, seed=0)
        training = OnPolicy(config, algorithm=algorithm, control_hz=assembly.robot.spec.control_hz)
        try:
            results = [training.step() for _ in range(_NUM_STARTING + num_rounds)][_NUM_STARTING:]
        finally:
            training.close()
    finally:
        assembly.close()
    metrics = [result.metrics for result in results if result is not None]
    return Rounds(
        collect_s=[one["collect_s"] for one in metrics],
        update_s=[one["update_s"] for one in metrics],
        staleness=max(one["staleness_max"] for one in metrics),
    )


def _fit_statistics(policy: TrainablePolicy, robot: RobotSpec) -> None:
    """Instead of demonstrations: the range of the actions, and standardized states."""
    rng, (low, high) = np.random.default_rng(0), robot.action.bounds
    columns = {"action": rng.uniform(low, high, (256, len(low))).astype(np.float32)}
    for key, spec in policy.spec.observation.items():
        if not spec.is_picture:
            columns[key] = rng.normal(size=(256, *spec.shape)).astype(np.float32)
    policy.fit_normalizer(columns)
