"""Ring buffers in files. The writer uses `pwrite`, so that a full disk raises an error; readers map the same pages.

Rows, frames and records are numbered from 0 without end. Number n is stored at position n modulo the ring's length.
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
_MIN_FILE_BYTES = 1 << 16  # of a file that is not empty


def fence() -> None:
    """Full memory barrier on every processor.

    Two lock sections are needed. Memory accesses before and after a single one may move into it and then be reordered
    (this happens on ARM), but accesses before the first release stay before the second acquisition. Each call uses a new
    lock, so it never waits, and a forked child never finds the lock taken.
    """
    lock = threading.Lock()
    with lock:
        pass
    with lock:
        pass


class Ring:
    """Ring of at most `num_items` items of one shape. The writer opens it with `writable=True`.

    The file doubles in size as it fills, so a run folder is at most about twice as large as its contents, even for
    programs that do not support sparse files. `remap` maps the file again after it has grown.
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
            self._close = weakref.finalize(self, os.close, self._file)
            if os.fstat(self._file).st_size > num_items * self._item_bytes:
                raise StoreError(f"{path} is larger than {num_items} items of {self._item_bytes} bytes")
            self._size = 0
            self._items: Array = np.empty((0, *shape), self._dtype)
            self.remap()
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror or error}") from error

    def remap(self) -> int:
        """Map the file again if it has grown; returns how many items fit into the file now."""
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
        """Return copies of items by their numbers."""
        if not len(self._items):  # mapped before the first item was written, counters read afterwards
            return np.zeros((*numbers.shape, *self._shape), self._dtype)
        values: Array = np.take(self._items, numbers % self.num_items, axis=0, mode="clip")
        return values

    def read_into(self, numbers: Array, out: Array) -> None:
        """Copy items by their numbers into an array.

        A reader that the writer has overtaken may pass any number. "clip" then copies some item, and the reader detects
        the conflict afterwards. With "raise" numpy would also gather into a copy of `out` first.
        """
        np.take(self._items, numbers % self.num_items, axis=0, out=out, mode="clip")

    def prefetch(self, numbers: Array) -> None:
        """Ask the kernel to read these items from disk in parallel if they are not in memory.

        Page faults would read them one by one, with readahead around each. That is fifty times slower.
        """
        places = np.unique(numbers % self.num_items)
        for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            first, count = int(run[0]) * self._item_bytes, len(run) * self._item_bytes
            os.posix_fadvise(self._file, first, count, os.POSIX_FADV_WILLNEED)

    def write(self, number: int, values: Array) -> None:
        """Write values [N, ...] from `number` on; continue at the start of the ring after its end."""
        values = np.ascontiguousarray(values, self._dtype)
        start = number % self.num_items
        self._grow(min(start + len(values), self.num_items))
        head = min(len(values), self.num_items - start)
        self._put(values[:head], start)
        if head < len(values):
            self._put(values[head:], 0)

    def _grow(self, num_items: int) -> None:
        if num_items > len(self._items):
            at_least = max(num_items, 2 * len(self._items), _MIN_FILE_BYTES // max(1, self._item_bytes))
            try:
                os.ftruncate(self._file, min(self.num_items, at_least) * self._item_bytes)  # sparse
                self.remap()
            except OSError as error:
                raise self._write_error(error) from error

    def _put(self, values: Array, start: int) -> None:
        data, place = values.reshape(-1).view(np.uint8).data, start * self._item_bytes
        try:
            while data:
                written = os.pwrite(self._file, data, place)
                data, place = data[written:], place + written
        except OSError as error:
            raise self._write_error(error) from error

    def reserve(self, number: int, count: int) -> None:
        """Reserve disk space for `count` items from `number` on. Raises StoreError before anything has changed."""
        start = number % self.num_items
        self._grow(min(start + count, self.num_items))
        for first, last in ((start, min(start + count, self.num_items)), (0, start + count - self.num_items)):
            if last > first:
                try:
                    os.posix_fallocate(self._file, first * self._item_bytes, (last - first) * self._item_bytes)
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise self._write_error(error) from error  # others: the filesystem cannot reserve space

    def _write_error(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot write {self._path}: {error.strerror}. Free disk space or lower replay.capacity_gb."
        )

    def sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._write_error(error) from error

    def close(self) -> None:
        self._close()
        self._file = -1  # the system may reuse the descriptor for another file


def ring_paths(folder: Path, layout: Layout) -> Mapping[str, tuple[Path, int, tuple[int, ...], Any]]:
    """Return path, number of items, shape and dtype of every ring of a replay, by name."""
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
    """One page of shared integers with atomic reads and writes. `version` is odd while the others change.

    A reader's copy is valid if `version` was the same even number before and after; see `Snapshot`.
    """

    NAMES = (
        "magic",
        "version",
        "relabels",  # odd while rewards change in place
        "retired",  # the writer no longer uses these files: open the folder again
        "clean",  # all data is on disk, not only in the page cache
        "num_born",  # rows ever appended, without rows that were only moved
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
                    os.posix_fallocate(descriptor, 0, _PAGE)  # the mapping needs an allocated page
                elif size != _PAGE:
                    raise StoreError(f"{path} has {size} bytes, expected {_PAGE}")
                page = mmap.mmap(descriptor, _PAGE, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror or error}") from error
        self._path = path
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
        try:
            self._page.flush()
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror or error}") from error


def short_ring(layout: Layout, rings: Mapping[str, Ring], counters: Counters) -> str | None:
    """The name of a ring whose file is shorter than the counters say, which means that it was cut; None if all are complete.

    Files grow before the counters refer to their new part, so counters are read first."""
    heads = dict.fromkeys(layout.columns, counters["head_row"])
    heads |= {f"frames/{key}": int(counters.head_frame[i]) for i, key in enumerate(layout.cameras)}
    heads |= {f"{kind}s": counters[f"head_{kind}"] for kind in ("episode", "segment", "span")}
    fence()
    return next(
        (name for name, head in heads.items() if rings[name].remap() < min(head, rings[name].num_items)), None
    )
