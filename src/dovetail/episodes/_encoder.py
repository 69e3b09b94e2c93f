"""Start a video encoder next to a control loop: one thread, no log output, no changed thread priorities."""

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
    """Open the encoders of a configured container and write its header."""
    os.environ.setdefault("SVT_LOG", "1")  # errors only: the library writes directly to the terminal
    for stream in container.streams.video:
        stream.codec_context.thread_count = 1  # leaves the other cores to the control loop
    with _unchanged_priorities():
        container.start_encoding()


@contextlib.contextmanager
def _unchanged_priorities() -> Iterator[None]:
    """Restore the priorities of all threads afterwards.

    SVT-AV1 makes the thread that opens it, and its own threads, real-time if it may. They, and processes started later,
    would block the control loop.
    """
    if not _TASKS.is_dir():
        yield
        return
    before = _schedules()
    opener = before[threading.get_native_id()]
    try:
        yield
    finally:
        for tid, now in _schedules().items():
            if now != before.get(tid, opener):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(tid, *before.get(tid, opener))


def _schedules() -> dict[int, tuple[int, os.sched_param]]:
    """Return the scheduling policy of every thread of this process."""
    found = {}
    for tid in (int(entry.name) for entry in _TASKS.iterdir()):
        with contextlib.suppress(ProcessLookupError):
            found[tid] = (os.sched_getscheduler(tid), os.sched_getparam(tid))
    return found
