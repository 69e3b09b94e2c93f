"""One writer's newest value for readers in other processes, without a lock: nobody ever waits for the writer.

The writer makes a counter odd, writes, and makes it even again; a reader copies, and takes what it copied only if the
counter was even and the same before and after. A checksum stands beside it, because a counter alone trusts the
processor to show writes in order. A writer that dies in between leaves an odd counter: readers then see nothing new.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from dovetail.core.types import Array

__all__ = ["Seqlock"]

_TRIES = 64


class Seqlock:
    """Named arrays over shared memory. `write` all of them, or `read` copies of what one write left."""

    def __init__(self, counter: Array, checksum: Array, fields: Mapping[str, Array]) -> None:
        self._counter, self._checksum = counter, checksum  # [1] uint64, [1] uint32
        self._fields = dict(fields)

    @property
    def version(self) -> int:
        """Of what is there: even and growing, odd while it is being written."""
        return int(self._counter[0])

    def write(self, values: Mapping[str, object]) -> int:
        """Returns the version of this value."""
        version = self.version | 1  # also from the odd number that a dead writer left
        self._counter[0] = version
        for name, field in self._fields.items():
            field[...] = values[name]
        self._checksum[0] = _checksum(self._fields)
        self._counter[0] = version + 1
        return version + 1

    def read(self, *, newer_than: int = 0) -> tuple[int, dict[str, Array]] | None:
        """The newest value and its version; None if there is none, or if no whole one could be caught."""
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
