"""A person at an emulated SO-101: looks at the follower, and moves the leader by hand.

python -m support.so101_person FOLDER     # two buses with links and calibrations in FOLDER, until the end of the input
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dovetail.emulators.feetech.emulator import JOINTS, FeetechEmulator

Vector = npt.NDArray[np.float64]
RAD_PER_TICK = 2 * math.pi / 4095
GOAL = (0.5, -0.2, 0.2, 0.3, 0.4)
_SPEED = 0.5  # rad/s
_OPEN, _SQUEEZED = 0.8, 0.05


def positions(bus: FeetechEmulator) -> Vector:
    """The five joints in rad, and the gripper from 0 to 1, as Dovetail has them."""
    found = []
    for name, joint in bus.calibration().items():
        low, high = joint["range_min"], joint["range_max"]
        at = bus.motor(joint["id"]).position
        found.append((at - low) / (high - low) if name == "gripper" else (at - (low + high) / 2) * RAD_PER_TICK)
    return np.array(found)


def move_by_hand(bus: FeetechEmulator, pose: Sequence[float] | Vector) -> None:
    for (name, joint), value in zip(bus.calibration().items(), pose, strict=True):
        low, high = joint["range_min"], joint["range_max"]
        at = low + value * (high - low) if name == "gripper" else (low + high) / 2 + value / RAD_PER_TICK
        bus.turn(joint["id"], at + joint["homing_offset"])


class Person(threading.Thread):
    """Demonstrates whenever the follower stands still away from the goal."""

    def __init__(self, follower: FeetechEmulator, leader: FeetechEmulator, goal: Sequence[float] = GOAL) -> None:
        super().__init__(name="person", daemon=True)
        self._follower, self._leader, self._goal = follower, leader, np.array(goal)
        self.num_demonstrations = 0
        self.leaves = threading.Event()

    def run(self) -> None:
        still_since_s, last = time.monotonic(), positions(self._follower)
        while not self.leaves.wait(0.05):
            here = positions(self._follower)
            if np.abs(here - last).max() > 0.01:
                still_since_s, last = time.monotonic(), here
            has_torque = all(self._follower.motor(i + 1).has_torque for i in range(len(JOINTS)))
            if has_torque and time.monotonic() - still_since_s > 1.0 and not self._is_at_goal():
                self._demonstrate()
                still_since_s, last = time.monotonic(), positions(self._follower)

    def _demonstrate(self) -> None:
        here = positions(self._follower)[:5]
        self._move(here, here, gripper=(_OPEN, _OPEN), duration_s=0.6)
        self._move(here, here, gripper=(_OPEN, _SQUEEZED), duration_s=0.3)
        duration_s = float(np.abs(self._goal - here).max()) / _SPEED
        self._move(here, self._goal, gripper=(_SQUEEZED, _OPEN), duration_s=duration_s)
        until_s = time.monotonic() + 6.0
        while time.monotonic() < until_s and not self._is_at_goal() and not self.leaves.wait(0.02):
            pass
        self.num_demonstrations += self._is_at_goal()
        while self._is_at_goal() and time.monotonic() < until_s and not self.leaves.wait(0.02):
            pass  # until the arm drives home

    def _move(self, start: Vector, end: Vector, *, gripper: tuple[float, float], duration_s: float) -> None:
        began_s = time.monotonic()
        share = 0.0
        while share < 1.0 and not self.leaves.wait(0.01):
            share = min((time.monotonic() - began_s) / duration_s, 1.0)
            smooth = 0.5 - 0.5 * math.cos(math.pi * share)
            opening = gripper[0] + (gripper[1] - gripper[0]) * smooth
            move_by_hand(self._leader, [*(start + (end - start) * smooth), opening])

    def _is_at_goal(self) -> bool:
        return bool(np.abs(positions(self._follower)[:5] - self._goal).max() < 0.1)
