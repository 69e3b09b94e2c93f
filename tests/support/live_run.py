"""`dovetail run push-cube` with a simulated arm in a process, for the tests of the console."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

from support.waiting import wait_until

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


until = functools.partial(wait_until, timeout_s=60.0)


def start_run(runs: Path, *settings: str, name: str = "arm") -> subprocess.Popen[str]:
    arguments = [
        "run",
        "push-cube",
        *SETTINGS,
        *settings,
        "--no-console",  # the tests open one
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
