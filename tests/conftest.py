import os
import sys

import pytest


@pytest.fixture(autouse=True)
def _whole_floats():
    """A command flushes denormal numbers in its process. Tests share one, and property tests want all numbers."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


def _share_the_cores() -> None:
    """Some machines start everything as a real-time process. Tests that have busy readers beside a writer, on two
    cores, would then wait for ever for the writer's turn: nobody takes a core from a real-time process."""
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


if hasattr(os, "sched_setscheduler"):
    _share_the_cores()
