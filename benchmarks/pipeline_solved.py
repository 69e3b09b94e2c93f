"""Wall-clock time to 95 % on `peg_insertion`, Ray against inline, at the recipe's update-to-data ratio.

In simulated time only the learner's and the simulator's speed would count. So the arm runs in real time at 10 Hz, and each
update sleeps so long, as one waits for a GPU, that the two updates of a step take most of a tick. Both runtimes collect the
same number of steps; the final policy is then evaluated in simulated time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from benchmarks._pipeline_runs import AFTER, LEARNING, StatusRecorder, run_recipe
from dovetail.bench.rows import Row, at_least
from dovetail.config.load import load
from dovetail.core.stats import Rate
from dovetail.core.types import Outcome
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles.robot import evaluation_episodes
from dovetail.weights.store import DiskWeightStore

__all__ = ["bench"]

RECIPE = "peg-insertion"
SEEDS = (0, 1, 2)
STEPS = 1500  # 150 s of robot time
_ENOUGH, _AIM = 95.0, 1.6
_UPDATE_S = 0.04  # added to each update; there are two per step
_TINY = ("run.demos=3", "learner.bc_updates=100", "learner.warmup_updates=20")


class Learned(NamedTuple):
    """The result of a run."""

    online_s: float  # the online phase, including updates still due at its end
    all_s: float
    rate: Rate


def bench(*, quick: bool) -> Iterator[Row]:
    gains: dict[str, list[float]] = {"online": [], "all": []}
    for seed in SEEDS[:1] if quick else SEEDS:
        found = {}
        for runtime in ("inline", "ray"):
            found[runtime] = _learned(runtime, seed, quick=quick)
            yield from _rows(f"seed {seed}, {runtime}", found[runtime], quick=quick)
        inline, ray = found["inline"], found["ray"]
        gains["online"].append(inline.online_s / ray.online_s)
        gains["all"].append(inline.all_s / ray.all_s)
    label = "ray, times faster to 95 %"
    for what, name in (("online", "online phase"), ("all", "demonstrations, cloning and warm-up included")):
        gain = median(gains[what])
        if what == "online" and not quick:
            yield at_least(f"{label}, {name}", gain, "x", _AIM, baseline="inline", ratio=gain)
        else:
            yield Row(name=f"{label}, {name}", value=gain, unit="x", baseline="inline", ratio=gain)


def _rows(label: str, learned: Learned, *, quick: bool) -> Iterator[Row]:
    rate = learned.rate
    name, value = f"{label}: success [{100 * rate.low:.0f}, {100 * rate.high:.0f}]", 100 * rate.rate
    yield Row(name=name, value=value, unit="%") if quick else at_least(name, value, "%", _ENOUGH)
    yield Row(name=f"{label}: online phase", value=learned.online_s, unit="s")
    yield Row(name=f"{label}: everything but evaluations", value=learned.all_s, unit="s")


def _learned(runtime: str, seed: int, *, quick: bool) -> Learned:
    recorder = StatusRecorder(until=AFTER[2:])
    settings = [*_settings(), f"runtime={runtime}", f"run.seed={seed}"]
    settings += [f"run.env_steps={100 if quick else STEPS}", *(_TINY if quick else ())]
    with run_recipe(RECIPE, settings, recorder) as folder:
        phases = recorder.phases()
        evaluating_s = sum(seconds for phase, seconds in phases.items() if phase.startswith("evaluating"))
        return Learned(
            online_s=sum(phases.get(phase, 0.0) for phase in (LEARNING, *AFTER[:2])),
            all_s=recorder.seconds - evaluating_s,
            rate=_evaluate(folder, num_episodes=5 if quick else 100),
        )


def _settings() -> list[str]:
    """The recipe's settings with slow updates, in real time."""
    algorithm = load([RECIPE]).algorithm.to_plain()
    return [
        "algorithm.type=benchmarks._slowed_plugins:SlowRLPD",
        *(f"algorithm.{name}={json.dumps(value)}" for name, value in algorithm.items() if name != "type"),
        f"algorithm.update_s={_UPDATE_S}",
        "robot.realtime=true",
        "run.untrained_episodes=0",
        "run.video_episodes=0",
        "run.eval_episodes=1",  # real time would take minutes: `_evaluate` uses simulated time
    ]


def _evaluate(folder: RunFolder, *, num_episodes: int) -> Rate:
    """Success rate of the final policy, in simulated time."""
    plain = folder.config.model_dump(mode="json")
    plain["robot"]["realtime"] = False
    assembly = build_assembly(type(folder.config).model_validate(plain))
    weights = DiskWeightStore(folder.weights)
    snapshot = weights.load(max(weights.versions()))
    try:
        episodes = list(
            evaluation_episodes(assembly, snapshot, num_episodes=num_episodes, config_hash=folder.config_hash)
        )
    finally:
        assembly.close()
    return Rate(successes=sum(episode.outcome is Outcome.SUCCESS for episode in episodes), episodes=num_episodes)
