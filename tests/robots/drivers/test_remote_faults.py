"""Random faults of the robot, its computer and the network end in hold or stop, without a hang."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.errors import RobotError, RobotFault
from dovetail.emulators.remote.emulator import FAULTS, RemoteEmulator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from support.remote_arm import connected, emulated, wait_until

HZ = 50.0
TIMEOUT_S, LATE_S = 0.3, 0.5
HARMLESS = ("delay",)
LONGEST_CALL_S = 6.0  # time-outs of a request, of connecting and of a stop; a hang would exceed it


class Drive:
    """Moves an arm behind the filter with random targets, and keeps what happened."""

    def __init__(self, safe: SafeRobot, rng: random.Random) -> None:
        self.safe, self._rng, self._clock = safe, rng, RealClock()
        self.fault, self.num_held, self.longest_s = "", 0, 0.0

    def ticks(self, num: int) -> None:
        for _ in range(num):
            due_ns = self._clock.now_ns() + round(NS_PER_S / HZ)
            began_s = time.monotonic()
            try:
                self.safe.observe()
                self.safe.send(
                    np.array([self._rng.uniform(-3, 3) for _ in range(6)] + [self._rng.random()], np.float32)
                )
                self.num_held += self.safe.last_report.held
            except RobotError as error:
                self.fault = str(error)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            if self.fault:
                return
            self._clock.sleep_until(due_ns)


def _one_fault(emulator: RemoteEmulator, name: str, rng: random.Random) -> None:
    with connected(emulator, timeout_s=TIMEOUT_S, max_clock_error_s=0.2) as robot:
        drive = Drive(SafeRobot(robot, SafetyConfig(), RealClock()), rng)
        drive.ticks(rng.randrange(2, 6))
        num_before = len(emulator.arm.commands)
        emulator.misbehave(name, count=rng.randrange(1, 4))
        drive.ticks(25)
        emulator.behave()
        emulator.server._clock_ns = 0
        if not drive.fault and name not in HARMLESS:
            assert drive.num_held, f"{name}: the arm neither held nor stopped"
        assert drive.longest_s < LONGEST_CALL_S, name
        if drive.fault:
            assert wait_until(lambda: not emulator.server.robot.is_moving, timeout_s=2.0), f"{name}: {drive.fault}"
            with pytest.raises(RobotFault):  # until a person acknowledges it
                drive.safe.send(np.zeros(7, np.float32))
        _check_commands(emulator, num_before)


def _check_commands(emulator: RemoteEmulator, num_before: int) -> None:
    spec = emulator.robot_config().robot_spec()
    low, high = spec.action.bounds
    for _, action in emulator.arm.commands[num_before:]:
        assert np.isfinite(action).all()
        assert (action >= low - 1e-4).all()
        assert (action <= high + 1e-4).all()


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_ends_in_hold_or_stop(name: str) -> None:
    with emulated(control_hz=HZ, watchdog_s=0.2, late_s=LATE_S) as emulator:
        _one_fault(emulator, name, random.Random(name))
        with connected(emulator) as robot:  # the next run works
            robot.observe()


@pytest.mark.extended
def test_200_random_faults_end_in_hold_or_stop() -> None:
    rng = random.Random(7)
    with emulated(control_hz=HZ, watchdog_s=0.2, late_s=LATE_S, cameras=["front"]) as emulator:
        for _ in range(200):
            _one_fault(emulator, rng.choice(FAULTS), rng)
        with connected(emulator) as robot:
            robot.observe()
            assert wait_until(lambda: len(emulator.server._sessions) <= 2)  # no connection is left behind
