"""Queue of episodes that wait for a person's label: one file per episode, shared by several processes.

    labels/queue/
      <episode id>.json     reasons, since when it waits, and the labels of other labelers

An episode leaves the queue only after its labels are in the label store.
So a crash loses nothing: at worst the queue contains an episode that already has labels.
"""

from __future__ import annotations

import enum
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dovetail.core.disk import MissingError, dump_json, fsync_folder, load_json, read_file, write_file, writer
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Labels
from dovetail.labels.human import HUMAN

__all__ = ["LabelQueue", "Opinion", "Reason", "Waiting"]

_ENDING = ".json"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")  # ids also come from the network and must not be paths


class Reason(enum.StrEnum):
    """Why an episode waits for a person."""

    UNCERTAIN = "uncertain"  # no labeler was confident enough
    DISAGREEMENT = "disagreement"  # labelers disagree
    NEW = "new"  # a person labels every episode
    AWAY = "away"  # a labeler does not answer; it is asked again until a person has labeled the episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """One labeler's result for an episode, without rewards."""

    labeler: str
    version: str
    success: bool
    confidence: float

    @staticmethod
    def of(labels: Labels) -> Opinion:
        return Opinion(
            labeler=labels.labeler,
            version=labels.version,
            success=bool(labels.success),
            confidence=float(labels.confidence),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An episode in the queue. `note` is one line of details, such as which server does not answer."""

    episode_id: str
    reasons: tuple[Reason, ...]
    opinions: tuple[Opinion, ...] = ()
    note: str = ""
    since_unix_ns: int = 0  # when it was first added


class LabelQueue:
    """Adding an episode again updates its reasons and keeps the time when it was first added."""

    def __init__(self, folder: Path | str, *, now_unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = Path(folder)
        self._now_unix_ns = now_unix_ns

    def put(
        self, episode_id: str, reasons: Iterable[Reason], *, opinions: Sequence[Opinion] = (), note: str = ""
    ) -> Waiting:
        """Add or update an episode durably."""
        path = self._path(episode_id)
        with writer(self._folder) as temporary:
            before = self.get(episode_id)
            item = Waiting(
                episode_id=episode_id,
                reasons=tuple(dict.fromkeys(Reason(reason) for reason in reasons)),
                opinions=tuple(opinions),
                note=note,
                since_unix_ns=before.since_unix_ns if before else self._now_unix_ns(),
            )
            if item != before:
                staged = temporary / path.name
                write_file(staged, dump_json(asdict(item)))
                os.replace(staged, path)
                fsync_folder(self._folder)
            return item

    def waiting(self) -> list[Waiting]:
        """Return all waiting episodes, oldest first."""
        items = (self.get(episode_id) for episode_id in self.ids())
        return sorted(
            (item for item in items if item is not None), key=lambda item: (item.since_unix_ns, item.episode_id)
        )

    def ids(self) -> list[str]:
        """Return the sorted ids of the waiting episodes without reading their files."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot read {self._folder}: {error.strerror}") from error
        found = (name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))
        return sorted(name for name in found if _ID.fullmatch(name))

    def get(self, episode_id: str) -> Waiting | None:
        """Return a waiting episode; None if it does not wait. A damaged file still counts as waiting."""
        path = self._path(episode_id)
        try:
            return _from_json(episode_id, load_json(read_file(path), name=str(path)))
        except MissingError:
            return None
        except (StoreError, KeyError, TypeError, ValueError):
            return Waiting(episode_id=episode_id, reasons=(Reason.NEW,), note="the file of this entry is damaged")

    def done(self, episode_id: str) -> bool:
        """Remove an episode whose labels are in the store; returns whether it was waiting."""
        path = self._path(episode_id)
        if not path.exists():
            return False
        with writer(self._folder):
            try:
                path.unlink()
            except FileNotFoundError:  # another process removed it
                return False
            fsync_folder(self._folder)
            return True

    def settle(self, labels: Labels) -> bool:
        """Remove an episode that these labels decide; returns whether it was removed.

        If a person labels every episode (`Reason.NEW`), only a person's labels remove it.
        """
        item = self.get(labels.episode_id)
        if item is None or (labels.labeler != HUMAN and Reason.NEW in item.reasons):
            return False
        return self.done(labels.episode_id)

    def _path(self, episode_id: str) -> Path:
        if not _ID.fullmatch(episode_id):
            raise UsageError(f"{episode_id[:80]!r} is not an episode id")
        return self._folder / f"{episode_id}{_ENDING}"


def _from_json(episode_id: str, data: dict[str, Any]) -> Waiting:
    """Raises KeyError, TypeError or ValueError if the file is not an entry of this episode."""
    item = Waiting(
        episode_id=data["episode_id"],
        reasons=tuple(Reason(reason) for reason in data["reasons"]),
        opinions=tuple(Opinion(**one) for one in data["opinions"]),
        note=data["note"],
        since_unix_ns=data["since_unix_ns"],
    )
    for one in item.opinions:
        texts = isinstance(one.labeler, str) and isinstance(one.version, str)
        if not texts or type(one.success) is not bool or type(one.confidence) not in (int, float):
            raise ValueError("an opinion has fields of other types")
    if item.episode_id != episode_id or not isinstance(item.note, str) or type(item.since_unix_ns) is not int:
        raise ValueError("fields have other types")
    return item
