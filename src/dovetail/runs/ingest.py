"""Ingests committed episodes: has them labeled, adds them to the replay and counts them; applies later labels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from dovetail.core.types import Array, Episode, Labels, Purpose
from dovetail.runs.coaching import Coaching
from dovetail.runs.experience import EpisodeRecord, Experience
from dovetail.runs.folder import RunFolder
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.status import RunStatus

__all__ = ["DemoCounts", "EpisodeIngest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCounts:
    """Numbers of demonstrations."""

    accepted: int  # in the replay
    accepted_or_pending: int  # in the replay, or without labels yet
    tried: int  # recorded by this run, and not imported


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ingested:
    labels_digest: str
    trains: bool


class EpisodeIngest:
    """`recover` the episodes of earlier processes, `add` each new one, and `apply_new_labels` between them.

    `demo_observations(episode)` returns the observations of a demonstration to which the normalizer is fitted.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        experience: Experience,
        status: RunStatus,
        coaching: Coaching,
        phases: PhaseTimes,
        demo_observations: Callable[[Episode], dict[str, Array]],
    ) -> None:
        self._folder, self._experience, self._status = folder, experience, status
        self._coaching, self._phases, self._demo_observations = coaching, phases, demo_observations
        self._ingested: dict[str, _Ingested] = {}  # by episode id
        self._demos: dict[str, dict[str, Array]] = {}  # observations of those in the replay
        self._pending_demos: set[str] = set()
        self._demo_robots: dict[str, str] = {}  # of all demonstrations
        self._tried_demos: set[str] = set()
        self.num_trained_episodes = 0  # online episodes that the replay holds

    @property
    def demos(self) -> list[dict[str, Array]]:
        """Observations of the demonstrations in the replay."""
        return list(self._demos.values())

    def demo_counts(self, robots: Collection[str] | None = None) -> DemoCounts:
        """Counts of all demonstrations, or of those that these robots recorded."""

        def count(ids: Collection[str]) -> int:
            return sum(robots is None or self._demo_robots[one] in robots for one in ids)

        return DemoCounts(
            accepted=count(self._demos),
            accepted_or_pending=count(self._demos) + count(self._pending_demos),
            tried=count(self._tried_demos),
        )

    def recover(self, *, on_added: Callable[[int, int], None]) -> list[EpisodeRecord]:
        """Count the episodes of the log; `on_added`: see `Experience.recover`."""
        records = self._experience.recover(on_added=on_added)
        for record in records:
            self._count(record)
        self._update_waiting()
        return records

    def add(self, episode: Episode) -> Labels | None:
        """Label, replay and count an episode; replay it later if its labels come later."""
        with self._phases.phase("labelling"):
            labels = self._experience.dispatcher.label(episode)
        record = EpisodeRecord(info=self._experience.log.manifest(episode.id), labels=labels)
        if labels is not None and record.trains:
            with self._phases.phase("adding"):
                self._experience.add(episode, labels)
        if record.info.purpose is Purpose.ONLINE:
            self._coaching.acted(episode)
        self._count(record, episode)
        return labels

    def apply_new_labels(self) -> int:
        """Apply labels that are new, from any process; return the number of episodes that changed."""
        with self._phases.phase("labelling"):
            num_changed = sum([self._apply(episode_id) for episode_id in self._experience.dispatcher.changed()])
            self._update_waiting()
        return num_changed

    def wait_for_capacity(self, *, on_poll: Callable[[], None]) -> None:
        """Wait until no more episodes are under way than `labeling.max_labeling_episodes` allows."""
        dispatcher, limit = self._experience.dispatcher, self._folder.config.labeling.max_labeling_episodes
        if dispatcher.num_under_way > limit:
            with self._phases.phase("labelling"):
                dispatcher.wait(math.inf, on_poll=on_poll, down_to=limit)

    def contains(self, episode_id: str) -> bool:
        return episode_id in self._ingested

    def is_labeled(self, episode_id: str) -> bool:
        return self.contains(episode_id) and bool(self._ingested[episode_id].labels_digest)

    # ---- counting

    def _apply(self, episode_id: str) -> bool:
        if episode_id not in self._ingested:  # an evaluation, or an aborted episode
            return False
        experience = self._experience
        labels = experience.labels.current(episode_id) or experience.dispatcher.label_again(episode_id)
        if self._ingested[episode_id].labels_digest == _digest(labels):
            return False
        record = EpisodeRecord(info=experience.log.manifest(episode_id), labels=labels)
        experience.relabel(record)
        self._coaching.correct(record)
        if record.info.purpose is Purpose.ONLINE:
            self._status.correct(record.info, labels)
        self._update(record)
        facts: dict[str, object] = {"by": None}
        if labels is not None:
            facts = {"by": labels.labeler, "success": bool(labels.success), "return": float(labels.rewards.sum())}
            facts |= {"discard": True} if labels.discard else {}
        self._folder.event("labelled", id=episode_id, env_steps=self._status.env_steps, **facts)
        return True

    def _count(self, record: EpisodeRecord, episode: Episode | None = None) -> None:
        self._coaching.count(record)
        if record.info.purpose is Purpose.ONLINE:
            self._status.count(record.info, record.labels)
        else:
            self._demo_robots[record.info.id] = record.info.robot.name
            if record.info.config_hash == self._folder.config_hash:  # otherwise it was imported
                self._tried_demos.add(record.info.id)
        self._update(record, episode)

    def _update(self, record: EpisodeRecord, episode: Episode | None = None) -> None:
        """Update the counts that depend on the labels."""
        info, before = record.info, self._ingested.get(record.info.id)
        self._ingested[info.id] = _Ingested(labels_digest=_digest(record.labels), trains=record.trains)
        if info.purpose is Purpose.ONLINE:
            change = record.trains - (before is not None and before.trains)
            self.num_trained_episodes += change
            self._status.trained_steps += info.num_steps * change
            return
        (self._pending_demos.add if record.labels is None else self._pending_demos.discard)(info.id)
        if not record.trains:
            self._demos.pop(info.id, None)
        elif info.id not in self._demos:
            episode = episode or self._experience.log.load(info.id, images=False)
            self._demos[info.id] = self._demo_observations(episode)
            self._coaching.demonstrated(episode)

    def _update_waiting(self) -> None:
        self._status.waiting = self._experience.dispatcher.waiting()


def _digest(labels: Labels | None) -> str:
    """Identifies labels by their content; empty if there are none."""
    if labels is None:
        return ""
    digest = hashlib.blake2b(digest_size=12)
    for values in (labels.rewards, labels.discounts):
        digest.update(np.ascontiguousarray(values, np.float32).tobytes())
    digest.update(repr((labels.labeler, labels.version, bool(labels.success), labels.discard)).encode())
    return digest.hexdigest()
