"""Runs of a recipe, inline and on Ray, observed: seconds per episode and per update, and where the time goes."""

from __future__ import annotations

import bisect
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from dovetail.config.load import load
from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import Interrupted
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.memory import keep_freed_memory
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus
from dovetail.runtime.inline import InlineRun

__all__ = [
    "AFTER",
    "CASES",
    "LEARNING",
    "Case",
    "Pace",
    "Sample",
    "StatusRecorder",
    "measure_pace",
    "pace_of",
    "run_recipe",
]

LEARNING = "learning online"
AFTER = ("waiting for the last labels", "the last updates", "evaluating: after")
_SKIP = 2  # first episodes, which include start-up costs


class Case(NamedTuple):
    """A policy and an algorithm in real time at 10 Hz with two cameras. All episodes have the same length."""

    name: str
    recipe: str
    num_steps: int  # per episode
    updates: int  # per episode, so that learning (T) takes nearly as long as collecting (C)
    settings: tuple[str, ...]


_COMMON = (
    "robot.realtime=true",
    "robot.images=[wrist, front]",
    "labeling.hide_success=true",  # episodes end only by the time limit
    "run.demos=0",
    "run.untrained_episodes=0",
    "run.video_episodes=0",
    "run.eval_episodes=1",
)
CASES = (
    Case(
        "CNN + SAC",
        "peg-insertion-sac",
        60,
        24,
        (
            *_COMMON,
            "task.time_limit_s=6.0",
            "operator.type=none",
            "policy.inputs=[ee_pose, ee_twist, ee_error, wrist, front]",
            "policy.encoder.features=64",
            "algorithm.type=benchmarks._slowed_plugins:SlowSAC",
            "algorithm.batch_size=2",  # little to compute; `update_s` stands for the time a GPU takes for a large batch
            "algorithm.update_s=0.17",
        ),
    ),
    Case(
        "slow chunk policy + HG-DAgger",
        "pick-place-hg-dagger",
        110,
        5,
        (
            *_COMMON,
            "task.time_limit_s=11.0",
            "operator.type=benchmarks._slowed_plugins:PeriodicCorrector",
            "actor.execution_horizon=11",
            "actor.replan_after_takeover_s=0.0",
            "policy.type=benchmarks._slowed_plugins:SlowFlow",
            "policy.inputs=[ee_pose, ee_twist, ee_error, gripper, wrist, front]",
            "policy.horizon=11",
            "policy.act_s=0.213",
            "algorithm.type=benchmarks._slowed_plugins:SlowHGDAgger",
            "algorithm.batch_size=4",
            "algorithm.update_s=1.9",
        ),
    ),
)


class Sample(NamedTuple):
    """The status of a run at one moment."""

    unix_s: float
    phase: str
    episodes: int
    updates: int
    spent: Mapping[str, float] = MappingProxyType({})  # seconds so far, by activity


