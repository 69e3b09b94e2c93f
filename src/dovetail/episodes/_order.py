"""The order in which episodes were committed: the append-only file `.order` with one line each.

    + 17 20260101T093000-123456789-panda-9f86d081c3a1 5c3f09ab
    - 17 20260101T093000-123456789-panda-9f86d081c3a1 90d1aa02     removed, even if a crash has left its folder

The number counts commits. The manifest contains it too, so this file can be rebuilt. A clock that jumps changes ids but
not this order. The last field is a checksum. Damaged lines and an incomplete last line are ignored; `verify` reports
both. A line without a folder is skipped.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dovetail.core.disk import fsync_folder, open_file, open_for_update
from dovetail.core.errors import StoreError
from dovetail.episodes.ids import is_episode_id

__all__ = ["ORDER", "Order", "append", "file_state", "line", "list_episodes", "read"]

ORDER = ".order"
_MAX_LINE_BYTES = 512
_MIN_LINE_BYTES = len("+ 0 x 01234567")
_BLOCK_BYTES = 1 << 17
_MAX_DAMAGED = 100  # a crafted file may have millions


@dataclass(slots=True)
class Order:
    """Contents of the file: the commit number of each episode that was not removed."""

    numbers: dict[str, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    damaged: list[int] = field(default_factory=list)  # the first of the damaged lines, counted from 1
    torn: bool = False
    newest: int = 0  # highest commit number

    def add(self, removed: bool, number: int, episode_id: str) -> None:
        """Add what a line says."""
        self.newest = max(self.newest, number)
        if removed:
            self.numbers.pop(episode_id, None)
            self.removed.add(episode_id)
        else:
            self.numbers[episode_id] = number
            self.removed.discard(episode_id)

    def sort(self, ids: Iterable[str]) -> list[str]:
        """Sort ids by commit, without removed ones. Ids without a line (after a crash) come last, sorted by name."""
        unknown = self.newest + 1
        there = (episode_id for episode_id in ids if episode_id not in self.removed)
        return sorted(there, key=lambda episode_id: (self.numbers.get(episode_id, unknown), episode_id))


def list_episodes(folder: Path) -> list[str]:
    """Return the sorted ids of the existing folders. A link to a folder is not an episode."""
    if not folder.is_dir():
        return []
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and is_episode_id(e.name))
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}") from error


def file_state(folder: Path) -> object:
    """Return a value that changes whenever `.order` is written."""
    try:
        found = (folder / ORDER).lstat()
    except OSError:  # missing, or a loop of links
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def line(number: int, episode_id: str, *, removed: bool = False) -> bytes:
    text = f"{'-' if removed else '+'} {number} {episode_id}".encode()
    return text + b" %08x\n" % zlib.crc32(text)


def read(folder: Path) -> Order:
    """Read `.order`; a missing file counts as empty."""
    order = Order()
    path = folder / ORDER
    if not path.exists():
        return order
    num_before = 0
    with open_file(path) as file:
        for lines, order.torn in _blocks(file):
            for count, text in enumerate(lines, start=num_before + 1):
                entry = _parse(text) if len(text) >= _MIN_LINE_BYTES else None
                if entry is not None:
                    order.add(*entry)
                elif len(order.damaged) < _MAX_DAMAGED:
                    order.damaged.append(count)
            num_before += len(lines)
    return order


def _blocks(file: BinaryIO) -> Iterator[tuple[list[bytes], bool]]:
    """Lines of a part of the file, and whether more than these is in the part. A longer line than `append` writes is cut."""
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        rest = rest[: _MAX_LINE_BYTES + 1]
        yield lines, bool(rest)


def _parse(text: bytes) -> tuple[bool, int, str] | None:
    """Whether it was removed, number and id; None for a damaged line."""
    try:
        sign, number, episode_id, _ = text.decode("ascii").split(" ")
        removed = sign == "-"
        fits = line(int(number), episode_id, removed=removed) == text + b"\n"
        return (removed, int(number), episode_id) if fits else None
    except ValueError:
        return None


def append(folder: Path, *lines: bytes) -> None:
    """Append lines durably, after removing an incomplete last line. The caller must hold the writer lock."""
    path = folder / ORDER
    with open_for_update(path) as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            fsync_folder(folder)  # before the first line, so that a file with lines has a durable name
        before = max(0, size - _MAX_LINE_BYTES)
        file.seek(before)
        tail = file.read()
        if before and b"\n" not in tail:
            raise StoreError(
                f"the end of {path} is damaged. Repair it with `dovetail episodes verify RUN --repair`."
            )
        whole = before + tail.rfind(b"\n") + 1
        file.truncate(whole)
        file.seek(whole)
        data = b"".join(lines)
        while data:
            data = data[os.write(file.fileno(), data) :]
        os.fsync(file.fileno())
