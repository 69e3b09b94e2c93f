"""The end of a local Ray: arms stop before their processes are killed, and a driver may take its time."""

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

signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
with connected(ClusterConfig(), num_cpus=1):
    print("connected", flush=True)
    while not signals:
        time.sleep(0.05)
    time.sleep(4.0)  # an arm finishes its episode
    print("done", flush=True)
"""


def start_marked(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", *words], env={**os.environ, marks.MARK: str(folder)})


def test_processes_of_an_arm_stop_it_before_they_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_STOP_S", 1.5)
    other = start_marked(tmp_path, "import time; time.sleep(60)")
    arm = start_marked(tmp_path, ARM, "dovetail.robot_host.process_main", "0.7", str(tmp_path / "stopped"))
    stuck = start_marked(tmp_path, ARM, "dovetail.robot_host.process_main", "60", str(tmp_path / "never"))
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


@pytest.mark.extended
def test_driver_may_take_longer_than_rays_three_seconds_to_end() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "connected\n"
        driver.terminate()
        output, _ = driver.communicate(timeout=60.0)
        assert (driver.returncode, output) == (0, "done\n")
    finally:
        driver.kill()
