"""Rings in files: the writer writes with `pwrite`, so that a full disk is an error; readers map the same pages.

Rows, frames and records are numbered from the beginning of time; number n lies at n modulo the ring's length.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.replay._layout import MAX_CAMERAS, TABLES, Layout

__all__ = ["Counters", "Ring", "fence", "ring_paths"]

_PAGE = 4096
_SMALLEST = 1 << 16  # bytes of a file that has anything in it


def fence() -> None:
    """Nothing is reordered across it, on any processor.

    Twice, because one lock lets what is before it and after it in, where they may change places (on ARM they do);
    what was before the first release stays before the second acquisition. A new lock each time: nobody ever waits for
    it, and no child of a fork finds it taken.
    """
    lock = threading.Lock()
    with lock:
        pass
    with lock:
        pass


class Ring:
    """Items of one shape, `num_items` of them at most. A writer opens it with `writable`.

    The file grows as it is filled, by doubling, so that a run's folder is never larger than about twice what is in
    it, also to programs that know nothing of sparse files. What was mapped before it grew is mapped anew.
    """

    def __init__(
        self, path: Path, *, num_items: int, shape: tuple[int, ...], dtype: Any, writable: bool = False
    ) -> None:
        self._path = path
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self.num_items = num_items
        self._item_bytes = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY, 0o644)
            self._let_go = weakref.finalize(self, os.close, self._file)
            if os.fstat(self._file).st_size > num_items * self._item_bytes:
                raise StoreError(f"{path} is larger than it can be")
            self._size = 0
            self._items: Array = np.empty((0, *shape), self._dtype)
            self.look()
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror or error}") from error

    def look(self) -> int:
        """Map what the file has grown by; returns how many items there is room for so far."""
        size = os.fstat(self._file).st_size if self._item_bytes else 0
        if size != self._size and size >= self._item_bytes:
            count = size // self._item_bytes
            page = mmap.mmap(self._file, size, prot=mmap.PROT_READ)
            flat: Array = np.frombuffer(page, np.uint8, count * self._item_bytes)
            self._items, self._size = flat.view(self._dtype).reshape(count, *self._shape), size
        elif not self._item_bytes:
            self._items = np.empty((self.num_items, *self._shape), self._dtype)
        return len(self._items)

    def get(self, numbers: Array) -> Array:
        """Copies of items by their numbers."""
        if not len(self._items):  # who looked before the first one was written, and counted after it
            return np.zeros((*numbers.shape, *self._shape), self._dtype)
        values: Array = np.take(self._items, numbers % self.num_items, axis=0, mode="clip")
        return values

    def take(self, numbers: Array, out: Array) -> None:
        """The same into an array.

        A reader that was overtaken may come with any number; "clip" gives it something, and it looks afterwards.
        Under "raise" numpy would also gather into a copy of `out` first.
        """
        np.take(self._items, numbers % self.num_items, axis=0, out=out, mode="clip")

    def will_need(self, numbers: Array) -> None:
        """Have the kernel read these from the disk, all at once, where they are not in memory.

        Left to page faults it would read them one after the other, and much around each: fifty times as slow.
        """
        places = np.unique(numbers % self.num_items)
        for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            first, count = int(run[0]) * self._item_bytes, len(run) * self._item_bytes
            os.posix_fadvise(self._file, first, count, os.POSIX_FADV_WILLNEED)

    def write(self, number: int, values: Array) -> None:
        """Put values [N, ...] at `number` and on, round the end."""
        values = np.ascontiguousarray(values, self._dtype)
        start = number % self.num_items
        self._grow(min(start + len(values), self.num_items))
        head = min(len(values), self.num_items - start)
        self._put(values[:head], start)
        if head < len(values):
            self._put(values[head:], 0)

    def _grow(self, num_items: int) -> None:
        if num_items > len(self._items):
            wanted = min(
                self.num_items, max(num_items, 2 * len(self._items), _SMALLEST // max(1, self._item_bytes))
            )
            try:
                os.ftruncate(
                    self._file, wanted * self._item_bytes
                )  # sparse: what was never written takes no space
            except OSError as error:
                raise self._no_room(error) from error
            self.look()

    def _put(self, values: Array, start: int) -> None:
        data, place = values.reshape(-1).view(np.uint8).data, start * self._item_bytes
        try:
            while data:
                written = os.pwrite(self._file, data, place)
                data, place = data[written:], place + written
        except OSError as error:
            raise self._no_room(error) from error

    def reserve(self, number: int, count: int) -> None:
        """Have the disk's space for `count` items at `number` and on, or fail while nothing has changed yet."""
        start = number % self.num_items
        self._grow(min(start + count, self.num_items))
        for first, last in ((start, min(start + count, self.num_items)), (0, start + count - self.num_items)):
            if last > first:
                try:
                    os.posix_fallocate(self._file, first * self._item_bytes, (last - first) * self._item_bytes)
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise self._no_room(error) from error  # others: a filesystem that cannot promise

    def _no_room(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write {self._path}: {error.strerror}; make room, or lower replay.capacity_gb")

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        self._let_go()
        self._file = -1  # the number may soon be another file's


def ring_paths(folder: Path, layout: Layout) -> Mapping[str, tuple[Path, int, tuple[int, ...], Any]]:
    """Every ring of a replay by name: its file, number of items, shape and dtype."""
    columns = {
        name: (folder / f"rows-{quote(name, safe='')}.bin", layout.num_rows, spec.shape, spec.dtype)
        for name, spec in layout.columns.items()
    }
    frames = {
        f"frames/{key}": (folder / f"frames-{quote(key, safe='')}.bin", layout.num_rows, spec.shape, spec.dtype)
        for key, spec in layout.frames.items()
    }
    tables = {name: (folder / f"{name}.bin", layout.num_records, (), dtype) for name, dtype in TABLES.items()}
    return {**columns, **frames, **tables}


class Counters:
    """One page of shared numbers, each read and written whole. `version` is odd while the others change.

    A reader takes what it needs between two reads of the same even `version`; see `Snapshot`.
    """

    NAMES = (
        "magic",
        "version",
        "relabels",  # odd while rewards change in place
        "retired",  # these files are no longer written: open the folder again
        "clean",  # everything is on the disk, not only in its cache
        "num_born",  # rows that were ever new: moved ones are not
        "head_row",
        "tail_row",
        "head_segment",
        "tail_segment",
        "head_span",
        "tail_span",
        "head_episode",
        "tail_episode",
        "num_seen",
        "newest_version",
    )
    MAGIC = 0x444F5645_5441494C

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                if writable and size == 0:
                    os.posix_fallocate(descriptor, 0, _PAGE)  # written through the map: there must be a page
                elif size != _PAGE:
                    raise StoreError(f"{path} has {size} bytes, not {_PAGE}")
                page = mmap.mmap(descriptor, _PAGE, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror or error}") from error
        self._page = page
        self._numbers: Array = np.frombuffer(page, np.int64, 256)
        self._boot: Array = np.frombuffer(page, np.uint8, 64, offset=2048)
        self._at = {name: index for index, name in enumerate(self.NAMES)}
        self.head_frame: Array = self._numbers[64 : 64 + MAX_CAMERAS]
        self.tail_frame: Array = self._numbers[96 : 96 + MAX_CAMERAS]

    def __getitem__(self, name: str) -> int:
        return int(self._numbers[self._at[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._numbers[self._at[name]] = value

    @property
    def boot_id(self) -> str:
        return bytes(self._boot).rstrip(b"\0").decode("ascii", "replace")

    @boot_id.setter
    def boot_id(self, value: str) -> None:
        self._boot[:] = np.frombuffer(value.encode()[:64].ljust(64, b"\0"), np.uint8)

    def sync(self) -> None:
        self._page.flush()
