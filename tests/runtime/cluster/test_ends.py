"""How a Ray of ours ends: arms are stopped before anybody who could is killed, and a driver has the time that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.runtime.ray.cluster import process_marks as marks

ARM = "import pathlib, sys, time; time.sleep(float(sys.argv[2])); pathlib.Path(sys.argv[3]).touch()"
DRIVER = """
import signal, sys, time
from dovetail.config.cluster import ClusterConfig
from dovetail.runtime.ray.cluster.connection import connected

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
with connected(ClusterConfig(), num_cpus=1):
    print("there", flush=True)
    while not told:
        time.sleep(0.05)
    time.sleep(4.0)  # an arm finishes
    print("done", flush=True)
"""


def marked(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", *words], env={**os.environ, marks.MARK: str(folder)})


def test_an_arms_own_processes_stop_it_before_they_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_STOP_S", 1.5)
    other = marked(tmp_path, "import time; time.sleep(60)")
    arm = marked(tmp_path, ARM, "dovetail.robot_host.process_main", "0.7", str(tmp_path / "stopped"))
    stuck = marked(tmp_path, ARM, "dovetail.robot_host.process_main", "60", str(tmp_path / "never"))
    try:
        while len(marks.marked_processes(tmp_path)) < 3:
            time.sleep(0.01)
        marks.kill_marked(tmp_path)
        assert other.wait(5.0) == stuck.wait(5.0) == -9
        assert (arm.wait(5.0), (tmp_path / "stopped").exists()) == (0, True)
    finally:
        for process in (other, arm, stuck):
            process.kill()
            process.wait()


def test_a_driver_that_is_told_to_end_may_take_its_time() -> None:
    """Ray would abort it after three seconds."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "there\n"
        driver.terminate()
        said, _ = driver.communicate(timeout=60.0)
        assert (driver.returncode, said) == (0, "done\n")
    finally:
        driver.kill()
