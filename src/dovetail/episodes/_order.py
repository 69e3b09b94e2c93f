"""The order in which episodes were committed: one line each in `.order`, appended and never changed.

    + 17 20260101T093000-123456789-panda-9f86d081c3a1 5c3f09ab
    - 17 20260101T093000-123456789-panda-9f86d081c3a1 90d1aa02     removed, even if a crash has left its folder

The number counts commits, and stands in the manifest too, so that this file can be made again. A clock that jumps
changes ids, and nothing here. The last field is a checksum: a line that does not check out is ignored, and so is
what a crash left behind the last newline; `verify` finds both. A line whose folder is gone is skipped.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.core.disk import fsync_folder, read_file
from dovetail.core.errors import StoreError
from dovetail.episodes.ids import is_episode_id

__all__ = ["ORDER", "Order", "append", "line", "listed", "mark", "read"]

ORDER = ".order"
_LONGEST = 512  # bytes, more than a line has


@dataclass(slots=True)
class Order:
    """What the file says: the commit number of each episode that is said to be there."""

    numbers: dict[str, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    damaged: list[int] = field(default_factory=list)  # lines, counted from 1
    torn: bool = False
    newest: int = 0  # number

    def sort(self, ids: Iterable[str]) -> list[str]:
        """Committed order, without what was removed; ids that it does not know (a crash came between) last, sorted."""
        unknown = self.newest + 1
        there = (episode_id for episode_id in ids if episode_id not in self.removed)
        return sorted(there, key=lambda episode_id: (self.numbers.get(episode_id, unknown), episode_id))


def listed(folder: Path) -> list[str]:
    """Ids of the folders that are there, sorted."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and is_episode_id(entry.name))


def mark(folder: Path) -> object:
    """Equal as long as nobody has written `.order`."""
    try:
        found = (folder / ORDER).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def line(number: int, episode_id: str, *, removed: bool = False) -> bytes:
    text = f"{'-' if removed else '+'} {number} {episode_id}".encode()
    return text + b" %08x\n" % zlib.crc32(text)


def read(folder: Path) -> Order:
    """What `.order` holds; an empty one where there is none."""
    order = Order()
    path = folder / ORDER
    if not path.exists():
        return order
    *lines, tail = read_file(path).split(b"\n")
    order.torn = bool(tail)
    for count, text in enumerate(lines, start=1):
        try:
            sign, number, episode_id, _ = text.decode("ascii").split(" ")
            if line(int(number), episode_id, removed=sign == "-") != text + b"\n":
                raise ValueError
        except ValueError:
            order.damaged.append(count)
            continue
        order.newest = max(order.newest, int(number))
        if sign == "+":
            order.numbers[episode_id] = int(number)
            order.removed.discard(episode_id)
        else:
            order.numbers.pop(episode_id, None)
            order.removed.add(episode_id)
    return order


def append(folder: Path, *lines: bytes) -> None:
    """Add lines durably, after cutting off what a crash left of one. Only for who holds the writer's lock."""
    path = folder / ORDER
    fresh = not path.exists()
    with path.open("w+b" if fresh else "r+b", buffering=0) as file:
        before = max(0, file.seek(0, os.SEEK_END) - _LONGEST)
        file.seek(before)
        tail = file.read()
        if before and b"\n" not in tail:
            raise StoreError(f"{path} is damaged at its end: `dovetail episodes verify RUN --repair` mends it")
        whole = before + tail.rfind(b"\n") + 1
        file.truncate(whole)
        file.seek(whole)
        data = b"".join(lines)
        while data:
            data = data[os.write(file.fileno(), data) :]
        os.fsync(file.fileno())
    if fresh:
        fsync_folder(folder)
