"""Scheduling priority of the processes that must react in time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

__all__ = ["CONTROL_PRIORITY", "GUARD_PRIORITY", "take_priority"]

CONTROL_PRIORITY = 40  # real-time priority, 1 to 99: above the learner, below the kernel's own threads
GUARD_PRIORITY = 45  # above control, which may spin


def take_priority(priority: int, *, threads: Collection[int] = ()) -> None:
    """Take this real-time priority, or as much as this user may have: this thread, those that it starts later, and `threads`
    by their native ids."""
    for thread in (0, *threads):
        try:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
        except (OSError, AttributeError):  # no permission, or not on Linux
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) - 10)
