"""Maps the axes of an input device, each in [-1, 1], to an action within the robot's limits, part by part.

    ee_delta, ee_velocity       a motion in the robot's base frame, so that up is up, rotated into the frame of the part
    velocity, joint_velocity    a velocity
    joint_target                the measured joints and a step; a joint that is not moved keeps its target
    gripper                     opens above 0.5, closes below -0.5, otherwise keeps its state

An axis at 0 stands still. Other kinds of parts cannot be driven: see `AxisMapping.refusal`.
"""

from __future__ import annotations

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array, Observation

__all__ = ["AXES", "AxisMapping", "map_axes"]

AXES = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper", "base_x", "base_y", "base_turn")
"""Axes of devices: the arm in the robot's base frame, the gripper, and a mobile base."""
_CARTESIAN = ("ee_delta", "ee_velocity")
_FROM_ZERO = (*_CARTESIAN, "velocity", "joint_velocity")
_JOINT_VELOCITY = 0.8  # rad/s, if the part has no limit
_GRIP = 0.5
_BASE = {  # by unit and number of axes: forward, left, turn
    ("m/s+rad/s", 3): ("base_x", "base_y", "base_turn"),
    ("m/s+rad/s", 2): ("base_x", "base_turn"),
    ("m/s", 2): ("base_x", "base_y"),
    ("m/s", 1): ("base_x",),
    ("rad/s", 1): ("base_turn",),
}
_ARM_AXIS_FOR_BASE = {"base_x": "dx", "base_y": "dy", "base_turn": "drz"}  # for a robot without an arm


def map_axes(robot: RobotSpec, *, name: str) -> dict[int, int]:
    """Map the robot's action axes to device axes. Raises UsageError for a robot that devices cannot drive.

    Devices drive one arm with Cartesian actions, its grippers and one mobile base. Other parts stand still.
    """
    arms = [part for part in robot.parts if part.kind in _CARTESIAN]
    bases = [part for part in robot.parts if part.kind == "velocity"]
    problem = AxisMapping(robot).refusal
    if not arms and not bases:
        kinds = ", ".join(dict.fromkeys(part.kind for part in robot.parts)) or robot.action_kind
        problem = f"takes {kinds} actions. Set robot.action=ee_delta or use another operator"
    elif len(arms) > 1 or len(bases) > 1:
        problem = f"has {len(arms)} arms and {len(bases)} bases, and devices drive one. Use another operator"
    if problem is not None:
        raise UsageError(f"operator '{name}' drives in Cartesian space, but robot '{robot.name}' {problem}")
    mapped: dict[int, int] = {}
    for part in robot.parts:
        first = robot.slice_of(part.name).start
        if part.kind in _CARTESIAN:
            mapped |= {first + axis: axis for axis in range(part.num_axes)}
        elif part.kind == "gripper":
            mapped |= {first + axis: AXES.index("gripper") for axis in range(part.num_axes)}
        elif part.kind == "velocity":
            if (part.unit, part.num_axes) not in _BASE:
                raise UsageError(
                    f"operator '{name}' cannot drive part '{part.name}' of robot '{robot.name}': expected forward, left and "
                    f"turn, or fewer, but it has {part.num_axes} axes in {part.unit}"
                )
            axes = _BASE[part.unit, part.num_axes]
            used = axes if arms else tuple(_ARM_AXIS_FOR_BASE[axis] for axis in axes)
            mapped |= {first + at: AXES.index(axis) for at, axis in enumerate(used)}
    return mapped


class AxisMapping:
    """Call `observe` with every observation, and `action` while the operator drives."""

    def __init__(self, robot: RobotSpec, *, speed: float = 1.0) -> None:
        self._robot = robot
        self._parts = [_PartMapping.of(robot, part, speed=speed) for part in robot.parts]
        problems = [part.refusal for part in self._parts if part.refusal is not None]
        self.refusal = problems[0] if problems else None if self._parts else "has no action parts"
        self._low, self._high = robot.action.bounds

    def begin(self) -> None:
        """Start a new episode. Its first observation sets the frame."""
        for part in self._parts:
            part.begin()

    def observe(self, observation: Observation) -> None:
        for part in self._parts:
            part.observe(observation)

    def release(self) -> None:
        """The policy may move the gripper from now on."""
        for part in self._parts:
            part.release()

    def action(self, axes: Array, observation: Observation) -> Array:
        """float32 [A]."""
        assert self.refusal is None, self.refusal
        moves = np.asarray(axes, np.float64)
        wanted = np.concatenate([part.action(moves[part.axes], observation) for part in self._parts])
        clipped: Array = np.clip(wanted, self._low, self._high).astype(np.float32)
        return clipped


