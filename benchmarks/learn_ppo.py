"""PPO on `push_cube`: time to 95 %, synchronous and asynchronous (collecting during the update).

The policy here is small; a large one would spend time on a GPU in inference and in each pass of an update. The benchmark's
policy therefore sleeps in both, so long that collecting a rollout (C) and learning from it (T) take about the same time.
Asynchronous execution can then gain at most (C + T) / max(C, T).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from benchmarks._cached_runs import CachedRuns
from dovetail.bench.rows import Row, at_least
from dovetail.config.load import load
from dovetail.core.disk import write_atomic
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.rollout_history import read_rollouts
from dovetail.runtime.onpolicy.training import OnPolicy

__all__ = ["bench"]

RECIPE = "push-cube-ppo"
POLICY = "policy.type=benchmarks._slowed_plugins:SlowActorCritic"
NUM_ENVS = (16, 4)
SEEDS = (0, 1, 2)
_ACT_S = 0.03  # per inference, for any number of environments
_SOLVED, _WINDOW = 0.95, 100
_PACED = (  # equal updates, so that the bound is constant
    "algorithm.actor_after=0",
    "algorithm.target_kl=null",
    "algorithm.adapt_lr=false",
    "run.demos=0",
    "run.eval_episodes=1",
    "run.stop_when_solved=null",
)
_CALIBRATION_ROLLOUTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of one run, from its events."""

    collect_s: float  # waiting for a rollout
    update_s: float
    rollout_s: float  # from one rollout to the next
    solved_s: float | None  # until 95 of the last 100 training episodes succeeded
    solved_steps: int | None


def bench(*, quick: bool) -> Iterator[Row]:
    torch.set_flush_denormal(True)
    runs = CachedRuns()
    for num_envs in NUM_ENVS:
        sleeps = _sleep_seconds(runs, num_envs)
        yield Row(name=f"{num_envs} environments: added to an inference", value=1e3 * sleeps["act_s"], unit="ms")
        yield Row(
            name=f"{num_envs} environments: added to a pass of an update", value=1e3 * sleeps["learn_s"], unit="ms"
        )
        yield from _paces(runs, num_envs, sleeps, num_rollouts=8 if quick else 24)
        if not quick:
            yield from _to_solved(runs, num_envs, sleeps)
    if not quick:
        yield from _as_shipped(runs)


def _paces(runs: CachedRuns, num_envs: int, sleeps: dict[str, float], *, num_rollouts: int) -> Iterator[Row]:
    """Seconds per rollout, synchronous and asynchronous, against the bound."""
    found = {}
    for mode in ("sync", "async"):
        settings = [*_settings(num_envs, mode, sleeps), *_PACED]
        settings += ["run.seed=0", f"run.env_steps={num_rollouts * _rollout_size(num_envs)}"]
        found[mode], _ = _run(runs, f"ppo-{num_envs}-{mode}-pace-{num_rollouts}", settings)
        yield Row(
            name=f"{num_envs} environments, {mode}: a rollout and its update",
            value=found[mode].rollout_s,
            unit="s",
        )
    collect_s, update_s = found["sync"].collect_s, found["sync"].update_s
    bound = (collect_s + update_s) / max(collect_s, update_s)
    yield Row(name=f"{num_envs} environments: C, collecting a rollout", value=collect_s, unit="s")
    yield Row(name=f"{num_envs} environments: T, learning from it", value=update_s, unit="s")
    yield Row(name=f"{num_envs} environments: bound (C + T) / max(C, T)", value=bound, unit="x")
    gain = found["sync"].rollout_s / found["async"].rollout_s
    yield Row(
        name=f"{num_envs} environments: async, times faster per rollout",
        value=gain,
        unit="x",
        baseline="sync",
        ratio=gain,
    )
    yield at_least(f"{num_envs} environments: of the bound, per rollout", 100 * gain / bound, "%", 85)


def _to_solved(runs: CachedRuns, num_envs: int, sleeps: dict[str, float]) -> Iterator[Row]:
    """Until 95 of 100 training episodes succeed, with exploration noise; an evaluation then measures it without noise."""
    medians = {}
    for mode in ("sync", "async"):
        times = []
        for seed in SEEDS:
            settings = [*_settings(num_envs, mode, sleeps), f"run.seed={seed}", *_stop()]
            pace, report = _run(runs, f"ppo-{num_envs}-{mode}-{seed}", settings)
            yield from _solved_rows(f"{num_envs} environments, {mode}, seed {seed}", pace, report)
            times.append(float("nan") if pace.solved_s is None else pace.solved_s)
        medians[mode] = median(times)
        yield Row(name=f"{num_envs} environments, {mode}: to 95 %, median", value=medians[mode], unit="s")
    gain = medians["sync"] / medians["async"]
    name = f"{num_envs} environments: async, times faster to 95 %"
    yield Row(name=name, value=gain, unit="x", baseline="sync", ratio=gain)


