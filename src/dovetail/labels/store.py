"""Labels of a run: one append-only file of JSON lines, many per episode.

    labels/
      labels.jsonl      all labels in the order they were added
      committed.json    number of committed bytes, so that a truncated file is detected

Of the labels with the highest priority, those added last are valid; clocks do not matter. A line may retract labels,
then the labels before them are valid again.

The newline commits a line. The body is fsynced before the newline is written. So a line with a newline and a wrong
checksum is damaged, and a last line without a newline was left by a crash: the next writer removes it.
"""

from __future__ import annotations

import bisect
import dataclasses
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dovetail.core.disk import MAX_JSON_BYTES, MissingError, fsync_folder, open_file, open_for_update, writer
from dovetail.core.errors import StoreError
from dovetail.core.types import Labels
from dovetail.labels._label_file import (
    FILE,
    Head,
    LabelRecord,
    before_hole,
    decode,
    encode,
    encode_retraction,
    head,
    is_intact,
    read_committed_size,
    salvage,
    write_committed_size,
)

__all__ = ["Cursor", "LabelRecord", "LabelStore"]


class _Place(NamedTuple):
    """Place of a line in the file. Rewards are read only on demand."""

    offset: int
    num_bytes: int
    head: Head
    retracted: bool = False

    @property
    def is_valid(self) -> bool:
        return not self.retracted and self.head.priority >= 0


Cursor = tuple[int, int]  # inode and offset of a reader


