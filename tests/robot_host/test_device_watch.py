"""STOP of an input device while no control process reads it: the supervisor hears it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dovetail.config.load import load
from dovetail.core.types import Purpose
from dovetail.live.link import LiveLink
from dovetail.runs.assembly.build import build_assembly
from dovetail.testing.input_devices import EmulatedGamepad
from dovetail.testing.socket_arm_process import ArmProcess
from support import TESTS
from support.guarded_arm import CONFIG
from support.live_host import order
from support.waiting import wait_until

WITHIN_S = 1.0


class ArmWithGamepad:
    """Runs episodes in processes, as a run does; a killed process is restarted."""

    def __init__(self, folder: Path, *, driver: str = "dovetail.testing.socket_arm:SocketArm") -> None:
        self.arm = ArmProcess().__enter__()
        self.gamepad = EmulatedGamepad(folder / "pad").__enter__()
        self._block, path = folder / "block", folder / "run.yaml"
        config = CONFIG.format(
            block=self._block,
            driver=driver,
            address=self.arm.address,
            stop=self.arm.stop_address,
            layout="processes",
        )
        path.write_text(config)
        self._ending, self.restarted = threading.Event(), []
        self._assembly = build_assembly(
            load([path], ["robot.action=ee_delta", "actor.heartbeat_timeout_s=0.3", *self.gamepad.overrides]),
            should_stop=self._ending.is_set,
            live=lambda robot: LiveLink(folder, robot=robot, waits=True),
            on_restart=lambda name, pid: self.restarted.append(name),
        )
        self.link = self._assembly.link
        self._actor = self._assembly.actor_for(Purpose.ONLINE)
        self._thread = threading.Thread(target=self._run)

    @property
    def control(self) -> int:
        (host,) = self._assembly._hosts.values()
        return host.processes.get("control", 0)

    def go(self, *, until_moving: bool = True) -> None:
        self._thread.start()
        if until_moving:
            wait_until(lambda: len(self.arm.motions()) > 5, timeout_s=30.0)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._actor.run(order())

    def block(self, call: str) -> None:
        self._block.write_text(call)

    def heard_after_s(self) -> float:
        """Press STOP once; returns after how many seconds it is in force for the run."""
        assert not self.link.stop.emergency
        pressed_s = time.monotonic()
        self.gamepad.stop()
        wait_until(lambda: self.link.stop.emergency, timeout_s=5.0)
        assert self.link.stop.source.startswith("gamepad of ")
        return time.monotonic() - pressed_s

    def close(self) -> None:
        self._block.write_text("")
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(20.0)
        self._assembly.close()
        self.gamepad.unplug()
        self.arm.__exit__(None, None, None)


@pytest.fixture
def make(tmp_path, processes):
    made: list[ArmWithGamepad] = []

    def make(**options: str) -> ArmWithGamepad:
        made.append(ArmWithGamepad(tmp_path, **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def test_stop_of_a_gamepad_is_heard_before_the_processes_start(make):
    arm = make()
    assert arm.heard_after_s() < WITHIN_S


def test_stop_of_a_gamepad_is_heard_while_a_fault_waits_for_its_acknowledgement(make):
    arm = make()
    arm.go()
    control = arm.control
    arm.block("observe")
    wait_until(lambda: arm.link.fault, timeout_s=10.0)
    wait_until(lambda: not _is_alive(control))  # the guard has ended it
    assert arm.heard_after_s() < WITHIN_S


def test_control_process_reads_the_gamepad_before_it_builds_the_robot(make, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    arm, slow = make(driver="support.slow_start:SlowArm"), tmp_path / "block.slow"
    slow.touch()
    try:
        arm.go(until_moving=False)
        wait_until(lambda: arm.control in arm.gamepad.reader_pids(), timeout_s=20.0)
        assert arm.heard_after_s() < WITHIN_S
    finally:
        slow.unlink()


@pytest.mark.extended
def test_stop_of_a_gamepad_is_heard_while_the_processes_restart(make):
    arm = make()
    arm.go()
    control = arm.control
    os.kill(control, signal.SIGKILL)
    wait_until(lambda: not _is_alive(control))
    killed_ns = time.monotonic_ns()
    assert arm.heard_after_s() < WITHIN_S
    time.sleep(0.5)
    assert arm.arm.motions(after_ns=killed_ns) == []


@pytest.mark.extended
def test_stop_of_a_gamepad_is_heard_while_its_control_process_is_paused(make):
    arm = make()
    arm.go()
    os.kill(arm.control, signal.SIGSTOP)
    assert arm.heard_after_s() < 0.25  # before the guard notices the pause


@pytest.mark.extended
def test_stop_of_a_gamepad_is_heard_after_restarts_and_replugging(make):
    arm = make()
    arm.go()
    os.kill(arm.control, signal.SIGKILL)
    wait_until(lambda: arm.restarted == ["control"], timeout_s=30.0)
    arm.gamepad.unplug()
    arm.gamepad.plug_in()
    time.sleep(1.0)
    assert arm.heard_after_s() < WITHIN_S


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
