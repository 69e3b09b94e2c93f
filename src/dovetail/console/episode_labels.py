"""The label store and the queue of a run, for people who label in the browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.core.types import Labels, Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.human import HUMAN, Mark, human_labels
from dovetail.labels.queue import LabelQueue, Waiting
from dovetail.labels.store import LabelStore

if TYPE_CHECKING:
    from dovetail.labels._label_file import LabelRecord

__all__ = ["EpisodeLabels"]

_MTIME_RESOLUTION_NS = 1_000_000_000
_OUTCOMES = {"success": Outcome.SUCCESS, "failure": Outcome.FAILURE, "discard": Outcome.ABORTED}


class EpisodeLabels:
    """May be called from several threads; the store, which is read incrementally, is used by one at a time."""

    def __init__(self, run: Path) -> None:
        self._log = EpisodeLog(run / "episodes")
        self._store = LabelStore(run / "labels")
        self._queue = LabelQueue(run / "labels" / "queue")
        self._labeled: dict[str, Waiting] = {}  # left the queue because a person labeled it here
        self._lock = threading.Lock()
        self._folder = run / "labels" / "queue"
        self._cached: tuple[int, list[Waiting]] = (-1, [])  # modification time of the folder, and the queue

    def waiting(self) -> Sequence[Waiting]:
        """The queue, longest wait first. It is read again only after a change, because many pages poll it."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns != self._cached[0]:
            # an episode may have been removed from the log
            waiting = [item for item in self._queue.waiting() if item.episode_id in self._log]
            # two changes within the clock resolution of the disk have the same time: do not trust a recent one
            is_settled = time.time_ns() - changed_ns > _MTIME_RESOLUTION_NS
            self._cached = (changed_ns if is_settled else -1, waiting)
        return self._cached[1]

    def current(self, episode_id: str) -> Labels | None:
        """The labels that count."""
        with self._lock:
            return self._store.current(episode_id)

    def history(self, episode_id: str) -> list[tuple[LabelRecord, bool]]:
        """Each label and whether it counts, oldest first."""
        with self._lock:
            records, current = self._store.history(episode_id), self._store.current(episode_id)
        found: list[tuple[LabelRecord, bool]] = []
        for record in reversed(records):
            counts = current is not None and not record.retracted and _same(record.labels, current)
            found.append((record, counts and not any(other for _, other in found)))
        return found[::-1]

    def label(self, episode_id: str, verdict: str, marks: Sequence[Mark], *, by: str) -> None:
        """Store a person's verdict (success, failure or discard) durably, and remove the episode from the queue."""
        info = self._log.manifest(episode_id)
        labels = human_labels(
            episode_id,
            num_steps=info.num_steps,
            outcome=info.outcome,
            judgement=_OUTCOMES[verdict],
            by=by,
            marks=marks,
        )
        with self._lock:
            self._store.add(labels)
            waiting = self._queue.get(episode_id)
            if waiting is not None:
                self._labeled[episode_id] = waiting
                self._queue.done(episode_id)

    def retract(self, episode_id: str, *, by: str) -> bool:
        """Retract that person's last label, and queue the episode again if it was in the queue; False: there is none."""
        with self._lock:
            own = [
                record.labels
                for record in self._store.history(episode_id)
                if not record.retracted and (record.labels.labeler, record.labels.version) == (HUMAN, by)
            ]
            waiting = self._labeled.pop(episode_id, None)
            if waiting is not None:  # first: after a crash between the two, a person still labels it
                self._queue.put(episode_id, waiting.reasons, opinions=waiting.opinions, note=waiting.note)
            return bool(own) and self._store.retract(own[-1])


def _same(a: Labels, b: Labels) -> bool:
    return (
        (a.labeler, a.version, a.priority, a.success, a.discard)
        == (b.labeler, b.version, b.priority, b.success, b.discard)
        and a.rewards.tobytes() == b.rewards.tobytes()
    )  # fmt: skip
