"""Scheduling priority of the processes that must react in time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

__all__ = ["CONTROL_PRIORITY", "GUARD_PRIORITY", "low_priority", "take_priority"]

CONTROL_PRIORITY = 40  # real-time priority, 1 to 99: above the learner, below the kernel's own threads
GUARD_PRIORITY = 45  # above control, which may spin


def low_priority() -> str | None:
    """The low priority with which the user started this process, or one above it. None: it is not low."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_IDLE:
            return "idle"
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return f"nice {nice}" if nice > 0 else None


def take_priority(priority: int, *, threads: Collection[int] = ()) -> None:
    """Take this real-time priority, or as much as this user may have: this thread, those that it starts later, and `threads`
    by their native ids. A process with a low priority keeps it, because the user has chosen it."""
    if low_priority() is not None:
        return
    for thread in (0, *threads):
        try:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
        except (OSError, AttributeError):  # no permission, or not on Linux
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) - 10)