@dataclass(slots=True)
class StatusRecorder:
    """A status listener that keeps every status, and asks the run to stop at one of the phases `until`."""

    until: Sequence[str] = ()
    spent: Callable[[], Mapping[str, float]] = dict
    samples: list[Sample] = field(default_factory=list)
    ended: bool = False
    began_unix_s: float = field(default_factory=time.time)

    @property
    def seconds(self) -> float:
        """From the start to the last sample."""
        return self.samples[-1].unix_s - self.began_unix_s if self.samples else 0.0

    def __call__(self, status: RunStatus) -> None:
        self.ended |= any(status.phase.startswith(phase) for phase in self.until)
        self.samples.append(Sample(time.time(), status.phase, status.episodes, status.updates, dict(self.spent())))

    def phases(self) -> dict[str, float]:
        """Seconds of each phase."""
        spent: dict[str, float] = {}
        for sample, following in pairwise(self.samples):
            spent[sample.phase] = spent.get(sample.phase, 0.0) + following.unix_s - sample.unix_s
        return spent

    def updates_at(self, unix_s: float) -> float:
        """The number of updates at a time, interpolated between two samples."""
        times = [sample.unix_s for sample in self.samples]
        index = bisect.bisect_left(times, unix_s)
        if index == 0 or index == len(times):
            return float(self.samples[min(index, len(times) - 1)].updates)
        before, after = self.samples[index - 1], self.samples[index]
        share = (unix_s - before.unix_s) / max(1e-9, after.unix_s - before.unix_s)
        return before.updates + share * (after.updates - before.updates)

    def spent_between(self, first_unix_s: float, last_unix_s: float) -> dict[str, float]:
        """Seconds by activity, from the last sample before one time to the last before the other."""
        times = [sample.unix_s for sample in self.samples]
        before, after = (
            self.samples[max(0, bisect.bisect_right(times, moment) - 1)].spent
            for moment in (first_unix_s, last_unix_s)
        )
        return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of a run, from the start of one episode to the start of a later one."""

    episode_s: float  # from one episode to the next
    update_s: float
    updates_per_step: float
    spent: Mapping[str, float]  # seconds per episode by activity, summed over processes

    @property
    def collect_s(self) -> float:
        return self.spent.get("acting", 0.0)

    @property
    def train_s(self) -> float:
        return self.spent.get("sampling", 0.0) + self.spent.get("updating", 0.0)

    @property
    def bound(self) -> float:
        return (self.collect_s + self.train_s) / max(self.collect_s, self.train_s)

    def seconds_at_ratio(self, updates_per_step: float, num_steps: int) -> float:
        """Seconds per episode with its updates. Collecting and learning run in parallel, so the slower one counts."""
        return max(self.episode_s, self.update_s * updates_per_step * num_steps)


def measure_pace(
    case: Case,
    runtime: str,
    *,
    num_episodes: int,
    updates: float,
    settings: Sequence[str] = (),
    free: bool = False,
) -> Pace:
    """Run `num_episodes` with `updates` per episode; `free`: without an update limit."""
    utd = 1e6 if free else updates / case.num_steps
    overrides = [
        *case.settings,
        f"runtime={runtime}",
        f"learner.utd={utd}",
        f"learner.publish_every={max(1, round(updates))}",
        f"run.env_steps={num_episodes * case.num_steps}",
        *settings,
    ]
    recorder = StatusRecorder(until=AFTER if free else AFTER[2:])
    with run_recipe(case.recipe, overrides, recorder) as folder:
        return pace_of(folder, recorder, num_steps=case.num_steps)


@contextmanager
def run_recipe(recipe: str, overrides: Sequence[str], recorder: StatusRecorder) -> Iterator[RunFolder]:
    """Run a recipe until the recorder stops it; its folder exists inside the `with` block."""
    scratch = Path(tempfile.mkdtemp(prefix="dovetail-bench-"))
    try:
        folder = RunFolder.create(scratch / "run", load([recipe], list(overrides)))
        _run(folder, recorder)
        yield folder
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(folder: RunFolder, recorder: StatusRecorder) -> None:
    torch.set_flush_denormal(True)
    keep_freed_memory()
    folder.lock()
    run: Callable[[], None]
    if folder.config.runtime == "ray":
        from dovetail.runtime.ray.driver.run import RayRun  # Ray takes a second to import

        run = RayRun(folder, on_status=recorder, should_stop=lambda: recorder.ended).run
    else:
        inline = InlineRun(folder, on_status=recorder, should_stop=lambda: recorder.ended)
        recorder.spent, run = inline.runtime.seconds, inline.run
    try:
        with contextlib.suppress(Interrupted):
            run()
    finally:
        folder.unlock()


def pace_of(folder: RunFolder, recorder: StatusRecorder, *, num_steps: int) -> Pace:
    starts = _starts(folder)
    if len(starts) < 2:
        raise ValueError(f"{len(starts)} episodes are too few to measure a pace, at least 2 are needed")
    num_episodes = max(1, len(starts) - 1 - _SKIP)
    first, last = starts[-1 - num_episodes], starts[-1]
    num_updates = recorder.updates_at(last) - recorder.updates_at(first)
    spent = {name: seconds / num_episodes for name, seconds in recorder.spent_between(first, last).items()}
    if not spent:  # a run of several processes reports only the sum at its end
        whole = (folder.read_json("progress.json") or {}).get("phases") or {}
        spent = {name: seconds / len(starts) for name, seconds in whole.items()}
    return Pace(
        episode_s=(last - first) / num_episodes,
        update_s=(last - first) / max(num_updates, 1e-9),
        updates_per_step=num_updates / (num_episodes * num_steps),
        spent=spent,
    )


def _starts(folder: RunFolder) -> list[float]:
    """Start times of the online episodes, as the arm recorded them."""
    log = EpisodeLog(folder.episodes)
    infos = [log.manifest(episode_id) for episode_id in log.ids()]
    return sorted(info.started_unix_ns / NS_PER_S for info in infos if info.purpose is Purpose.ONLINE)
