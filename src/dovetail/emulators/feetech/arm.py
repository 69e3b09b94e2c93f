"""The SO-101 behind the bus: six motors, and the arm in MuJoCo that they move.

At the middle of the joints' ranges the upper arm is upright and the forearm horizontal. Lengths and masses are those of the
original, roughly; the servos are an STS3215 at 7.4 V.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from dovetail.emulators.feetech.motor import Motor, to_sign_magnitude
from dovetail.robots.sim.capsule_arm import CapsuleArm, Link, Vector

__all__ = ["JOINTS", "OFFSETS", "RANGES", "EmulatedArm"]

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
RANGES = ((757, 3338), (880, 3215), (973, 3123), (1014, 3082), (0, 4095), (1400, 3000))  # calibrated, in ticks
OFFSETS = (120, -85, 0, 340, -15, 60)
_RESTS = {2: RANGES[1][0], 3: RANGES[2][1], 4: RANGES[3][1]}  # where the folded arm lies without torque
_RAD = 2.0 * math.pi / 4096  # of a tick
_STALL_NM = 1.9
_DAMPING = 0.41  # Nm s/rad: the stall torque by the speed without load, 44 turns per minute
_BANDWIDTH = 60.0  # rad/s: the arm sags by up to half a degree
_MOST_S = 0.5  # simulated at once, after this process was paused


class EmulatedArm:
    """Time passes in `advance` only."""

    def __init__(self, *, falls: bool) -> None:
        """`falls`: it has a weight, and starts folded, at rest. Else a person or a spring bears it, and it starts in the
        middle."""
        self.motors = {i: _make_motor(i, falls=falls) for i in range(1, 7)}
        self._middle: Vector = np.array(
            [sum(ends) / 2.0 + offset for ends, offset in zip(RANGES, OFFSETS, strict=True)]
        )  # shaft of each joint at 0 rad
        self.body = CapsuleArm(
            [_links()],
            pose=self._angles(),
            bandwidth=_BANDWIDTH,
            weightless=0.0 if falls else 1.0,
            middle=(0.1, 0.0, 0.12),
            eye=(0.45, -0.45, 0.35),
        )
        self._rest_s = 0.0
        self.advance(_MOST_S)  # it settles
        for motor in self.motors.values():
            motor.power_cycle()

    def advance(self, duration_s: float, *, dead: Collection[int] = ()) -> None:
        """Motors in `dead` do not move their reference."""
        self._rest_s += min(duration_s, _MOST_S)
        step_s = CapsuleArm.TIMESTEP_S
        num_steps = math.floor(self._rest_s / step_s)
        self._rest_s -= num_steps * step_s
        motors = list(self.motors.values())
        for _ in range(num_steps):
            for motor in motors:
                if motor.id not in dead:
                    motor.plan(step_s)
            self.body.switch(np.array([motor.has_torque for motor in motors]))
            self.body.step((np.array([motor.reference for motor in motors]) - self._middle) * _RAD)
        self._show()

    def turn(self, id_: int, shaft: float) -> None:
        """A person turns a joint by hand."""
        motor = self.motors[id_]
        motor.shaft = shaft
        if not motor.has_torque:
            motor.reference = shaft
        self.body.place([id_ - 1], self._angles()[[id_ - 1]])
        self._show()

    def _angles(self) -> Vector:
        """Of the joints, in rad, from the shafts."""
        shafts = np.array([motor.shaft for motor in self.motors.values()])
        angles: Vector = (shafts - self._middle) * _RAD
        return angles

    def _show(self) -> None:
        body = self.body
        shafts = self._middle + body.position / _RAD
        for motor, shaft, speed, torque in zip(
            self.motors.values(), shafts, body.speed / _RAD, body.torque, strict=True
        ):
            motor.show(shaft=float(shaft), speed=float(speed), load=float(torque) / _STALL_NM)


def _make_motor(id_: int, *, falls: bool) -> Motor:
    low, high = RANGES[id_ - 1]
    offset = OFFSETS[id_ - 1]
    start = _RESTS.get(id_, (low + high) / 2) if falls else (low + high) / 2
    motor = Motor(id_, shaft=start + offset)
    for name, value in (("Homing_Offset", to_sign_magnitude(offset, 11)), ("Lock", 0)):
        motor.set(name, value)
    motor.write(9, low.to_bytes(2, "little") + high.to_bytes(2, "little"))
    motor.power_cycle()
    return motor


def _links() -> Link:
    """The chain from the base to the jaw. The wrist can turn without an end: its range is a whole turn."""
    up, forward, pitch = (0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    jaw = _link(6, up, at=(0.03, 0.0, 0.0), to=(0.08, 0.0, 0.0), mass_kg=0.02)
    roll = _link(5, forward, jaw, at=(0.06, 0.0, 0.0), to=(0.10, 0.0, 0.0), mass_kg=0.08)
    wrist = _link(4, pitch, roll, at=(0.135, 0.0, 0.0), to=(0.05, 0.0, 0.0), mass_kg=0.06)
    elbow = _link(3, pitch, wrist, at=(0.0, 0.0, 0.116), to=(0.13, 0.0, 0.0), mass_kg=0.10)
    lift = _link(2, pitch, elbow, at=(0.0, 0.0, 0.05), to=(0.0, 0.0, 0.11), mass_kg=0.10)
    return _link(1, up, lift, at=(0.0, 0.0, 0.06), to=(0.0, 0.0, 0.04), mass_kg=0.10)


def _link(
    id_: int,
    axis: tuple[float, float, float],
    *links: Link,
    at: tuple[float, float, float],
    to: tuple[float, float, float],
    mass_kg: float,
) -> Link:
    low, high = RANGES[id_ - 1]
    half = (high - low) / 2 * _RAD
    return Link(
        joint=JOINTS[id_ - 1],
        at=at,
        axis=axis,
        to=to,
        mass_kg=mass_kg,
        stops=None if JOINTS[id_ - 1] == "wrist_roll" else (-half, half),
        max_torque=_STALL_NM,
        armature=0.01,
        damping=_DAMPING,
        links=links,
    )
