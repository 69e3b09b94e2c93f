"""The store: takes episodes from all arms into the log, has them labelled, keeps the replay and the run's books.

Its word that it has an episode is kept whatever dies afterwards, and what it was told twice it has once. One thread keeps
the books, in the order in which things came; nobody who delivers waits for it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np

from dovetail.core.errors import DovetailError, UsageError, one_line
from dovetail.core.types import (
    Array,
    Episode,
    EpisodeStart,
    Outcome,
    Purpose,
    SampleRequest,
    Segment,
    WeightSnapshot,
)
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.panel import Panel
from dovetail.learn.metrics import MetricsLog
from dovetail.policies.trainable import CachesFeatures
from dovetail.rewards.retraining import retraining_of
from dovetail.runs.assembly.arms import arm_groups
from dovetail.runs.assembly.fleet import Fleet, build_fleet
from dovetail.runs.coaching import Coaching, LearnerView
from dovetail.runs.curves import Curves
from dovetail.runs.experience import Experience, image_codec
from dovetail.runs.folder import RunFolder
from dovetail.runs.ingest import EpisodeIngest
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.status import RunStatus
from dovetail.runtime.ray.roles.handles import LabelerHandles
from dovetail.runtime.ray.roles.role import Role, only_one
from dovetail.runtime.ray.roles.permits import ArmBalance, EpisodePermit, EpisodePermits

__all__ = ["StoreRole"]

_LOOK_S = 0.05
_COACH_S = 1.0
_PATIENCE_S = 5.0
_FRESH = 16  # episodes kept at hand until their labels come; the others are read again


class StoreRole(Role):
    """`start` it; then `deliver`, `stream`, `ticket`, `learned`. All it knows it finds again in the run's folder."""

    def __init__(self, name: str, *labelers: Any, path: Path) -> None:
        super().__init__(name)
        self._folder, self._labelers = RunFolder.open(path), labelers
        self._books = threading.RLock()  # experience, intake and figures
        self._grown = threading.Condition()  # steps that are learned from
        self._delivered: SimpleQueue[str] = SimpleQueue()  # committed, and not in the books
        self._fresh: OrderedDict[str, Episode] = OrderedDict()
        self._unplotted: dict[str, float] = {}  # in the books since, and not in the curves
        self._running: dict[str, int] = {}  # steps of episodes that are streamed, while they run
        self._kinds = arm_groups(self._folder.config)
        behind = self._folder.config.cluster.max_behind_steps
        self._in_step = ArmBalance(slack_steps=behind / len(self._folder.config.cluster.named_robots()))
        self._ended = threading.Event()
        self._lock = only_one(path / ".store.lock")
        learner = self._folder.config.learner
        may_owe_steps = self._folder.config.cluster.max_behind_steps + learner.start_after_steps
        self._pupil = _Pupil(utd=learner.utd, may_owe_steps=may_owe_steps)
        self._coached_s = 0.0
        try:
            self._open()
        except (
            DovetailError
        ) as error:  # whoever watches is told; a constructor that raises is only ever tried again
            self.problem = one_line(error)
            return
        threading.Thread(target=self._keep_books, name="books", daemon=True).start()

    def _open(self) -> None:
        folder, config = self._folder, self._folder.config
        with self.working("recovering"):
            band = build_fleet(config, parts=folder.parts)
            station, policy = band.station, band.trainable()
            self._status, phases = RunStatus(name=folder.path.name), PhaseTimes()
            self._metrics = MetricsLog(
                folder.logs, wandb=config.run.wandb, name=folder.path.name, config=config.model_dump(mode="json")
            )
            self._coaching = Coaching(
                folder, status=self._status, metrics=self._metrics, policy=policy, real_time=station.real_time
            )
            self._experience = self._make_experience(band, policy)
            self._log = EpisodeLog(folder.episodes, images=image_codec(config.images))  # of those who deliver
            self._retraining = retraining_of(folder, self._panel.labelers)
            self._intake = EpisodeIngest(
                folder,
                experience=self._experience,
                status=self._status,
                coaching=self._coaching,
                phases=phases,
                seen=band.seen(policy),
            )
            self._curves = Curves(folder, metrics=self._metrics, status=self._status, phases=phases)
            self._tickets = EpisodePermits(
                utd=config.learner.utd,
                start_after_steps=config.learner.start_after_steps,
                max_behind_steps=config.cluster.max_behind_steps,
                max_steps=config.run.env_steps,
            )
            learns = getattr(band.algorithm(policy), "learns_from_running", False)
            late = all(getattr(labeler, "rewards_at_the_end", False) for labeler in self._panel.labelers)
            self._streams = learns and late and self._experience.replays_as_seen(station.robot.spec)
            self._tickets.streams = self._streams
            self._intake.recover(on_added=lambda done, total: None)
            self._tickets.next_index = self._status.episodes
            self._settle()
            band.close()

    def _make_experience(self, band: Fleet, policy: Any) -> Experience:
        folder, config, keys = self._folder, self._folder.config, policy.spec.observation
        panel: Panel = band.station.panel(folder.labels)
        for robot in band.robots.values():
            panel.check(robot)
        self._panel = LabelerHandles(
            self._labelers,
            labelers=panel.labelers,
            max_each=panel.max_concurrent or 1,
            timeout_s=config.cluster.label_timeout_s,
        )
        return Experience(
            folder,
            panel=self._panel,
            replay=band.replay(folder.replay, policy),
            cameras=tuple(key for key, spec in keys.items() if len(spec.shape) >= 3),
            codec=image_codec(config.images),
            encoder=policy if isinstance(policy, CachesFeatures) and policy.caches else None,
            at_hand=self._at_hand,
        )

    # ---- what comes in

    def deliver(self, episode: Episode) -> bool:
        """True: it is safe. Also if it was here before."""
        with self.working("storing"):
            self._log.commit(episode)
        if episode.purpose is not Purpose.EVAL:
            self._fresh[episode.id] = episode
            while len(self._fresh) > _FRESH:
                self._fresh.popitem(last=False)
            self._delivered.put(episode.id)
        self.count("episodes")
        return True

    def stream(self, start: EpisodeStart, segments: Sequence[Segment]) -> bool:
        """Steps of an episode that is still running. False: there is a gap, so it is wanted from its beginning."""
        if start.purpose is not Purpose.ONLINE:
            return True
        with self._books:
            self._is_ahead(start.robot.name)  # it is still there
            if not self._streams:
                return True
            if self._intake.knows(start.id):
                return True
            for segment in segments:
                try:
                    self._experience.replay.extend(start, segment)
                except UsageError:
                    return False
                self._running[start.id] = max(self._running.get(start.id, 0), segment.first + len(segment))
            self._settle()
        return True

    def learned(
        self, updates: int, wants: SampleRequest, metrics: Mapping[str, float], *, waits: bool = False
    ) -> None:
        self._tickets.waits = waits
        self._pupil.num_online_updates, self._pupil.wants = updates, wants
        self._tickets.updates = updates
        self._status.metrics |= metrics

    # ---- what is asked

    def ticket(self, robot: str, real_time: bool) -> EpisodePermit | None:
        """Whether this arm may run an episode, and which. A real one is never kept waiting."""
        with self._books:
            slow = self._experience.desk.num_under_way > self._folder.config.labeling.max_under_way
            if slow and not real_time:
                return None
            if not real_time and self._is_ahead(robot):
                return None
            return self._tickets.take(real_time=real_time, robot_minutes=self._minutes_of(robot))

    def _minutes_of(self, robot: str) -> float:
        """Of practice, of all arms that do the same."""
        kind = next((kind for kind in self._kinds if robot in kind), ())
        if len(self._kinds) == 1:
            return self._status.robot_minutes
        return sum(self._status.robots[name].robot_minutes for name in kind if name in self._status.robots)

    def _is_ahead(self, robot: str) -> bool:
        steps, now_s = {name: arm.env_steps for name, arm in self._status.robots.items()}, time.monotonic()
        self._in_step.hear(robot, steps, now_s)
        return len(self._kinds) > 1 and self._in_step.is_ahead(robot, steps, now_s)

    def trained_steps(self, more_than: int = -1, wait_s: float = 0.0) -> int:
        """Those that updates are owed for; where the caller knows of as many, it waits for more, for a while."""
        with self._grown:
            self._grown.wait_for(lambda: self._tickets.trained_steps != more_than, wait_s)
            return self._tickets.trained_steps

    def demonstrated(self) -> Mapping[str, Array]:
        with self._books:
            demos = self._intake.demos
            return {key: np.concatenate([demo[key] for demo in demos]) for key in demos[0]} if demos else {}

    def status(self) -> RunStatus:
        """A copy of the books."""
        with self._books:
            return copy.deepcopy(self._status)

    def report(self) -> dict[str, Any]:
        if self.problem is not None:
            return self.about()
        return {
            **self.about(),
            "env_steps": self._status.env_steps,
            "trained_steps": self._tickets.trained_steps,
            "behind_steps": round(self._tickets.behind_steps, 1),
            "demos": len(self._intake.demos),
            "hopeful_demos": self._intake.num_hopeful_demos,
            "tried_demos": self._intake.num_tried_demos,
            "robots": self._intake.demo_books(),
            "not_in_the_books": self._delivered.qsize(),
            "labels_under_way": self._experience.desk.num_under_way,
            "streaming": len(self._running),
            "streams": self._streams,
        }

    def note(self, group: str, values: Mapping[str, float], *, step: int) -> None:
        """Into the run's curves."""
        with self._books:
            self._metrics.write(group, values, step=step)

    def published(self, newest: int, version: int, normalizer: Mapping[str, Array], *, updates: int) -> None:
        """The newest version, made after so many online updates, and the one that arms are given, which is another where
        somebody has pinned one."""
        with self._books:
            served = WeightSnapshot(version=version, components={"normalizer": normalizer}, hashes={})
            self._coaching.published(newest, served, updates=updates)

    def settle(self, limit_s: float) -> bool:
        """Wait until all that was delivered is in the books and labelled; False if that takes too long."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            with self._books:
                if not self._delivered.qsize() and not self._experience.desk.num_under_way:
                    self._follow()
                    return True
            time.sleep(_LOOK_S)
        return False

    def close(self) -> None:
        self._ended.set()
        if self.problem is None:
            with self._books:
                if self._retraining is not None:
                    self._retraining.close()
                self._experience.close()
                self._metrics.close()

    # ---- the books

    def _keep_books(self) -> None:
        while not self._ended.is_set():
            try:
                episode_id: str | None = self._delivered.get(timeout=_LOOK_S)
            except Empty:
                episode_id = None
            try:
                with self._books:
                    if self._ended.is_set():
                        return
                    if episode_id is not None:
                        self._enter(episode_id)
                    self._follow()
            except (
                Exception
            ) as error:  # a thread's border: without books there is no run, and whoever watches is told
                self.problem = one_line(error)
                return

    def _enter(self, episode_id: str) -> None:
        if self._intake.knows(episode_id):  # delivered again
            return
        episode = self._fresh.get(episode_id) or self._log.load(episode_id)
        if episode.outcome is Outcome.ABORTED:
            self._running.pop(episode_id, None)
            if self._streams:
                self._experience.replay.drop(episode_id)
            return
        with self.working("entering"):
            self._intake.take(episode)
        if episode.purpose is Purpose.ONLINE:
            self._unplotted[episode_id] = time.monotonic()
            self._tickets.next_index = max(self._tickets.next_index, self._status.episodes)

    def _follow(self) -> None:
        """What was said since, and what that changes."""
        self._intake.news()
        if self._retraining is not None:
            self._retraining.look()
        self._settle()
        self._plot()
        now_s = time.monotonic()
        if self._pupil.wants is not None and now_s - self._coached_s > _COACH_S:
            self._coached_s = now_s
            self._coaching.look(cast(LearnerView, self._pupil), self._experience.replay)

    def _plot(self) -> None:
        """Into the curves and events, once it has labels; or without them, where those take long. An episode with
        both is no longer kept at hand: with cameras it is large."""
        now_s = time.monotonic()
        for episode_id, since_s in list(self._unplotted.items()):
            if self._intake.is_labelled(episode_id) or now_s - since_s > _PATIENCE_S:
                del self._unplotted[episode_id]
                episode = self._fresh.get(episode_id) or self._log.load(episode_id, images=False)
                self._curves.episode(episode, self._experience.labels.current(episode_id))
        for episode_id in list(self._fresh):
            if self._intake.is_labelled(episode_id) and episode_id not in self._unplotted:
                self._fresh.pop(episode_id, None)

    def _settle(self) -> None:
        for episode_id in [one for one in self._running if self._intake.is_labelled(one)]:
            del self._running[episode_id]
        status = self._status
        self._tickets.env_steps = status.env_steps
        self._pupil.streamed_steps = sum(self._running.values())
        with self._grown:
            self._tickets.trained_steps = status.trained_steps + self._pupil.streamed_steps
            self._grown.notify_all()

    def _at_hand(self, episode_id: str) -> Episode | None:
        return self._fresh.get(episode_id)


class _Pupil:
    """What the coach wants to know of a learner that is elsewhere, and may be so many steps behind."""

    def __init__(self, *, utd: float, may_owe_steps: int) -> None:
        self._utd, self._may_owe_steps = utd, may_owe_steps
        self.wants: SampleRequest | None = None
        self.num_online_updates = 0
        self.streamed_steps = 0  # that it learns from before they have labels

    def owed(self, env_steps: int) -> int:
        owed = int(self._utd * (env_steps + self.streamed_steps)) - self.num_online_updates
        return owed if owed < 0 else max(0, owed - int(self._utd * self._may_owe_steps))
