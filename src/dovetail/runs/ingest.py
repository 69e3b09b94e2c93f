"""What becomes of an episode that was kept: labelled, learned from, and counted; and what later labels change of that."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from dovetail.core.types import Array, Episode, Labels, Purpose
from dovetail.runs.coaching import Coaching
from dovetail.runs.experience import Experience, Known
from dovetail.runs.folder import RunFolder
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.status import RunStatus, StatusListener

__all__ = ["EpisodeIngest"]


class EpisodeIngest:
    """`recover` what an earlier process left, `take` each new episode in, and ask for `news` between two of them."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        experience: Experience,
        status: RunStatus,
        coaching: Coaching,
        phases: PhaseTimes,
        seen: Callable[[Episode], dict[str, Array]],
    ) -> None:
        """`seen` gives what normalisation is fitted to, of a demonstration."""
        self._folder, self._experience, self._status = folder, experience, status
        self._coaching, self._phases = coaching, phases
        self._seen = seen
        self._counted: dict[
            str, tuple[str, bool]
        ] = {}  # by id: its labels' digest, and whether it is learned from
        self._demos: dict[str, dict[str, Array]] = {}
        self._hopeful: set[str] = set()  # demonstrations whose labels are still to come
        self._shown_by: dict[str, str] = {}  # robots of all demonstrations
        self._tried: set[str] = set()  # those that were tried here, and not imported

    @property
    def demos(self) -> list[dict[str, Array]]:
        """What was seen in the demonstrations that are learned from."""
        return list(self._demos.values())

    @property
    def num_hopeful_demos(self) -> int:
        """Demonstrations that are learned from, or may be once they have labels."""
        return len(self._demos) + len(self._hopeful)

    @property
    def num_tried_demos(self) -> int:
        return len(self._tried)

    def demo_books(self) -> dict[str, dict[str, int]]:
        """The same three counts of each robot, by its name."""
        told = {"demos": self._demos, "hopeful_demos": {*self._demos, *self._hopeful}, "tried_demos": self._tried}
        counts = {what: Counter(self._shown_by[one] for one in ids) for what, ids in told.items()}
        return {
            name: {what: counts[what][name] for what in told} for name in dict.fromkeys(self._shown_by.values())
        }

    def recover(self, *, on_added: Callable[[int, int], None]) -> list[Known]:
        before = self._experience.recover(on_added=on_added)
        for known in before:
            self._count(known)
        self._tell_waiting()
        return before

    def take(self, episode: Episode) -> Labels | None:
        """Label it, learn from it and count it; the last two later, where its labels are still to come."""
        with self._phases.phase("labelling"):
            labels = self._experience.desk.label(episode)
        known = Known(info=self._experience.log.manifest(episode.id), labels=labels)
        if labels is not None and known.trains:
            with self._phases.phase("adding"):
                self._experience.learn_from(episode, labels)
        if known.info.purpose is Purpose.ONLINE:
            self._coaching.acted(episode)
        self._count(known, episode)
        return labels

    def news(self) -> int:
        """Follow what was said since, by whomever; returns of how many episodes it changed anything."""
        with self._phases.phase("labelling"):
            changed = [one for one in map(self._follow, self._experience.desk.news()) if one]
            self._tell_waiting()
        return len(changed)

    def finish(self, *, watch: StatusListener, look_up: Callable[[], None]) -> int:
        """At the end of practice, wait for what is under way, as long as the config says; what waits for a person, or for
        a labeler that is away, is not waited for, but told. Returns as `news`."""
        desk, status = self._experience.desk, self._status
        num_under_way = desk.num_under_way

        def look() -> None:
            status.done = num_under_way - desk.num_under_way
            watch(status)
            look_up()

        if num_under_way:
            status.begin("waiting for the last labels", num_under_way)
        desk.wait(self._folder.config.labeling.finish_s, look_up=look)
        num_changed = self.news()
        if status.waiting:
            self._folder.event("labels wait", **status.waiting)
        return num_changed

    def keep_up(self, *, look_up: Callable[[], None]) -> None:
        """Where time is simulated, it waits for labelers as it does for the learner: until no more episodes are under way
        than may be at once."""
        desk, limit = self._experience.desk, self._folder.config.labeling.max_under_way
        if desk.num_under_way > limit:
            with self._phases.phase("labelling"):
                desk.wait(math.inf, look_up=look_up, down_to=limit)

    def knows(self, episode_id: str) -> bool:
        """Whether it is in the books."""
        return episode_id in self._counted

    def is_labelled(self, episode_id: str) -> bool:
        return bool(self._counted.get(episode_id, ("", False))[0])

    # ---- the books

    def _follow(self, episode_id: str) -> bool:
        if episode_id not in self._counted:  # an evaluation, or what was aborted
            return False
        experience = self._experience
        labels = experience.labels.current(episode_id) or experience.desk.take_up(episode_id)
        if self._counted[episode_id][0] == _digest(labels):
            return False
        known = Known(info=experience.log.manifest(episode_id), labels=labels)
        experience.relabel(known)
        self._coaching.correct(known)
        if known.info.purpose is Purpose.ONLINE:
            self._status.correct(episode_id, labels)
        self._note(known)
        facts: dict[str, object] = {"by": None}
        if labels is not None:
            facts = {"by": labels.labeler, "success": bool(labels.success), "return": float(labels.rewards.sum())}
            facts |= {"discard": True} if labels.discard else {}
        self._folder.event("labelled", id=episode_id, env_steps=self._status.env_steps, **facts)
        return True

    def _count(self, known: Known, episode: Episode | None = None) -> None:
        self._coaching.count(known)
        if known.info.purpose is Purpose.ONLINE:
            self._status.count(known.info, known.labels)
        else:
            self._shown_by[known.info.id] = known.info.robot.name
            if known.info.config_hash == self._folder.config_hash:  # otherwise it was imported
                self._tried.add(known.info.id)
        self._note(known, episode)

    def _note(self, known: Known, episode: Episode | None = None) -> None:
        """Whether it is learned from."""
        info, (_, trained) = known.info, self._counted.get(known.info.id, ("", False))
        self._counted[info.id] = (_digest(known.labels), known.trains)
        if info.purpose is Purpose.ONLINE:
            self._status.trained_steps += info.num_steps * (known.trains - trained)
            return
        (self._hopeful.add if known.labels is None else self._hopeful.discard)(info.id)
        if not known.trains:
            self._demos.pop(info.id, None)
        elif info.id not in self._demos:
            episode = episode or self._experience.log.load(info.id, images=False)
            self._demos[info.id] = self._seen(episode)

    def _tell_waiting(self) -> None:
        self._status.waiting = self._experience.desk.waiting()


def _digest(labels: Labels | None) -> str:
    """What an episode is labelled; empty if it is not."""
    if labels is None:
        return ""
    said = hashlib.blake2b(digest_size=12)
    for values in (labels.rewards, labels.discounts):
        said.update(np.ascontiguousarray(values, np.float32).tobytes())
    said.update(repr((labels.labeler, labels.version, bool(labels.success), labels.discard)).encode())
    return said.hexdigest()