class LabelStore:
    """Labels of a run, shared by several processes. Each query first reads what other processes have added."""

    _places: dict[str, list[_Place]]
    _line_episodes: list[tuple[int, str]]  # offset and episode id of each line
    _inode: int | None
    _committed: int | None  # number of committed bytes when last read
    _offset: int  # everything before it was read and is intact
    _num_lines: int

    def __init__(self, folder: Path | str, *, now_unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = Path(folder)
        self._path = self._folder / FILE
        self._now_unix_ns = now_unix_ns
        self._forget()

    def add(self, labels: Labels) -> None:
        """Append labels durably, unless they repeat the last ones of the same labeler, version and priority.

        So adding twice is harmless, even after other labelers have added theirs.
        """
        line = encode(labels, added_unix_ns=self._now_unix_ns())
        with writer(self._folder) as temporary:
            if self._are_last(labels):
                self._sync()
            else:
                self._append(line, temporary)

    def retract(self, labels: Labels) -> bool:
        """Retract a labeler's last labels durably; the labels before them are valid again.

        Returns False and does nothing if these are not its last labels, so retracting twice is harmless.
        """
        line = encode_retraction(labels, added_unix_ns=self._now_unix_ns())
        with writer(self._folder) as temporary:
            are_last = self._are_last(labels)
            if are_last:
                self._append(line, temporary)
            else:
                self._sync()
            return are_last

    def current(self, episode_id: str) -> Labels | None:
        """Return the valid labels of an episode, the newest of the highest priority; None if there are none."""
        with self._open_indexed() as file:
            places = [place for place in self._places.get(episode_id, ()) if place.is_valid]
            if not places:
                return None
            return self._read(file, max(reversed(places), key=lambda place: place.head.priority)).labels

    def history(self, episode_id: str) -> list[LabelRecord]:
        """Return all labels of an episode, including retracted ones, oldest first."""
        with self._open_indexed() as file:
            return [self._read(file, place) for place in self._places.get(episode_id, ())]

    def ids(self) -> list[str]:
        """Return the sorted ids of all episodes that ever had labels."""
        with self._open_indexed():
            return sorted(self._places)

    def changed(self, since: Cursor | None = None) -> tuple[list[str], Cursor]:
        """Return the episodes whose labels were added or retracted since the cursor, and a new cursor.

        It costs little if nothing has changed. A file that was repaired meanwhile is read from the start.
        """
        with self._open_indexed():
            here = (self._inode or 0, self._offset)
            start = since[1] if since is not None and since[0] == here[0] else 0
            first = bisect.bisect_left(self._line_episodes, (start, ""))
            return list(dict.fromkeys(episode_id for _, episode_id in self._line_episodes[first:])), here

    # ---- writing

    def _are_last(self, labels: Labels) -> bool:
        """Whether these are the last labels of their source that were not retracted."""
        source = (labels.labeler, labels.version, labels.priority)
        with self._open_indexed() as file:
            places = self._places.get(labels.episode_id, ())
            same = [place for place in places if place.head.source == source and not place.retracted]
            last = self._read(file, same[-1]).labels if same else None
        return last is not None and encode(last, added_unix_ns=0) == encode(labels, added_unix_ns=0)

    def _append(self, line: bytes, temporary: Path) -> None:
        self._committed = self._write(line)
        write_committed_size(self._folder, self._committed, temporary=temporary)

    def _write(self, line: bytes) -> int:
        """Write after the last intact line; returns the offset of its end."""
        with open_for_update(self._path) as file:
            if not self._offset:
                fsync_folder(self._folder)  # before the first line, so that a file with lines has a durable name
            file.truncate(self._offset)
            file.seek(self._offset)
            if self._offset and os.pread(file.fileno(), 1, self._offset - 1) != b"\n":
                _write_all(file.fileno(), b"\n")
            _write_all(file.fileno(), line)
            os.fsync(file.fileno())
            end = file.tell()
            _write_all(file.fileno(), b"\n")
        return end

    def _sync(self) -> None:
        """Make the lines durable that a failed call may have written."""
        if self._path.exists():
            with open_for_update(self._path) as file:
                os.fsync(file.fileno())

    # ---- reading

    def _forget(self) -> None:
        self._places, self._line_episodes = {}, []
        self._inode = self._committed = None
        self._offset = self._num_lines = 0

    def _open_indexed(self) -> BinaryIO:
        """The file, all that is new in it taken note of; an empty one, where there is none yet."""
        if self._committed is None:
            self._committed = self._committed_size()  # before the file, which may grow meanwhile
        try:
            file = open_file(self._path)
        except MissingError as error:
            if self._offset or self._committed:
                raise StoreError(f"{self._path} is missing. {self._repair_hint()}") from error
            return io.BytesIO()
        try:
            status = os.fstat(file.fileno())
            if self._inode not in (None, status.st_ino):  # it was repaired: all offsets may have changed
                self._forget()
                file.close()
                return self._open_indexed()
            self._inode = status.st_ino
            if status.st_size < max(self._offset, self._committed):
                raise StoreError(f"{self._path} has lost committed lines. {self._repair_hint()}")
            file.seek(self._offset)
            while line := file.readline(MAX_JSON_BYTES + 1):
                self._index_line(line)
        except OSError as error:
            file.close()
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        except BaseException:
            file.close()
            raise
        return file

    def _index_line(self, line: bytes) -> None:
        body, ended = line.removesuffix(b"\n"), line.endswith(b"\n")
        if (
            not ended
            and (whole := before_hole(body)) is not None
            and self._offset + len(whole) >= (self._committed or 0)
        ):
            line = body = whole  # the next writer removes what is after it
        if body and not is_intact(body):
            if not ended and not salvage(body):
                return  # left by a crash, or being written by another process
            raise StoreError(f"{self._path} line {self._num_lines + 1} is damaged. {self._repair_hint()}")
        if body:  # an empty one is the newline of a line that was read before it had one
            try:
                self._index_record(head(body), len(body))
            except ValueError as error:
                what = f"{self._path} line {self._num_lines + 1}: {error}"
                raise StoreError(f"{what}. {self._repair_hint()}") from error
        self._offset += len(line)
        self._num_lines += ended

    def _index_record(self, head: Head, num_bytes: int) -> None:
        self._line_episodes.append((self._offset, head.episode_id))
        places = self._places.setdefault(head.episode_id, [])
        if not head.retracts:
            places.append(_Place(self._offset, num_bytes, head))
            return
        for number in reversed(range(len(places))):
            if places[number].head.source == head.source and not places[number].retracted:
                places[number] = places[number]._replace(retracted=True)
                return

    def _read(self, file: BinaryIO, place: _Place) -> LabelRecord:
        file.seek(place.offset)
        line = file.read(place.num_bytes)
        if not is_intact(line):
            raise StoreError(f"{self._path} was damaged after it was read. {self._repair_hint()}")
        try:
            return dataclasses.replace(decode(line), retracted=place.retracted)
        except ValueError as error:
            raise StoreError(f"{self._path}: {error}. {self._repair_hint()}") from error

    def _committed_size(self) -> int:
        try:
            return read_committed_size(self._folder)
        except StoreError:
            return 0  # `verify` reports a damaged file; the labels may be intact

    def _repair_hint(self) -> str:
        return f"`dovetail episodes verify {self._folder.parent} --repair` keeps all intact labels."


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
