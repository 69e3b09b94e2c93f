"""The newest value of one writer for readers in other processes. Readers never block.

The writer makes a counter odd, writes, and makes it even again. A reader copies the value and keeps the copy only if the
counter was even and equal before and after. A checksum guards against processors that reorder writes. A writer that dies
during a write leaves an odd counter; readers then see no new value.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from dovetail.core.types import Array

__all__ = ["Seqlock"]

_TRIES = 64


class Seqlock:
    """Named arrays in shared memory. `write` sets all of them; `read` returns copies from a single write."""

    def __init__(self, counter: Array, checksum: Array, fields: Mapping[str, Array]) -> None:
        self._counter, self._checksum = counter, checksum  # [1] uint64, [1] uint32
        self._fields = dict(fields)

    @property
    def version(self) -> int:
        """Grows with each write; odd during a write."""
        return int(self._counter[0])

    def write(self, values: Mapping[str, object]) -> int:
        """Return the version of this value."""
        version = self.version | 1  # a dead writer may have left an odd number
        self._counter[0] = version
        for name, field in self._fields.items():
            field[...] = values[name]
        self._checksum[0] = _checksum(self._fields)
        self._counter[0] = version + 1
        return version + 1

    def read(self, *, newer_than: int = 0) -> tuple[int, dict[str, Array]] | None:
        """Return the newest version and value. None if there is none, or if writes interrupted every attempt."""
        for _ in range(_TRIES):
            before = self.version
            if before <= newer_than:
                return None
            if before % 2:
                continue
            values = {name: np.array(field) for name, field in self._fields.items()}
            checksum = int(self._checksum[0])
            if self.version == before and _checksum(values) == checksum:
                return before, values
        return None


def _checksum(fields: Mapping[str, Array]) -> int:
    checksum = 0
    for field in fields.values():
        checksum = zlib.crc32(field.data if field.ndim else field.tobytes(), checksum)
    return checksum
