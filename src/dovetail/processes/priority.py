"""Scheduling priority of the processes that must react in time."""

from __future__ import annotations

import contextlib
import os

__all__ = ["CONTROL_PRIORITY", "GUARD_PRIORITY", "take_priority"]

CONTROL_PRIORITY = 40  # real-time priority, 1 to 99: above the learner, below the kernel's own threads
GUARD_PRIORITY = 45  # above control, which may spin


def take_priority(priority: int) -> None:
    """Take this real-time priority, or as much as this user may have."""
    with contextlib.suppress(OSError, AttributeError):  # no permission, or not on Linux
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        return
    with contextlib.suppress(OSError):
        os.nice(-10)
