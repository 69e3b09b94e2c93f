"""An emulated arm behind the robot protocol, and what tests ask about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dovetail.emulators.remote.emulator import RemoteEmulator, RemoteEmulatorConfig
from dovetail.robots.drivers.remote.driver import RemoteRobot

PATIENT_S = 5.0  # this machine may be busy


@contextmanager
def emulated(**settings: Any) -> Iterator[RemoteEmulator]:
    with RemoteEmulator(RemoteEmulatorConfig.from_mapping(settings)) as emulator:
        yield emulator


@contextmanager
def connected(emulator: RemoteEmulator, **changes: Any) -> Iterator[RemoteRobot]:
    robot = RemoteRobot(emulator.robot_config(**{"timeout_s": PATIENT_S, "max_clock_error_s": 1.0, **changes}))
    try:
        yield robot
    finally:
        robot.close()


def wait_until(condition: Any, *, timeout_s: float = 10.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.005)
    return False


def is_at_rest(emulator: RemoteEmulator, *, for_s: float = 0.1) -> bool:
    before = emulator.arm.position()
    time.sleep(for_s)
    return bool(np.allclose(before, emulator.arm.position(), atol=1e-6))
