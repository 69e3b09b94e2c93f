"""Starting an encoder beside a control loop: one thread, no talk, and nobody's priority changed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import av

__all__ = ["start_encoding"]

_TASKS = Path("/proc/self/task")


def start_encoding(container: av.container.OutputContainer) -> None:
    """Open the encoders of a container that is set up, and write its header."""
    os.environ.setdefault("SVT_LOG", "1")  # errors only: that library writes straight to the terminal
    for stream in container.streams.video:
        stream.codec_context.thread_count = 1  # the other cores belong to the control loop
    with _priorities_as_before():
        container.start_encoding()


@contextlib.contextmanager
def _priorities_as_before() -> Iterator[None]:
    """Where it may, SVT-AV1 makes a real-time thread of whoever opens it, and of all its own: they, and every process
    that is started later, would then never let a control loop on."""
    if not _TASKS.is_dir():
        yield
        return
    before = {tid: _scheduling(tid) for tid in _threads()}
    opener = before[threading.get_native_id()]
    try:
        yield
    finally:
        for tid in _threads():
            with contextlib.suppress(ProcessLookupError):  # one that has ended meanwhile
                if _scheduling(tid) != before.get(tid, opener):
                    os.sched_setscheduler(tid, *before.get(tid, opener))


def _threads() -> list[int]:
    return [int(entry.name) for entry in _TASKS.iterdir()]


def _scheduling(tid: int) -> tuple[int, os.sched_param]:
    return os.sched_getscheduler(tid), os.sched_getparam(tid)
