"""Which episodes a replay has ever been given: evicted ones must not come back when they are sent again.

An id stands for a whole episode; with a mark behind it, for one that has begun, or that was dropped.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from dovetail.core.errors import StoreError

__all__ = ["BEGUN", "DROPPED", "Seen"]

BEGUN, DROPPED = "\0begun", "\0dropped"
_SIZE = 16


class Seen:
    """Digests of ids, in a file that only grows; the writer's counter says how many of them count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests: set[bytes] = set()

    def __contains__(self, episode: str) -> bool:
        return _digest(episode) in self._digests

    def load(self, count: int) -> None:
        try:
            data = self._path.read_bytes()[: _SIZE * count] if count else b""
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        self._digests = {data[i : i + _SIZE] for i in range(0, len(data), _SIZE)}
        if len(self._digests) != count:
            raise StoreError(f"{self._path} does not hold {count} episodes")

    def reserve(self, count: int) -> None:
        """Have the disk's space for `count` more, or fail now."""
        self._write(_SIZE * len(self._digests), bytes(_SIZE * count))

    def add(self, episode: str) -> int:
        """Returns how many there are now."""
        digest = _digest(episode)
        if digest not in self._digests:
            self._write(_SIZE * len(self._digests), digest)
            self._digests.add(digest)
        return len(self._digests)

    def _write(self, place: int, data: bytes) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(descriptor, data, place)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from error


def _digest(episode: str) -> bytes:
    return hashlib.blake2b(episode.encode(), digest_size=_SIZE).digest()
