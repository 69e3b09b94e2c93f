"""A recipe run inline and on Ray, watched: how long an episode and an update take, and what a run's time goes into."""

from __future__ import annotations

import bisect
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from dovetail.config.load import load
from dovetail.core.clock import NS_PER_S
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.memory import keep_freed_memory
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus
from dovetail.runtime.inline import InlineRun, Interrupted

__all__ = ["AFTER", "CASES", "LEARNING", "Case", "Look", "Pace", "Watch", "pace_of", "paced", "run_once", "run_to"]

LEARNING = "learning online"
AFTER = ("waiting for the last labels", "the last updates", "evaluating: after")
_SKIP = 2  # episodes until everything has been used once


class Case(NamedTuple):
    """A policy and an algorithm of the issue's, paced in real time at 10 Hz with two cameras; episodes of one length."""

    name: str
    recipe: str
    num_steps: int  # of an episode
    updates: int  # that an episode earns, so that T comes to most of C
    settings: tuple[str, ...]


_ALIKE = (
    "robot.realtime=true",
    "robot.images=[wrist, front]",
    "labeling.hide_success=true",  # episodes end by the clock alone
    "run.demos=0",
    "run.untrained_episodes=0",
    "run.showcase_episodes=0",
    "run.eval_episodes=1",
)
CASES = (
    Case(
        "CNN + SAC",
        "peg-insertion-sac",
        60,
        24,
        (
            *_ALIKE,
            "task.time_limit_s=6.0",
            "operator.type=none",
            "policy.inputs=[ee_pose, ee_twist, ee_error, wrist, front]",
            "policy.encoder.features=64",
            "algorithm.type=dovetail.bench._waiting:WaitingSAC",
            "algorithm.batch_size=2",  # little to compute; what a GPU would take for a large batch is waited for
            "algorithm.update_s=0.17",
        ),
    ),
    Case(
        "slow chunk policy + HG-DAgger",
        "pick-place-hg-dagger",
        110,
        5,
        (
            *_ALIKE,
            "task.time_limit_s=11.0",
            "operator.type=dovetail.bench._waiting:Corrector",
            "actor.execution_horizon=11",
            "actor.settle_s=0.0",
            "policy.type=dovetail.bench._waiting:WaitingFlow",
            "policy.inputs=[ee_pose, ee_twist, ee_error, gripper, wrist, front]",
            "policy.horizon=11",
            "policy.act_s=0.213",
            "algorithm.type=dovetail.bench._waiting:WaitingHGDAgger",
            "algorithm.batch_size=4",
            "algorithm.update_s=1.9",
        ),
    ),
)


class Look(NamedTuple):
    """At a run, at one moment."""

    unix_s: float
    phase: str
    episodes: int
    updates: int
    spent: Mapping[str, float] = MappingProxyType({})  # seconds so far, by what they went into


