"""The store as a Ray actor: takes episodes from all arms and feeds them to an `EpisodeStore` on one thread.

An episode is on disk before `deliver` returns, and a second delivery changes nothing. Arms never wait for labels or replay.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, cast

from dovetail.core.abilities import LearnsFromRunning, RewardsAtEnd
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
from dovetail.learn.coach import Advice
from dovetail.runs.assembly.arms import arm_groups
from dovetail.runs.assembly.fleet import build_fleet
from dovetail.runs.coaching import LearnerView
from dovetail.runs.experience import image_codec
from dovetail.runs.folder import RunFolder
from dovetail.runs.ingest import DemoCounts
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.roles.store import EpisodeStore
from dovetail.runs.status import RunStatus
from dovetail.runtime.ray.roles.handles import Progress, RemoteLabelers
from dovetail.runtime.ray.roles.permits import ArmBalance, EpisodePermit, EpisodePermits
from dovetail.runtime.ray.roles.role import Role, exclusive_lock

__all__ = ["RemoteLearnerView", "StoreRole"]

_POLL_S = 0.05
_COACH_S = 1.0
_MAX_LABEL_WAIT_S = 5.0  # after that, an episode enters the curves without its labels
_NUM_CACHED = 16  # episodes in memory until their labels come; others are read again


class StoreRole(Role):
    """Arms call `deliver`, `stream` and `request_permit`, the learner `progress`, `learned` and `published`.

    `labelers` are the actors of slow labelers. After a restart, all state comes from the run's folder.
    """

    def __init__(self, name: str, *labelers: Any, path: Path) -> None:
        super().__init__(name)
        self._folder, self._labelers = RunFolder.open(path, trusted=True), labelers
        config = self._folder.config
        self._guard = threading.RLock()  # of the EpisodeStore and everything below
        self._grown = threading.Condition()  # notified when `trained_steps` changes
        self._unprocessed: SimpleQueue[str] = SimpleQueue()  # committed and not ingested
        self._cached: OrderedDict[str, Episode] = OrderedDict()
        self._unplotted: dict[str, float] = {}  # ingested at this time, and not in the curves
        self._streamed: dict[str, int] = {}  # steps of episodes that are still running
        self._groups = arm_groups(config)
        behind = config.cluster.max_steps_ahead
        self._balance = ArmBalance(slack_steps=behind / len(config.cluster.named_robots()))
        self._ended = threading.Event()
        self._lock_file = exclusive_lock(path / ".store.lock")
        self._learner = RemoteLearnerView(
            utd=config.learner.utd, max_owed_steps=behind + config.learner.start_after_steps
        )
        self._coached_s = 0.0
        self._status = RunStatus(name=self._folder.path.name)
        try:
            with self.working("recovering"):
                self._open()
        except DovetailError as error:  # the driver reads it; a constructor that raises is only tried again
            self.problem = one_line(error)
            return
        threading.Thread(target=self._process, name="ingest", daemon=True).start()

    def _open(self) -> None:
        folder, config = self._folder, self._folder.config
        fleet = build_fleet(config, components=folder.components)
        policy = fleet.trainable()
        chain = fleet.assembly.labeler_chain(folder.labels)
        for robot in fleet.robots.values():
            chain.check(robot)
        self._store = EpisodeStore(
            folder,
            fleet=fleet,
            policy=policy,
            labelers=RemoteLabelers(self._labelers, chain=chain, timeout_s=config.cluster.label_timeout_s),
            status=self._status,
            phases=PhaseTimes(),
            cached=self._cached.get,
        )
        self._log = EpisodeLog(folder.episodes, images=image_codec(config.images))  # for `deliver`
        self._permits = EpisodePermits(
            utd=config.learner.utd,
            start_after_steps=config.learner.start_after_steps,
            max_steps_ahead=config.cluster.max_steps_ahead,
            max_steps=config.run.env_steps,
        )
        algorithm = fleet.algorithm(policy)
        self._permits.streams = (
            isinstance(algorithm, LearnsFromRunning)
            and algorithm.learns_from_running
            and all(isinstance(one, RewardsAtEnd) and one.rewards_at_the_end for one in chain.labelers)
            and self._store.experience.can_stream(fleet.assembly.robot.spec)
        )
        self._store.recover()
        self._permits.next_index = self._status.episodes
        self._update_counts()
        fleet.close()

    # ---- from the arms

    def deliver(self, episode: Episode) -> bool:
        """Commit an episode. True: it is on disk, now or from an earlier delivery."""
        with self.working("storing"):
            self._log.commit(episode)
        if episode.purpose is not Purpose.EVAL:
            self._cached[episode.id] = episode
            while len(self._cached) > _NUM_CACHED:
                self._cached.popitem(last=False)
            self._unprocessed.put(episode.id)
        self.count("episodes")
        return True

    def stream(self, start: EpisodeStart, segments: Sequence[Segment]) -> bool:
        """Add steps of a running episode to the replay. False: steps before them are missing."""
        if start.purpose is not Purpose.ONLINE:
            return True
        with self._guard:
            self._is_ahead(start.robot.name)  # the arm is active
            if not self._permits.streams or self._store.ingest.contains(start.id):
                return True
            for segment in segments:
                try:
                    self._store.replay.extend(start, segment)
                except UsageError:
                    return False
                self._streamed[start.id] = max(self._streamed.get(start.id, 0), segment.first + len(segment))
            self._update_counts()
        return True

    def request_permit(self, robot: str, real_time: bool) -> EpisodePermit | None:
        """A permit for the next online episode of an arm. A real arm never waits for learner, labelers or other arms."""
        with self._guard:
            limit = self._folder.config.labeling.max_labeling_episodes
            if not real_time and (self._store.dispatcher.num_under_way > limit or self._is_ahead(robot)):
                return None
            return self._permits.request(real_time=real_time, robot_minutes=self._minutes_of(robot))

    def _minutes_of(self, robot: str) -> float:
        """Online minutes of all arms of the same group."""
        if len(self._groups) == 1:
            return self._status.robot_minutes
        group = next((group for group in self._groups if robot in group), ())
        return sum(self._status.robots[name].robot_minutes for name in group if name in self._status.robots)

    def _is_ahead(self, robot: str) -> bool:
        steps, now_s = {name: arm.env_steps for name, arm in self._status.robots.items()}, time.monotonic()
        self._balance.mark_active(robot, steps, now_s)
        return len(self._groups) > 1 and self._balance.is_ahead(robot, steps, now_s)

    # ---- from the learner

    def progress(self, newer_than: int = -1, wait_s: float = 0.0) -> Progress:
        """The counts; waits while `trained_steps` is `newer_than`, but no longer than `wait_s`."""
        with self._grown:
            self._grown.wait_for(lambda: self._permits.trained_steps != newer_than, wait_s)
            return Progress(
                env_steps=self._status.env_steps,
                trained_steps=self._permits.trained_steps,
                num_trained_episodes=self._store.ingest.num_trained_episodes,
            )

    def learned(
        self, updates: int, request: SampleRequest, metrics: Mapping[str, float], *, waits: bool = False
    ) -> None:
        self._permits.learner_waits, self._permits.updates = waits, updates
        self._learner.num_online_updates, self._learner.sample_request = updates, request
        self._status.metrics |= metrics

    def published(self, newest: int, version: int, normalizer: Mapping[str, Array], *, updates: int) -> None:
        """Note the newest version, its number of online updates, and the version that arms get; a pinned one differs."""
        with self._guard:
            served = WeightSnapshot(version=version, components={"normalizer": normalizer}, hashes={})
            self._store.published(newest, served, updates=updates)

    def demonstrated(self) -> Mapping[str, Array]:
        with self._guard:
            return self._store.demonstrated()

    # ---- from the driver

    def demo_counts(self, robots: Collection[str] | None) -> DemoCounts:
        with self._guard:
            return self._store.demo_counts(robots)

    def status(self) -> RunStatus:
        with self._guard:
            return copy.deepcopy(self._status)

    def report(self) -> dict[str, Any]:
        if self.problem is not None:
            return self.about()
        return {
            **self.about(),
            "env_steps": self._status.env_steps,
            "trained_steps": self._permits.trained_steps,
            "behind_steps": round(self._permits.behind_steps, 1),
            "num_unprocessed_episodes": self._unprocessed.qsize(),
            "labels_under_way": self._store.dispatcher.num_under_way,
            "streaming": len(self._streamed),
            "streams": self._permits.streams,
        }

    def write_metrics(self, group: str, values: Mapping[str, float], *, step: int) -> None:
        with self._guard:
            self._store.write_metrics(group, values, step=step)

    def conclude(self, num_successes: int | None) -> tuple[Advice, ...]:
        """The coach's last check; returns its advice."""
        with self._guard:
            self._store.coaching.conclude(num_successes)
            return self._store.status.advice

    def wait_until_processed(self, limit_s: float) -> bool:
        """Wait until all delivered episodes are ingested and no labels are under way; False after `limit_s`."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            with self._guard:
                if not self._unprocessed.qsize() and not self._store.dispatcher.num_under_way:
                    self._apply_new_labels()
                    return True
            time.sleep(_POLL_S)
        return False

    def close(self) -> None:
        self._ended.set()
        if self.problem is None:
            with self._guard:
                self._store.close()

    # ---- the ingest thread

    def _process(self) -> None:
        while not self._ended.is_set():
            try:
                episode_id: str | None = self._unprocessed.get(timeout=_POLL_S)
            except Empty:
                episode_id = None
            try:
                with self._guard:
                    if self._ended.is_set():
                        return
                    if episode_id is not None:
                        self._ingest(episode_id)
                    self._apply_new_labels()
            except Exception as error:  # a thread's border: the driver reads it and ends the run
                self.problem = one_line(error)
                return

    def _ingest(self, episode_id: str) -> None:
        if self._store.ingest.contains(episode_id):  # a repeated delivery
            return
        episode = self._cached.get(episode_id) or self._log.load(episode_id)
        if episode.outcome is Outcome.ABORTED:
            self._streamed.pop(episode_id, None)
            if self._permits.streams:
                self._store.replay.drop(episode_id)
            return
        with self.working("ingesting"):
            self._store.add(episode)
        if episode.purpose is Purpose.ONLINE:
            self._unplotted[episode_id] = time.monotonic()
            self._permits.next_index = max(self._permits.next_index, self._status.episodes)

    def _apply_new_labels(self) -> None:
        self._store.apply_new_labels()
        self._update_counts()
        self._plot()
        now_s = time.monotonic()
        if self._learner.sample_request is not None and now_s - self._coached_s > _COACH_S:
            self._coached_s = now_s
            self._store.coach(cast(LearnerView, self._learner))

    def _plot(self) -> None:
        """Write episodes to curves and events once they have labels, or after a while without. Then forget them."""
        ingest, now_s = self._store.ingest, time.monotonic()
        for episode_id, since_s in list(self._unplotted.items()):
            if ingest.is_labeled(episode_id) or now_s - since_s > _MAX_LABEL_WAIT_S:
                del self._unplotted[episode_id]
                episode = self._cached.get(episode_id) or self._log.load(episode_id, images=False)
                self._store.curves.episode(episode, self._store.experience.labels.current(episode_id))
        for episode_id in list(self._cached):
            if ingest.is_labeled(episode_id) and episode_id not in self._unplotted:
                self._cached.pop(episode_id, None)

    def _update_counts(self) -> None:
        for episode_id in [one for one in self._streamed if self._store.ingest.is_labeled(one)]:
            del self._streamed[episode_id]
        self._permits.env_steps = self._status.env_steps
        self._learner.streamed_steps = sum(self._streamed.values())
        with self._grown:
            self._permits.trained_steps = self._status.trained_steps + self._learner.streamed_steps
            self._grown.notify_all()


class RemoteLearnerView:
    """The learner for the coach. It may be behind by `max_owed_steps` without advice."""

    def __init__(self, *, utd: float, max_owed_steps: int) -> None:
        self._utd, self._max_owed_steps = utd, max_owed_steps
        self.sample_request: SampleRequest | None = None
        self.num_online_updates = 0
        self.streamed_steps = 0  # that it learns from before they have labels

    def owed(self, env_steps: int) -> int:
        owed = int(self._utd * (env_steps + self.streamed_steps)) - self.num_online_updates
        return owed if owed < 0 else max(0, owed - int(self._utd * self._max_owed_steps))
