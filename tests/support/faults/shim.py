"""Compile `shim.c`, start Python with it, and control it from inside that process."""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from support import TESTS

__all__ = ["ALL", "SPACE", "WRITE", "Mode", "Shim", "memory_folder", "run_with_shim"]

WRITE, SYNC, RENAME, OPEN, MKDIR, UNLINK, TRUNCATE, ALLOCATE, LINK, READ_OPEN = (1 << bit for bit in range(10))
ALL = (1 << 10) - 1
SPACE = (
    ALL & ~UNLINK & ~READ_OPEN
)  # calls that fail on a full disk; some file systems notice it only in fsync or rename


class Mode(enum.IntEnum):
    """What happens to the n-th call."""

    ONCE = 0  # it fails
    FROM_THEN_ON = 1  # it and all later ones fail
    SHORT = 2  # it writes half of its data
    SHORT_THEN_FAIL = 3  # it writes half of its data, and later calls fail


class Shim:
    """The library inside a process that was started by `run_with_shim`."""

    def __init__(self, root: Path) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faults_count.restype = self._library.faults_disarm.restype = ctypes.c_long
        self._library.faults_root(os.fsencode(root.resolve()))

    def arm(self, n: int, *, error: int, mode: Mode, kinds: int) -> None:
        self._library.faults_arm(ctypes.c_long(n), error, int(mode), kinds)

    def disarm(self) -> int:
        """Return how many calls failed or were shortened."""
        return int(self._library.faults_disarm())

    def record(self, descriptor: int) -> None:
        """Write every change of a file to this descriptor; -1 ends it."""
        self._library.faults_record(descriptor)

    def mark(self, text: str) -> None:
        self._library.faults_mark(text.encode())


@functools.cache
def _library() -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the failing calls are injected by a small C library, and there is no C compiler")
    target = Path(tempfile.mkdtemp(prefix="dovetail-shim-")) / "shim.so"
    source = Path(__file__).with_name("shim.c")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(target),
        str(source),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return target


def run_with_shim(module: str, *arguments: str, timeout_s: float) -> str:
    """Run a module of the tests with the library; return the last line that it prints."""
    command: Sequence[str] = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "LD_PRELOAD": str(_library()), "PYTHONPATH": str(TESTS), "SVT_LOG": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=TESTS, env=environment
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout.splitlines()[-1]


def memory_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder in shared memory if available, because the tests call fsync thousands of times."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="faults-test-", dir=memory if memory.is_dir() else None)
