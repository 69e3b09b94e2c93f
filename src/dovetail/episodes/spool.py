"""The spool: episodes on the robot's own disk while they are recorded, until the log has committed them.

    spool/
      20260101T093000-123456789-panda-9f86d081c3a1.journal     append-only: start, segments, end (see `_journal`)

Transfer to the log, which may be killed anywhere and repeated:

    for episode_id in spool.pending():
        episode = spool.load(episode_id)
        if episode is not None:  # else it ended before its first step was durable
            log.commit(episode)
        spool.acknowledge(episode_id)

The recording process locks its journal, and the kernel releases the lock when the process ends. So a journal without an
end and without a lock was left by a crash: it is loaded as `aborted`, up to its last intact record. A journal gets its
name only after it is locked and its start is durable. Any number of processes may share a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.core.disk import MissingError, dump_json, fsync_folder, make_folder, open_file
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Episode, EpisodeStart, Observation, Outcome, Segment
from dovetail.episodes import _journal
from dovetail.episodes._columns import Columns
from dovetail.episodes._journal import SUFFIX, Kind, is_recording, number_of, read_journal
from dovetail.episodes.ids import check_episode_id

__all__ = ["DAMAGED", "Spool", "Tail"]

DAMAGED = ".damaged"
_NEW = ".new"


@dataclass(frozen=True, slots=True)
class Tail:
    """Complete segments of an episode that may still be running, and the offset of the next segment."""

    start: EpisodeStart
    segments: tuple[Segment, ...]
    offset: int


@dataclass(slots=True)
class _OpenJournal:
    """The journal being written. Everything before `end` is durable."""

    episode_id: str
    descriptor: int
    end: int
    torn: bool = False  # a failed write may have left bytes after `end`
    num_steps: int = 0
    layout: dict[str, tuple[Any, ...]] = field(default_factory=dict)


class Spool:
    """Records one episode at a time; returns finished episodes of this and any other process."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._writing: _OpenJournal | None = None
        self._number = 0  # of the newest episode; gives their order without a clock
        self._has_folder = False  # durably

    @property
    def folder(self) -> Path:
        return self._folder

    def begin(self, start: EpisodeStart) -> None:
        """Create a journal durably. An earlier episode that was never ended counts as aborted."""
        path = self._path(start.id)
        self.close()
        with self._errors():
            if not self._has_folder:
                make_folder(self._folder)
                self._has_folder = True
            self._sweep()
            self._remove_without_steps(path)
            self._number = 1 + max(self._number, *(number_of(other) for other in self._journals()), 0)
            record = _journal.pack(Kind.START, dump_json({"number": self._number, **start.to_json()}))
            descriptor = None
            while descriptor is None:
                descriptor = self._open(path, record)
        self._writing = _OpenJournal(episode_id=start.id, descriptor=descriptor, end=len(record))

    def append(self, segment: Segment, *, after: Observation) -> None:
        """Append the next steps and the observation after them durably.

        If it fails, the journal is unchanged and the same segment may be appended again.
        """
        writing = self._current()
        name = f"episode {writing.episode_id}"
        if segment.episode_id != writing.episode_id:
            raise UsageError(f"cannot append to {segment.episode_id}: {name} is being recorded")
        if segment.first != writing.num_steps:
            raise UsageError(f"{name} has {writing.num_steps} steps, so step {segment.first} is not the next one")
        columns = Columns.join([segment], after, name=name)
        layout = {key: (value.dtype, value.shape[1:]) for key, value in columns.steps.items()}
        layout |= {key: (pieces[0].dtype, pieces[0].shape[1:]) for key, pieces in columns.images.items()}
        if writing.num_steps and layout != writing.layout:
            odd = sorted(key for key in layout | writing.layout if layout.get(key) != writing.layout.get(key))
            raise StoreError(f"{name}: these columns changed since the first segment: {', '.join(odd)}")
        self._write(_journal.pack(Kind.SEGMENT, _journal.pack_segment(segment, columns)))
        writing.num_steps += len(segment)
        writing.layout = layout

    def end(
        self,
        *,
        outcome: Outcome,
        judgement: Outcome | None,
        reset_s: float | None = None,
        has_success: bool = True,
    ) -> None:
        """Close the journal. The episode is then pending."""
        self._current()
        end = {
            "outcome": outcome.value,
            "judgement": judgement.value if judgement else None,
            "reset_s": reset_s,
            "has_success": has_success,
        }
        self._write(_journal.pack(Kind.END, dump_json(end)))
        self.close()

    def close(self) -> None:
        """Close the journal of a running episode, if any. It is then pending, as `aborted`."""
        if self._writing is not None:
            os.close(self._writing.descriptor)
            self._writing = None

    def pending(self) -> list[str]:
        """Return the ids of episodes that are no longer recorded, in the order of their starts."""
        waiting = [path for path in self._journals() if not is_recording(path)]
        return [
            path.name.removesuffix(SUFFIX) for path in sorted(waiting, key=lambda path: (number_of(path), path))
        ]

    def running(self) -> list[str]:
        """Return the ids of episodes that this or another process is recording."""
        return [path.name.removesuffix(SUFFIX) for path in self._journals() if is_recording(path)]

    @property
    def holds_steps(self) -> bool:
        """Whether any journal contains steps. Damaged journals count, because they may contain some."""
        if any(self._folder.glob(f"*{DAMAGED}")):
            return True
        try:
            tails = [self.tail(path.name.removesuffix(SUFFIX)) for path in self._journals()]
        except StoreError:
            return True
        return any(tail is not None and tail.segments for tail in tails)

    def tail(self, episode_id: str, *, offset: int = 0) -> Tail | None:
        """Return the segments recorded after `offset`; None if the episode is not in the spool."""
        path = self._path(episode_id)
        try:
            with open_file(path) as file:
                return Tail(*_journal.read_segments(file, offset, name=str(path)))
        except MissingError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error

    def load(self, episode_id: str) -> Episode | None:
        """Load an episode; None if it has no complete segment or was acknowledged meanwhile.

        If the end is missing or a record is damaged, the part before it is loaded as `aborted`. A damaged start raises
        StoreError, because the steps after it may be worth a manual repair.
        """
        path = self._path(episode_id)
        if is_recording(path):
            raise StoreError(f"episode {episode_id} in {self._folder} is still being recorded. Load it later.")
        try:
            with open_file(path) as file:
                return read_journal(file, name=str(path))
        except MissingError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error

    def is_damaged(self, episode_id: str) -> bool:
        """Whether changed bytes keep `load` from returning all records. An incomplete last record does not count."""
        path = self._path(episode_id)
        try:
            with open_file(path) as file:
                rest = _journal.remainder(file, max((record.end for record in _journal.read(file)), default=0))
        except MissingError:
            return False
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        return bool(rest.num_bytes) and not rest.torn

    def set_aside(self, episode_id: str) -> Path:
        """Rename a damaged journal, so that `verify` reports it and a person can inspect it."""
        path = self._path(episode_id)
        aside = path.with_name(path.name + DAMAGED)
        with self._errors():
            os.replace(path, aside)
            fsync_folder(self._folder)
        return aside

    def acknowledge(self, episode_id: str) -> None:
        """Delete an episode that the log has committed. Repeating it is harmless."""
        path = self._path(episode_id)
        if is_recording(path):
            raise UsageError(f"episode {episode_id} in {self._folder} is still being recorded. End it first.")
        with self._errors():
            if path.exists():
                path.unlink(missing_ok=True)
                fsync_folder(self._folder)

    def _path(self, episode_id: str) -> Path:
        return self._folder / f"{check_episode_id(episode_id)}{SUFFIX}"

    def _journals(self) -> list[Path]:
        return [path for path in self._folder.glob(f"*{SUFFIX}") if not path.name.startswith(".")]

    def _current(self) -> _OpenJournal:
        if self._writing is None:
            raise UsageError("no episode is being recorded. Call begin() first.")
        return self._writing

    def _open(self, path: Path, record: bytes) -> int | None:
        """Create a locked journal with its first record; None if another process removed the temporary file: retry."""
        new_path = path.with_name(f".{secrets.token_hex(8)}{_NEW}")
        descriptor = os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        linked = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _write_at(descriptor, record, 0)
            os.link(new_path, path)
            linked = True
            fsync_folder(self._folder)
        except BaseException as error:
            if linked:
                with contextlib.suppress(OSError):  # else the next `begin` removes it
                    path.unlink()
            os.close(descriptor)
            if isinstance(error, FileExistsError):
                raise UsageError(f"episode {path.stem} is already in {self._folder}") from error
            if isinstance(error, FileNotFoundError):
                return None
            raise
        finally:
            with contextlib.suppress(OSError):  # else the next `begin` removes it
                new_path.unlink(missing_ok=True)
        return descriptor

    def _sweep(self) -> None:
        """Remove temporary files of processes that were killed in `_open`."""
        for path in self._folder.glob(f".*{_NEW}"):
            if not is_recording(path):
                path.unlink(missing_ok=True)

    def _remove_without_steps(self, path: Path) -> None:
        """Remove a journal that has only a start: an earlier `begin` failed, or its process was killed after it."""
        if path.exists() and not is_recording(path):
            with open_file(path) as file:
                has_steps = any(record.kind is not Kind.START for record in _journal.read(file))
            if not has_steps:
                path.unlink()

    def _write(self, record: bytes) -> None:
        writing = self._current()
        with self._errors():
            try:
                if writing.torn:
                    os.ftruncate(writing.descriptor, writing.end)
                writing.torn = True
                _write_at(writing.descriptor, record, writing.end)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(writing.descriptor, writing.end)
                    writing.torn = False
                raise
            writing.torn = False
        writing.end += len(record)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StoreError(
                f"cannot write to spool {self._folder}: {reason}. Earlier records are kept."
            ) from error


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
    os.fdatasync(descriptor)
