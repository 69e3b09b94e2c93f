"""The motion of igris_b in MuJoCo: 12 arm joints and 12 fingers with position servos. Right side first, as on the wire.

The maker's geometry, masses and joint limits are not known to us. With ours, the hands are in front of the body in the start
pose.
"""

from __future__ import annotations

import math

import numpy as np

from dovetail.robots.sim.capsule_arm import CapsuleArm, Link, Vector

__all__ = ["NUM_ARM", "NUM_FINGERS", "START_ARMS_RAD", "START_FINGERS", "Body", "ReachTargets", "Vector"]

NUM_ARM, NUM_FINGERS = 12, 12
START_ARMS_RAD: Vector = np.radians([20, 30, 0, -120, 0, 0, -20, -30, 0, 120, 0, 0])
START_FINGERS: Vector = np.array([1, 1, 1, 1, 1, 0.5] * 2, np.float64)
_MAX_SPEED: Vector = np.array([3.0] * NUM_ARM + [5.0] * NUM_FINGERS)  # of the servos' references, per second
_BANDWIDTH = 20.0  # rad/s
_WEIGHTLESS = 1.0  # the servos know the weight of the arms and bear it
_STOP_RAD = 3.0
_SETTLE_S = 0.5


class Body:
    """Positions follow targets. `advance` moves them on."""

    def __init__(self, *, at_start_pose: bool) -> None:
        sides = [_arm(side) for side in (1.0, -1.0)]
        pose = np.concatenate((START_ARMS_RAD if at_start_pose else np.zeros(NUM_ARM), START_FINGERS))
        # MuJoCo has the fingers of the right hand before the left arm
        self._wire = np.r_[0:6, 12:18, 6:12, 18:24]  # position of each MuJoCo joint on the wire
        self.arm = CapsuleArm(
            sides,
            pose=pose[self._wire],
            bandwidth=_BANDWIDTH,
            weightless=_WEIGHTLESS,
            middle=(0.1, 0.0, 1.1),
            eye=(1.6, 0.5, 1.5),
        )
        self.target: Vector = pose.copy()
        self._reference = pose.copy()
        self._rest_s = 0.0
        self.advance(_SETTLE_S)

    def advance(self, duration_s: float) -> None:
        self._rest_s += duration_s
        step_s = CapsuleArm.TIMESTEP_S
        for _ in range(math.floor(self._rest_s / step_s)):
            self._rest_s -= step_s
            most = _MAX_SPEED * step_s
            self._reference += np.clip(self.target - self._reference, -most, most)
            self.arm.step(self._reference[self._wire])
        # whole arrays, because other threads read them
        self.position = self._on_wire(self.arm.position)
        self._torque = self._on_wire(self.arm.torque)

    @property
    def arms(self) -> Vector:
        return self.position[:NUM_ARM]

    @property
    def fingers(self) -> Vector:
        return self.position[NUM_ARM:]

    @property
    def effort(self) -> Vector:
        """Of the arms, in Nm."""
        return self._torque[:NUM_ARM]

    @property
    def finger_current(self) -> Vector:
        """In A."""
        return 0.05 + 0.6 * np.abs(self._torque[NUM_ARM:])

    def _on_wire(self, values: Vector) -> Vector:
        ordered = np.empty_like(values)
        ordered[self._wire] = values
        return ordered


def _arm(side: float) -> Link:
    """`side`: 1 right, -1 left. The arm hangs down at zero. The sides mirror each other: pitches have opposite signs."""
    name = "right" if side > 0 else "left"
    pitch = (0.0, -side, 0.0)  # forward

    def link(
        number: int,
        axis: tuple[float, float, float],
        length_m: float,
        mass_kg: float,
        max_torque: float,
        armature: float,
        *links: Link,
        at: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> Link:
        return Link(
            joint=f"{name}_joint_{number}",
            at=at,
            axis=axis,
            to=(0.0, 0.0, -length_m),
            mass_kg=mass_kg,
            stops=(-_STOP_RAD, _STOP_RAD),
            max_torque=max_torque,
            armature=armature,
            radius=0.04,
            links=links,
        )

    fingers = [_finger(name, number) for number in range(NUM_FINGERS // 2)]
    wrist = link(6, pitch, 0.08, 0.4, 15.0, 0.08, *fingers)
    wrist_yaw = link(5, (0.0, 0.0, 1.0), 0.02, 0.2, 15.0, 0.08, wrist, at=(0.0, 0.0, -0.24))
    elbow = link(4, (0.0, side, 0.0), 0.22, 0.8, 60.0, 0.25, wrist_yaw, at=(0.0, 0.0, -0.26))
    upper = link(3, (0.0, 0.0, 1.0), 0.24, 1.2, 60.0, 0.25, elbow)
    roll = link(2, (-1.0, 0.0, 0.0), 0.02, 0.3, 90.0, 0.4, upper)
    return link(1, pitch, 0.02, 0.5, 90.0, 0.4, roll, at=(0.0, -0.2 * side, 1.35))


def _finger(name: str, number: int) -> Link:
    """1 is open: the finger continues the hand."""
    return Link(
        joint=f"{name}_finger_{number}",
        at=(0.04 - 0.016 * number, 0.0, -0.09),
        axis=(0.0, 1.0, 0.0),
        to=(0.08 * math.sin(1.0), 0.0, -0.08 * math.cos(1.0)),
        mass_kg=0.02,
        stops=(0.0, 1.0),
        max_torque=1.0,
        armature=0.001,
        radius=0.007,
    )


class ReachTargets:
    """Targets for the task `igris_reach`: a new one each time the arms come back to the start pose."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._has_left = False
        self.position = self._draw()

    def look_at(self, body: Body) -> None:
        away = float(np.abs(body.arms - START_ARMS_RAD).max())
        if away > 0.15:
            self._has_left = True
        elif away < 0.05 and self._has_left:
            self._has_left = False
            self.position = self._draw()

    def _draw(self) -> Vector:
        """Arms up to 0.4 rad from the start pose, one axis at least 0.25 rad; fingers anywhere."""
        while True:
            offset = self._rng.uniform(-0.4, 0.4, NUM_ARM)
            if np.abs(offset).max() > 0.25:
                return np.concatenate((START_ARMS_RAD + offset, self._rng.uniform(0.1, 0.9, NUM_FINGERS)))
