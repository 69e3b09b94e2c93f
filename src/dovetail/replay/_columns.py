"""Two small things the replay is made of: rows that grow and go round, and queues of row numbers."""

from __future__ import annotations

import numpy as np

from dovetail.core.types import Array

__all__ = ["RingColumn", "RowQueue"]


class RingColumn:
    """Rows of one array, written in order and round the end; `rows` [R, ...] is what is gathered from."""

    def __init__(self, num_rows: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self.rows: Array = np.zeros((num_rows, *shape), dtype)  # zeros of a fresh page cost nothing until written

    def put(self, start: int, values: Array) -> None:
        head = min(len(values), len(self.rows) - start)
        self.rows[start : start + head] = values[:head]
        self.rows[: len(values) - head] = values[head:]

    def grow(self, num_rows: int, *, start: int, count: int) -> None:
        """Move the `count` live rows from `start` on to the front of a larger array."""
        old = self.rows
        self.rows = np.zeros((num_rows, *old.shape[1:]), old.dtype)
        head = min(count, len(old) - start)
        self.rows[:head] = old[start : start + head]
        self.rows[head:count] = old[: count - head]


class RowQueue:
    """Row numbers, appended at one end and dropped at the other, always one contiguous array to draw from."""

    def __init__(self) -> None:
        self._store: Array = np.empty(1024, np.int64)
        self._first = 0
        self._stop = 0

    def __len__(self) -> int:
        return self._stop - self._first

    @property
    def rows(self) -> Array:
        return self._store[self._first : self._stop]

    def append(self, rows: Array) -> None:
        if self._stop + len(rows) > len(self._store):
            live = self.rows.copy()
            if 2 * (len(live) + len(rows)) > len(self._store):
                self._store = np.empty(4 * (len(live) + len(rows)), np.int64)
            self._store[: len(live)] = live
            self._first, self._stop = 0, len(live)
        self._store[self._stop : self._stop + len(rows)] = rows
        self._stop += len(rows)

    def drop(self, count: int) -> None:
        """Forget the oldest `count`."""
        self._first += count

    def renumber(self, *, start: int, num_rows: int) -> None:
        """Follow rows that moved: what was row `start` of a ring of `num_rows` is row 0 now."""
        live = self.rows
        np.subtract(live, start, out=live)
        np.remainder(live, num_rows, out=live)
