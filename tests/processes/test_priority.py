"""Priority of control and guard. Each case runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, threading
from dovetail.processes.priority import CONTROL_PRIORITY, low_priority, take_priority
{before}
before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
take_priority(CONTROL_PRIORITY)
print(low_priority(), (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before)
"""


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))", "idle"),
        (
            "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)); os.setpriority(os.PRIO_PROCESS, 0, 19)",
            "nice 19",
        ),
    ],
)
def test_process_that_was_started_with_a_low_priority_keeps_it(before: str, name: str) -> None:
    assert _run(before) == f"{name} True\n"


def test_other_process_takes_the_priority_that_it_may_have() -> None:
    may = subprocess.run(["chrt", "-f", "40", "true"], capture_output=True, check=False).returncode == 0
    if not may:
        pytest.skip("this user may not raise priorities")
    normal = "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)); os.setpriority(os.PRIO_PROCESS, 0, 0)"
    assert _run(normal) == "None False\n"


def test_thread_that_runs_already_gets_the_priority() -> None:
    if subprocess.run(["chrt", "-f", "40", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not raise priorities")
    code = """
import os, threading
from dovetail.processes.priority import CONTROL_PRIORITY, take_priority
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)); os.setpriority(os.PRIO_PROCESS, 0, 0)
ended = threading.Event(); thread = threading.Thread(target=ended.wait); thread.start()
take_priority(CONTROL_PRIORITY, threads=[thread.native_id])
print(os.sched_getscheduler(thread.native_id) == os.SCHED_FIFO, os.sched_getparam(thread.native_id).sched_priority)
ended.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True 40\n"


def _run(before: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(before=before)], capture_output=True, text=True, check=True
    )
    return done.stdout
