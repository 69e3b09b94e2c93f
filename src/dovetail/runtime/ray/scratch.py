"""Folders for a Ray of our own: of short paths, for the sockets in them, and swept when their owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["folder"]

_PREFIX = f"dvt{os.getuid()}-"
_LOCK = "owner"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new one, removed at the end; those whose owner was killed are removed now."""
    _sweep()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of by the kernel, however we end
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _sweep() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another sweeps too, or has just made it
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
