"""Scheduling priority of the bridge. `dovetail.processes.priority` does the same for the processes of a run."""

from __future__ import annotations

import contextlib
import os

__all__ = ["BRIDGE_PRIORITY", "take_priority"]

BRIDGE_PRIORITY = 35  # real-time priority, 1 to 99: below the control process, which waits for the bridge


def take_priority() -> None:
    """Take this real-time priority, or as much as this user may have, for the thread that calls. A low priority, which the
    user has chosen, stays."""
    scheduler = os.sched_getscheduler(0)
    if scheduler == os.SCHED_FIFO or scheduler == os.SCHED_IDLE or os.getpriority(os.PRIO_PROCESS, 0) > 0:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(BRIDGE_PRIORITY))
    except OSError:  # no permission
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -10)
