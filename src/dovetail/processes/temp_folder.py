"""A temporary folder that a later process removes if this one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

__all__ = ["LockedTempFolder", "remove_stale"]

_LOCK = ".lock"


class LockedTempFolder:
    """A new folder `PREFIXxxxx` that only this user can read. It is in use as long as this process holds the lock in it.

    The kernel releases the lock when the process ends in any way, so that no process id must be compared. Making one
    removes the stale folders of this user with the same prefix.
    """

    def __init__(self, prefix: str) -> None:
        remove_stale(prefix)
        self.path, lock = _make(prefix)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock)  # also at the normal end of the process

    def close(self) -> None:
        """Remove it."""
        self._finalizer()


def remove_stale(prefix: str) -> None:
    """Remove the folders of this user that no process holds. A folder without a lock file stays: it is not ours, or it is
    being made."""
    parent = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(parent):
            if name.startswith(prefix):
                with contextlib.suppress(OSError):  # another process removes it, or holds its lock
                    _remove_if_stale(name, parent)
    finally:
        os.close(parent)


def _remove_if_stale(name: str, parent: int) -> None:
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            return
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(lock).st_mode):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(name, dir_fd=parent)  # follows no links
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _make(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / _LOCK).lstat().st_ino == os.fstat(lock).st_ino:
                return path, lock
        except OSError:  # another process took it for a stale folder before it was locked, and removes it
            pass
        os.close(lock)
