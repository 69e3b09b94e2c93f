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
    """Of every thread of this process, but for those that end meanwhile."""
    found = {}
    for tid in (int(entry.name) for entry in _TASKS.iterdir()):
        with contextlib.suppress(ProcessLookupError):
            found[tid] = (os.sched_getscheduler(tid), os.sched_getparam(tid))
    return found
