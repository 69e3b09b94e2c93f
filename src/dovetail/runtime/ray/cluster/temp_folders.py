"""Folders for a Ray of our own: of short paths, for the sockets in them, and guarded: they go when their owner does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dovetail.runtime.ray.cluster.process_marks import MARK

__all__ = ["folder"]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new one. Processes that carry its mark end with it, or with us."""
    path = Path(tempfile.mkdtemp(prefix="dvt-"))
    guard = subprocess.Popen(
        [sys.executable, "-m", "dovetail.runtime.ray.cluster.orphan_cleanup", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != MARK},
        start_new_session=True,  # what a terminal sends to us is not for it
    )
    assert guard.stdin is not None
    try:
        yield path
    finally:
        guard.stdin.close()
        guard.wait()
        shutil.rmtree(path, ignore_errors=True)
