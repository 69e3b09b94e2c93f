"""STOP of `dovetail robot move`: Ctrl-C and `dovetail stop`, also while a call of the driver hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dovetail.testing.socket_arm_process import ArmProcess
from support.waiting import wait_until

# its `send` hangs once the file is there, and no signal ends it: like a call of a vendor's library
_PLUGIN = """
import time
from pathlib import Path
from dovetail.testing.socket_arm import SocketArm, SocketArmWithStop

def hang():
    while Path({block!r}).exists():
        try:
            time.sleep(0.05)
        except BaseException:
            pass

class Stubborn(SocketArm):
    def send(self, action):
        hang()
        return super().send(action)

class StubbornWithStop(SocketArmWithStop):
    def send(self, action):
        hang()
        return super().send(action)

    def stop(self):
        hang()
        super().stop()
"""


class Move:
    """`dovetail robot move` of an emulated arm in a process of its own."""

    def __init__(self, folder: Path, arm: ArmProcess, driver: str) -> None:
        self._block = folder / "block"
        (folder / "stubborn.py").write_text(_PLUGIN.format(block=str(self._block)))
        robot = {"type": f"stubborn:{driver}", "address": arm.address, "stop_address": arm.stop_address}
        (folder / "arm.yaml").write_text(yaml.safe_dump({"robot": robot}))
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self.output = folder / "output"
        words = ["robot", "move", str(folder / "arm.yaml"), "--part", "arm", "--axis", "1", "--by", "1"]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.cli", *words, "--speed", "0.02", "--yes"],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._arm = arm
        wait_until(lambda: arm.motions(), timeout_s=60.0)

    def hang(self) -> None:
        self._block.touch()
        time.sleep(0.2)

    def stopped_after_s(self, since_ns: int) -> float:
        """Seconds until the stop that no motion followed."""
        wait_until(lambda: self._arm.stops(after_ns=since_ns), timeout_s=10.0)
        time.sleep(0.3)
        delay_ns = self._arm.delay_ns(since_ns)
        assert delay_ns is not None, self.output.read_text()
        return delay_ns / 1e9

    def press(self) -> subprocess.CompletedProcess[str]:
        """`dovetail stop`, as the command tells."""
        found = wait_until(lambda: re.search(r"dovetail stop (\S+)", self.output.read_text()))
        self.folder = Path(found[1])
        return subprocess.run(
            [sys.executable, "-m", "dovetail.cli", "stop", found[1]], capture_output=True, text=True, timeout=60
        )


@pytest.fixture
def arm():
    with ArmProcess() as arm:
        yield arm


@pytest.fixture
def move(tmp_path, arm):
    made = []

    def start(driver: str) -> Move:
        made.append(Move(tmp_path, arm, driver))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


def test_stop_from_another_terminal_stops_the_motion(move):
    moving = move("Stubborn")
    since_ns = time.monotonic_ns()
    done = moving.press()
    assert done.returncode == 0, done.stderr
    assert "socket_arm has stopped, after" in done.stdout
    assert moving.stopped_after_s(since_ns) < 5.0  # with the start of the command
    assert moving.process.wait(30) == 130
    assert "stopped by dovetail stop" in moving.output.read_text()
    assert not moving.folder.exists()


@pytest.mark.parametrize("driver", ["Stubborn", "StubbornWithStop"])
def test_ctrl_c_stops_an_arm_whose_driver_hangs_and_a_second_one_ends_the_process(move, driver):
    moving = move(driver)
    moving.hang()
    since_ns = time.monotonic_ns()
    moving.process.send_signal(signal.SIGINT)
    assert moving.stopped_after_s(since_ns) < 2.0
    assert moving.process.poll() is None
    moving.process.send_signal(signal.SIGINT)
    assert moving.process.wait(10) == 130
    shown = moving.output.read_text()
    assert (
        "does not answer: stopped from another thread. Press the robot's own emergency stop if it moves" in shown
    )


@pytest.mark.extended
def test_stop_from_another_terminal_reaches_an_arm_whose_driver_hangs(move, arm):
    moving = move("StubbornWithStop")
    moving.hang()
    done = moving.press()
    assert done.returncode == 0, done.stderr
    assert arm.delay_ns(time.monotonic_ns()) == 0  # it stands


@pytest.mark.extended
def test_failed_stop_says_so(move, arm):
    moving = move("Stubborn")
    moving.hang()
    arm.behave(drop=True)  # the connection that `stop` uses
    time.sleep(0.2)
    moving.process.send_signal(signal.SIGINT)
    wait_until(lambda: "does not answer" in moving.output.read_text(), timeout_s=10.0)
    assert "it was NOT stopped: stop() " in moving.output.read_text()