def _as_shipped(runs: CachedRuns) -> Iterator[Row]:
    """The recipe as shipped, without sleeps."""
    for seed in SEEDS:
        pace, report = _run(runs, f"ppo-shipped-{seed}", [f"run.seed={seed}"])
        yield from _solved_rows(f"as shipped, seed {seed}", pace, report)
        rate = 100 * report["success_after"]["rate"]
        yield at_least(f"as shipped, seed {seed}: success over 100 episodes", rate, "%", 95)


def _solved_rows(label: str, pace: Pace, report: dict[str, Any]) -> Iterator[Row]:
    after = report["success_after"]
    took = float("nan") if pace.solved_s is None else pace.solved_s
    steps = float("nan") if pace.solved_steps is None else pace.solved_steps
    yield Row(name=f"{label}: training to 95 %", value=took, unit="s")
    yield Row(name=f"{label}: env steps to 95 %", value=steps, unit="")
    interval = f"[{100 * after['low']:.0f}, {100 * after['high']:.0f}]"
    yield Row(name=f"{label}: evaluated then {interval}", value=100 * after["rate"], unit="%")


# ---- runs


def _settings(num_envs: int, mode: str, sleeps: dict[str, float]) -> list[str]:
    return [
        POLICY,
        *(f"policy.{name}={value}" for name, value in _policy_settings().items()),
        *(f"policy.{name}={seconds}" for name, seconds in sleeps.items()),
        f"algorithm.num_envs={num_envs}",
        f"algorithm.rollout_steps={_rollout_size(num_envs) // num_envs}",
        f"algorithm.asynchronous={'true' if mode == 'async' else 'false'}",
        "run.untrained_episodes=0",
        "run.video_episodes=0",
    ]


def _policy_settings() -> dict[str, str]:
    """The recipe's policy settings: a section with another type starts from its defaults."""
    policy = load([RECIPE]).policy
    return {name: json.dumps(value) for name, value in policy.to_plain().items() if name != "type"}


def _rollout_size(num_envs: int) -> int:
    """Steps of a rollout over all environments, as in the recipe."""
    settings = load([RECIPE]).algorithm.to_plain()
    size = settings["num_envs"] * settings["rollout_steps"]
    return int(size - size % num_envs)


def _stop() -> list[str]:
    rule = {"window": _WINDOW, "success_rate": _SOLVED}
    return [f"run.stop_when_solved={json.dumps(rule)}"]


def _run(runs: CachedRuns, name: str, settings: Sequence[str]) -> tuple[Pace, dict[str, Any]]:
    report = runs.report(name, RECIPE, settings)
    return _pace(runs.folder / name), report


def _pace(run: Path) -> Pace:
    rollouts = read_rollouts(run)
    settled = rollouts[2:] or rollouts  # the first two include building the environments
    spans = [b["time"] - a["time"] for a, b in pairwise(rollouts[1:])]
    recent: list[bool] = []
    solved, training_s = None, 0.0
    for line in rollouts:
        if solved is None:
            training_s += line["collect_s"] + line["update_s"]
        recent = [*recent, *line["success"]][-_WINDOW:]
        if solved is None and len(recent) == _WINDOW and mean(recent) >= _SOLVED:
            solved = line
    return Pace(
        collect_s=median(line["collect_s"] for line in settled),
        update_s=median(line["update_s"] for line in settled),
        rollout_s=median(spans) if spans else float("nan"),
        solved_s=None if solved is None else training_s,
        solved_steps=None if solved is None else solved["env_steps"],
    )


def _sleep_seconds(runs: CachedRuns, num_envs: int) -> dict[str, float]:
    """Seconds to sleep in each inference and each pass. Measured once and kept: a resumed benchmark needs the same."""
    kept = runs.folder / f"ppo-{num_envs}-sleeps.json"
    if kept.exists():
        found: dict[str, float] = json.loads(kept.read_text("utf-8"))
        return found
    sleeps = _calibrate(num_envs)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(kept, json.dumps(sleeps).encode())
    return sleeps


def _calibrate(num_envs: int) -> dict[str, float]:
    sleeps = {"act_s": _ACT_S, "learn_s": 0.0}
    config = load([RECIPE], [*_settings(num_envs, "sync", sleeps), *_PACED, "run.seed=100"])
    assembly = build_assembly(config)
    try:
        policy = assembly.trainable()
        algorithm: OnPolicyAlgorithm = config.algorithm.build(policy=policy, seed=100)
        training = OnPolicy(config, algorithm=algorithm, control_hz=assembly.robot.spec.control_hz)
        rollouts = [training.step() for _ in range(_CALIBRATION_ROLLOUTS)][1:]
        training.close()
    finally:
        assembly.close()
    known = [rollout.metrics for rollout in rollouts if rollout is not None]
    collect_s, update_s = (median(one[name] for one in known) for name in ("collect_s", "update_s"))
    num_passes = 1 + mean(
        one["passes"] for one in known
    )  # one more pass computes the log-probabilities before the update
    return {"act_s": _ACT_S, "learn_s": round(max(0.0, (collect_s - update_s) / num_passes), 5)}
