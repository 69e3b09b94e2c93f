"""Ids of all episodes ever added to a replay. Evicted episodes must not return when they are added again.

A plain id stands for a complete episode. The suffix BEGUN marks a running one, DROPPED one that was dropped.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from dovetail.core.disk import fsync_folder
from dovetail.core.errors import StoreError

__all__ = ["BEGUN", "DROPPED", "AddedIds"]

BEGUN, DROPPED = "\0begun", "\0dropped"
_SIZE = 16


class AddedIds:
    """Digests of ids in an append-only file. The writer's counter `num_seen` says how many are valid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests: set[bytes] = set()
        self._prepared = b""  # written after the last digest, not counted

    def __contains__(self, episode: str) -> bool:
        return _digest(episode) in self._digests

    def load(self, count: int) -> None:
        try:
            data = self._path.read_bytes()[: _SIZE * count] if count else b""
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        self._digests = {data[i : i + _SIZE] for i in range(0, len(data), _SIZE)}
        self._prepared = b""
        if len(self._digests) != count:
            raise StoreError(f"{self._path} does not contain {count} episode ids")

    def prepare(self, episode: str) -> None:
        """Write an id without counting it, so that the next `add` of it cannot fail."""
        digest = _digest(episode)
        if digest not in self._digests:
            self._write(_SIZE * len(self._digests), digest)
            self._prepared = digest

    def add(self, episode: str) -> int:
        """Add an id; returns the number of ids."""
        digest = _digest(episode)
        if digest not in self._digests:
            if digest != self._prepared:
                self._write(_SIZE * len(self._digests), digest)
            self._digests.add(digest)
            self._prepared = b""
        return len(self._digests)

    def sync(self) -> None:
        """Make the file durable."""
        if not self._path.exists():
            return
        try:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
            fsync_folder(self._path.parent)
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from error

    def _write(self, place: int, data: bytes) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                while data:
                    written = os.pwrite(descriptor, data, place)
                    data, place = data[written:], place + written
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from error


def _digest(episode: str) -> bytes:
    return hashlib.blake2b(episode.encode(), digest_size=_SIZE).digest()
