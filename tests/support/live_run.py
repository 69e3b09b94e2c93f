"""`dovetail run push-cube` with a simulated arm in a process, for the tests of the console."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["SETTINGS", "end_run", "start_run", "until"]

SETTINGS = (
    "operator=browser",  # demonstrations and interventions come from the browser
    "run.demos=1",
    "run.untrained_episodes=0",
    "run.eval_episodes=1",
    "run.env_steps=100000",
    "learner.bc_updates=5",
    "learner.warmup_updates=5",
    "learner.utd=0.1",
    "task.time_limit_s=40",
    "task.tolerance_m=0.02",
    "task.push_m=[0.07, 0.08]",
)


def until(condition: Callable[[], Any], *, what: str, timeout_s: float = 60.0) -> Any:
    """Wait until a condition is true; returns its value."""
    end_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.02)
    return found


def start_run(runs: Path, *settings: str, name: str = "arm") -> subprocess.Popen[str]:
    arguments = [
        "run",
        "push-cube",
        *SETTINGS,
        *settings,
        "--quiet",
        "--runs-dir",
        str(runs),
        "--name",
        name,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until(lambda: (runs / name / "live.json").exists() or process.poll() is not None, what="the run to start")
    assert process.poll() is None, process.stdout and process.stdout.read()
    return process


def end_run(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=20)
    finally:
        process.kill()