@dataclass(slots=True)
class Watch:
    """Keeps what there was to see, and asks the run to end at a phase, if there is one of these."""

    until: Sequence[str] = ()
    spent: Callable[[], Mapping[str, float]] = dict
    looks: list[Look] = field(default_factory=list)
    ended: bool = False
    began_unix_s: float = field(default_factory=time.time)

    @property
    def seconds(self) -> float:
        """From its making to the last look."""
        return self.looks[-1].unix_s - self.began_unix_s if self.looks else 0.0

    def __call__(self, status: RunStatus) -> None:
        self.ended |= any(status.phase.startswith(phase) for phase in self.until)
        self.looks.append(Look(time.time(), status.phase, status.episodes, status.updates, dict(self.spent())))

    def phases(self) -> dict[str, float]:
        """Seconds of each, from its first look to the next phase's."""
        spent: dict[str, float] = {}
        for look, following in zip(self.looks, self.looks[1:], strict=False):
            spent[look.phase] = spent.get(look.phase, 0.0) + following.unix_s - look.unix_s
        return spent

    def updates_at(self, unix_s: float) -> float:
        """In between two looks, as many as lie between."""
        times = [look.unix_s for look in self.looks]
        place = bisect.bisect_left(times, unix_s)
        if place == 0 or place == len(times):
            return float(self.looks[min(place, len(times) - 1)].updates)
        before, after = self.looks[place - 1], self.looks[place]
        share = (unix_s - before.unix_s) / max(1e-9, after.unix_s - before.unix_s)
        return before.updates + share * (after.updates - before.updates)

    def spent_between(self, first_unix_s: float, last_unix_s: float) -> dict[str, float]:
        """As the last looks before these moments knew it."""
        times = [look.unix_s for look in self.looks]
        before, after = (
            self.looks[max(0, bisect.bisect_right(times, moment) - 1)].spent
            for moment in (first_unix_s, last_unix_s)
        )
        return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Of a run, from one episode's beginning to a later one's."""

    episode_s: float  # to collect one
    update_s: float
    updates_per_step: float
    spent: Mapping[str, float]  # seconds per episode, by what they went into, of everybody together

    @property
    def collect_s(self) -> float:
        return self.spent.get("acting", 0.0)

    @property
    def train_s(self) -> float:
        return self.spent.get("sampling", 0.0) + self.spent.get("updating", 0.0)

    @property
    def bound(self) -> float:
        return (self.collect_s + self.train_s) / max(self.collect_s, self.train_s)

    def keeping_up_s(self, updates_per_step: float, num_steps: int) -> float:
        """Seconds per episode and the updates that it earns: of two that run at once, the slower counts."""
        return max(self.episode_s, self.update_s * updates_per_step * num_steps)


def paced(
    case: Case,
    runtime: str,
    *,
    num_episodes: int,
    updates: float,
    settings: Sequence[str] = (),
    free: bool = False,
) -> Pace:
    """So many episodes, each of which earns so many updates; `free`: as many as the learner manages."""
    utd = 1e6 if free else updates / case.num_steps
    overrides = [
        *case.settings,
        f"runtime={runtime}",
        f"learner.utd={utd}",
        f"learner.publish_every={max(1, round(updates))}",
        f"run.env_steps={num_episodes * case.num_steps}",
        *settings,
    ]
    watch = Watch(until=AFTER if free else AFTER[2:])
    with run_to(case.recipe, overrides, watch) as folder:
        return pace_of(folder, watch, num_steps=case.num_steps)


@contextmanager
def run_to(recipe: str, overrides: Sequence[str], watch: Watch) -> Iterator[RunFolder]:
    """A run of a recipe, ended where the watch says; its folder is there while this lasts."""
    place = Path(tempfile.mkdtemp(prefix="dovetail-bench-"))
    try:
        folder = RunFolder.create(place / "run", load([recipe], list(overrides)))
        run_once(folder, watch)
        yield folder
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run_once(folder: RunFolder, watch: Watch) -> None:
    torch.set_flush_denormal(True)
    keep_freed_memory()
    folder.lock()
    run: Callable[[], None]
    if folder.config.runtime == "ray":
        from dovetail.runtime.ray.driver.run import RayRun  # Ray takes a second to import

        run = RayRun(folder, watch=watch, should_stop=lambda: watch.ended).run
    else:
        inline = InlineRun(folder, watch=watch, should_stop=lambda: watch.ended)
        watch.spent, run = lambda: inline.seconds, inline.run
    try:
        with contextlib.suppress(Interrupted):
            run()
    finally:
        folder.unlock()


def pace_of(folder: RunFolder, watch: Watch, *, num_steps: int) -> Pace:
    starts = _starts(folder)
    if len(starts) < 2:
        raise ValueError(f"{len(starts)} episodes are too few to tell a pace")
    num_episodes = max(1, len(starts) - 1 - _SKIP)
    first, last = starts[-1 - num_episodes], starts[-1]
    num_updates = watch.updates_at(last) - watch.updates_at(first)
    spent = {name: seconds / num_episodes for name, seconds in watch.spent_between(first, last).items()}
    if not spent:  # of several processes, all that is known is the sum at the end
        whole = (folder.read_json("progress.json") or {}).get("phases") or {}
        spent = {name: seconds / len(starts) for name, seconds in whole.items()}
    return Pace(
        episode_s=(last - first) / num_episodes,
        update_s=(last - first) / max(num_updates, 1e-9),
        updates_per_step=num_updates / (num_episodes * num_steps),
        spent=spent,
    )


def _starts(folder: RunFolder) -> list[float]:
    """When each episode of practice began, as the arm wrote it down: nobody who is behind changes that."""
    log = EpisodeLog(folder.episodes)
    infos = [log.manifest(episode_id) for episode_id in log.ids()]
    return sorted(info.started_unix_ns / NS_PER_S for info in infos if info.purpose is Purpose.ONLINE)