class _PartMapping:
    """A part whose value 0 stands still, such as a velocity."""

    refusal: str | None = None

    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        self._part, self._speed = part, speed
        self.axes = robot.slice_of(part.name)
        low, high = robot.action.bounds
        self._low, self._high = low[self.axes], high[self.axes]

    @staticmethod
    def of(robot: RobotSpec, part: ActionPart, *, speed: float) -> _PartMapping:
        kinds = {"gripper": _Gripper, "joint_target": _Joints}
        kind = _Cartesian if part.kind in _CARTESIAN else kinds.get(part.kind, _PartMapping)
        mapping = kind(robot, part, speed=speed)
        needs_joints = part.kind == "joint_target" and part.measured_key not in robot.observation
        if part.kind not in (*_FROM_ZERO, *kinds):
            mapping.refusal = f"has part '{part.name}' of kind {part.kind}, which an operator cannot drive"
        elif needs_joints:
            mapping.refusal = f"does not measure its part '{part.name}': set `measured` in its spec"
        return mapping

    def begin(self) -> None:
        pass

    def observe(self, observation: Observation) -> None:
        pass

    def release(self) -> None:
        pass

    def action(self, moves: Array, observation: Observation) -> Array:
        up = np.where(np.isfinite(self._high), self._high, 1.0)
        down = np.where(np.isfinite(self._low), -self._low, 1.0)
        scaled: Array = self._speed * np.where(moves >= 0.0, moves * up, moves * down)
        return scaled

    def _measured(self, observation: Observation) -> Array | None:
        seen = observation.values.get(self._part.measured_key)
        return None if seen is None else seen.reshape(-1)[self._part.measured_slice]


class _Cartesian(_PartMapping):
    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        super().__init__(robot, part, speed=speed)
        self._unframe: Array | None = None  # base to action

    def begin(self) -> None:
        self._unframe = None

    def observe(self, observation: Observation) -> None:
        is_new = self._unframe is None or self._part.frame == "tool"
        if is_new and self._part.frame in ("reset", "tool") and (pose := self._measured(observation)) is not None:
            self._unframe = _matrix(pose[3:7]).T

    def action(self, moves: Array, observation: Observation) -> Array:
        moves = moves.copy()
        if self._unframe is not None:  # without a pose, or in the base frame, the axes are those of the action
            for first in range(0, len(moves), 3):
                turned = self._unframe @ moves[first : first + 3]
                moves[first : first + 3] = turned / max(1.0, float(np.abs(turned).max()))
        return super().action(moves, observation)


class _Joints(_PartMapping):
    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        super().__init__(robot, part, speed=speed)
        velocity = np.array(part.max_speed or (_JOINT_VELOCITY,) * part.num_axes)
        self._step = speed * velocity / robot.control_hz
        self._targets: Array | None = None

    def begin(self) -> None:
        self._targets = None

    def release(self) -> None:
        self._targets = None

    def action(self, moves: Array, observation: Observation) -> Array:
        measured = self._measured(observation)
        assert measured is not None
        targets = measured if self._targets is None else self._targets
        self._targets = np.where(moves != 0.0, measured + moves * self._step, targets)
        return self._targets


class _Gripper(_PartMapping):
    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        super().__init__(robot, part, speed=speed)
        self._command: Array | None = None

    def begin(self) -> None:
        self._command = None

    def release(self) -> None:
        self._command = None

    def action(self, moves: Array, observation: Observation) -> Array:
        if self._command is None:
            seen = self._measured(observation)
            self._command = self._high if seen is None else np.clip(seen, self._low, self._high)
        self._command = np.where(moves > _GRIP, self._high, np.where(moves < -_GRIP, self._low, self._command))
        return self._command


def _matrix(quat: Array) -> Array:
    """Rotation matrix of a quaternion (w, x, y, z)."""
    w, x, y, z = np.asarray(quat, np.float64) / max(float(np.linalg.norm(quat)), 1e-9)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
