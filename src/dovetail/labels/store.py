"""Labels of a run: one append-only file of JSON lines, many per episode.

    labels/
      labels.jsonl      what was said, in the order it was said
      committed.json    how many bytes of it were acknowledged, so that a file cut short shows

The newest of the highest priority counts. Newest is what was added last, not what a clock says: clocks jump. What was
said may be taken back: a line is added that says so, and what was said before counts again.

A line is committed by its newline. The body is fsynced before the newline is written, so a line that ends and
does not check out is damage, and an unfinished one at the end is what a crash left: never acknowledged, cut
off by the next writer before it can glue anything to it.
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

from dovetail.core.disk import fsync_folder, writer
from dovetail.core.errors import StoreError
from dovetail.core.types import Labels
from dovetail.labels._lines import (
    FILE,
    Head,
    LabelRecord,
    decode,
    encode,
    encode_retraction,
    head,
    is_intact,
    read_mark,
    salvage,
    write_mark,
)

__all__ = ["Cursor", "LabelRecord", "LabelStore"]


class _Place(NamedTuple):
    """Where a line lies. Rewards are read when somebody asks for them: there may be a month of them."""

    offset: int
    num_bytes: int
    head: Head
    retracted: bool = False

    @property
    def counts(self) -> bool:
        return not self.retracted and self.head.priority >= 0


Cursor = tuple[int, int]  # which file, and how far in it a reader has come


class LabelStore:
    """Every reader sees what any process has added: a question first reads what is new."""

    _places: dict[str, list[_Place]]
    _mentions: list[tuple[int, str]]  # of episodes: where, and which
    _inode: int | None
    _committed: int | None  # so many bytes were acknowledged when we last looked
    _offset: int  # all before it has been read and was whole
    _num_lines: int

    def __init__(self, folder: Path | str, *, now_unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = Path(folder)
        self._path = self._folder / FILE
        self._now_unix_ns = now_unix_ns
        self._forget()

    def add(self, labels: Labels) -> None:
        """Append, durably. What its labeler said last, in this version and priority, is not said again.

        So sending twice is harmless, also late: what others have said meanwhile still counts.
        """
        line = encode(labels, added_unix_ns=self._now_unix_ns())
        with writer(self._folder) as temporary:
            if not self._said_last(labels):
                self._append(line, temporary)

    def retract(self, labels: Labels) -> bool:
        """Take back what a labeler said last, durably: what was said before it counts again.

        Nothing happens where that is not what it said last, so that sending twice is harmless; says whether it was.
        """
        line = encode_retraction(labels, added_unix_ns=self._now_unix_ns())
        with writer(self._folder) as temporary:
            said = self._said_last(labels)
            if said:
                self._append(line, temporary)
            return said

    def current(self, episode_id: str) -> Labels | None:
        """The labels that count for an episode, the newest of the highest priority; or none yet."""
        with self._up_to_date() as file:
            places = [place for place in self._places.get(episode_id, ()) if place.counts]
            if not places:
                return None
            return self._read(file, max(reversed(places), key=lambda place: place.head.priority)).labels

    def history(self, episode_id: str) -> list[LabelRecord]:
        """Everything that was ever said about an episode, oldest first, and what of it was taken back."""
        with self._up_to_date() as file:
            return [self._read(file, place) for place in self._places.get(episode_id, ())]

    def ids(self) -> list[str]:
        """Episodes about which anything was ever said, sorted."""
        with self._up_to_date():
            return sorted(self._places)

    def changed(self, since: Cursor | None = None) -> tuple[list[str], Cursor]:
        """Episodes about which something was said, or taken back, since a reader last looked, and where it is now.

        Cheap where nothing was. A file that was repaired meanwhile is read from its beginning.
        """
        with self._up_to_date():
            here = (self._inode or 0, self._offset)
            start = since[1] if since is not None and since[0] == here[0] else 0
            first = bisect.bisect_left(self._mentions, (start, ""))
            return list(dict.fromkeys(episode_id for _, episode_id in self._mentions[first:])), here

    # ---- writing

    def _said_last(self, labels: Labels) -> bool:
        """Whether this is what its labeler said last and has not taken back."""
        speaker = (labels.labeler, labels.version, labels.priority)
        with self._up_to_date() as file:
            places = self._places.get(labels.episode_id, ())
            same = [place for place in places if place.head.speaker == speaker and not place.retracted]
            last = self._read(file, same[-1]).labels if same else None
        return last is not None and encode(last, added_unix_ns=0) == encode(labels, added_unix_ns=0)

    def _append(self, line: bytes, temporary: Path) -> None:
        self._committed = self._write(line)
        write_mark(self._folder, self._committed, temporary=temporary)

    def _write(self, line: bytes) -> int:
        """Behind all that is whole; returns where it ends."""
        fresh = not self._path.exists()
        with self._path.open("w+b" if fresh else "r+b", buffering=0) as file:
            file.truncate(self._offset)
            file.seek(self._offset)
            if self._offset and os.pread(file.fileno(), 1, self._offset - 1) != b"\n":
                _write_all(file.fileno(), b"\n")
            _write_all(file.fileno(), line)
            os.fsync(file.fileno())
            end = file.tell()
            _write_all(file.fileno(), b"\n")
        if fresh:
            fsync_folder(self._folder)
        return end

    # ---- reading

    def _forget(self) -> None:
        self._places, self._mentions = {}, []
        self._inode = self._committed = None
        self._offset = self._num_lines = 0

    def _up_to_date(self) -> BinaryIO:
        """The file, all that is new in it taken note of; an empty one, where there is none yet."""
        if self._committed is None:
            self._committed = self._read_mark()  # before the file, which only grows meanwhile
        try:
            file = self._path.open("rb")
        except FileNotFoundError as error:
            if self._offset or self._committed:
                raise StoreError(f"{self._path} has gone; {self._what_to_do()}") from error
            return io.BytesIO()
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        try:
            status = os.fstat(file.fileno())
            if self._inode not in (None, status.st_ino):  # it was repaired: all may lie elsewhere
                self._forget()
                file.close()
                return self._up_to_date()
            self._inode = status.st_ino
            if status.st_size < max(self._offset, self._committed):
                raise StoreError(f"{self._path} has lost lines that were there before; {self._what_to_do()}")
            file.seek(self._offset)
            for line in file:
                self._take_note(line)
        except OSError as error:
            file.close()
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        except BaseException:
            file.close()
            raise
        return file

    def _take_note(self, line: bytes) -> None:
        body, ended = line.removesuffix(b"\n"), line.endswith(b"\n")
        if body and not is_intact(body):
            if not ended and not salvage(body):
                return  # what a crash left, or what somebody is writing at this moment
            raise StoreError(f"{self._path} line {self._num_lines + 1} is damaged; {self._what_to_do()}")
        if body:  # an empty one is the newline of a line read before it had one
            self._take_in(head(body), len(body))
        self._offset += len(line)
        self._num_lines += ended

    def _take_in(self, head: Head, num_bytes: int) -> None:
        self._mentions.append((self._offset, head.episode_id))
        places = self._places.setdefault(head.episode_id, [])
        if not head.retracts:
            places.append(_Place(self._offset, num_bytes, head))
            return
        for number in reversed(range(len(places))):
            if places[number].head.speaker == head.speaker and not places[number].retracted:
                places[number] = places[number]._replace(retracted=True)
                return

    def _read(self, file: BinaryIO, place: _Place) -> LabelRecord:
        file.seek(place.offset)
        line = file.read(place.num_bytes)
        if not is_intact(line):
            raise StoreError(f"{self._path} was damaged since it was first read; {self._what_to_do()}")
        return dataclasses.replace(decode(line), retracted=place.retracted)

    def _read_mark(self) -> int:
        try:
            return read_mark(self._folder)
        except StoreError:
            return 0  # a damaged mark is for `verify` to report: the labels may be whole

    def _what_to_do(self) -> str:
        return f"`dovetail episodes verify {self._folder.parent} --repair` keeps all that is whole"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
