"""Maps the axes of an input device, each in [-1, 1], to an action within the robot's limits, part by part.

    ee_delta, ee_velocity       a motion in the robot's base frame, so that up is up, rotated into the frame of the part
    ee_target                   the measured pose and a step; at rest the target stays
    velocity, joint_velocity    a velocity
    joint_target                the measured joints and a step; a joint that is not moved keeps its target
    gripper                     opens above 0.5, closes below -0.5, otherwise keeps its state, see `AxisMapping.keeps`

There is one axis for each axis of the action. After them come six Cartesian axes for each part with joints: they move it by
inverse kinematics (`human.kinematics`) if its geometry is known. An axis at 0 stands still. Other kinds of parts cannot be
driven: see `AxisMapping.refusal`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.human.drive_settings import KinematicsConfig
from dovetail.human.frames import PartFrame
from dovetail.human.kinematics import Kinematics
from dovetail.human.rotations import from_quaternion, from_vector, to_vector

__all__ = ["CARTESIAN_AXES", "AxisMapping", "cartesian_slice", "known_kinematics", "num_drive_axes"]

CARTESIAN_AXES = 6
_DELTAS = ("ee_delta", "ee_velocity")
_JOINTS = ("joint_target", "joint_velocity")
_DRIVABLE = (*_DELTAS, *_JOINTS, "ee_target", "velocity", "gripper")
_JOINT_VELOCITY = 0.8  # rad/s, if the part has no limit
_GRIP = 0.5


def num_drive_axes(robot: RobotSpec) -> int:
    """Number of axes of a drive command: those of the action, and six Cartesian ones for each part with joints."""
    return int(robot.action.shape[0]) + CARTESIAN_AXES * sum(part.kind in _JOINTS for part in robot.parts)


def cartesian_slice(robot: RobotSpec, part: str) -> slice:
    """The Cartesian axes of a part with joints in a drive command."""
    with_joints = [one.name for one in robot.parts if one.kind in _JOINTS]
    first = robot.action.shape[0] + CARTESIAN_AXES * with_joints.index(part)
    return slice(first, first + CARTESIAN_AXES)


def known_kinematics(robot: RobotSpec, configs: Sequence[KinematicsConfig]) -> dict[str, Kinematics]:
    """The geometry of each part, by name. Raises UsageError for a part that does not exist or has no joints."""
    found: dict[str, Kinematics] = {}
    with_joints = [part.name for part in robot.parts if part.kind in _JOINTS]
    for config in configs:
        name = config.part or (with_joints[0] if len(with_joints) == 1 else None)
        if name not in with_joints:
            known = ", ".join(with_joints) or "none"
            raise UsageError(
                f"operator.kinematics.part is {config.part!r}, but the parts of robot '{robot.name}' with joint actions "
                f"are: {known}. Set it to one of them"
            )
        found[name] = Kinematics(config, part=robot.part(name))
    return found


class AxisMapping:
    """Call `observe` with every observation, and `action` while the operator drives.

    `parts` are the parts that the operator drives; empty: all. The values of the others are not valid.
    """

    def __init__(
        self,
        robot: RobotSpec,
        *,
        speed: float = 1.0,
        parts: Collection[str] = (),
        kinematics: Sequence[KinematicsConfig] = (),
    ) -> None:
        self._robot = robot
        self._parts = [_PartMapping.of(robot, part, speed=speed) for part in robot.parts]
        self._num_axes = num_drive_axes(robot)
        problems = [
            mapping.refusal
            for mapping in self._parts
            if mapping.refusal is not None and (not parts or mapping.name in parts)
        ]
        self.refusal = problems[0] if problems else None if self._parts else "has no action parts"
        self._low, self._high = robot.action.bounds
        self.driven: Array | None = None  # mask of the axes that are driven; None: all
        if parts:
            self.driven = np.zeros(robot.action.shape, np.bool_)
            for name in parts:
                self.driven[robot.slice_of(name)] = True
        known = known_kinematics(robot, kinematics)
        for mapping in self._parts:
            mapping.kinematics = known.get(mapping.name)

    def load(self) -> None:
        """Read the files of the geometry. Raises UsageError if one is missing or wrong."""
        for part in self._parts:
            if part.kinematics is not None:
                part.kinematics.load()

    def begin(self) -> None:
        """Start a new episode. Its first observation sets the frame."""
        self.load()
        for part in self._parts:
            part.begin()

    def observe(self, observation: Observation) -> None:
        for part in self._parts:
            part.observe(observation)

    def release(self) -> None:
        """The policy may move the robot from now on."""
        for part in self._parts:
            part.release()

    @property
    def keeps(self) -> Array:
        """Mask bool [A] of the axes that stand still until the operator commands them: grippers. An object holds a gripper
        open, so its measured opening is not what was commanded; and some grippers measure nothing."""
        mask = np.zeros(self._low.shape, np.bool_)
        for part in self._parts:
            mask[part.axes] = part.keeps
        return mask

    def action(self, axes: Array, observation: Observation) -> Array:
        """float32 [A]. `axes` are those of a drive command; the Cartesian ones may be left out."""
        assert self.refusal is None, self.refusal
        moves = np.zeros(self._num_axes)
        moves[: len(axes)] = axes
        wanted = np.zeros(self._low.shape)
        for part in self._parts:
            if self.driven is None or self.driven[part.axes].all():
                wanted[part.axes] = part.action(moves, observation)
        clipped: Array = np.clip(wanted, self._low, self._high).astype(np.float32)
        return clipped


class _PartMapping:
    """A part whose value 0 stands still, such as a velocity."""

    refusal: str | None = None
    kinematics: Kinematics | None = None
    keeps: Array | bool = False

    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        self._part, self._speed = part, speed
        self._period_s = 1.0 / robot.control_hz
        self.name, self.axes = part.name, robot.slice_of(part.name)
        self.cartesian = cartesian_slice(robot, part.name) if part.kind in _JOINTS else slice(0, 0)
        low, high = robot.action.bounds
        self._low, self._high = low[self.axes], high[self.axes]

    @staticmethod
    def of(robot: RobotSpec, part: ActionPart, *, speed: float) -> _PartMapping:
        kinds: dict[str, type[_PartMapping]] = {
            "gripper": _Gripper,
            "joint_target": _Joints,
            "joint_velocity": _JointVelocities,
            "ee_target": _Pose,
            **dict.fromkeys(_DELTAS, _Cartesian),
        }
        mapping = kinds.get(part.kind, _PartMapping)(robot, part, speed=speed)
        is_measured = part.measured_key in robot.observation
        if part.kind not in _DRIVABLE:
            mapping.refusal = f"has part '{part.name}' of kind {part.kind}, which an operator cannot drive"
        elif part.kind in ("joint_target", "ee_target") and not is_measured:
            mapping.refusal = f"does not measure its part '{part.name}': set `measured` in its spec"
        return mapping

    def begin(self) -> None:
        pass

    def observe(self, observation: Observation) -> None:
        pass

    def release(self) -> None:
        pass

    def action(self, moves: Array, observation: Observation) -> Array:
        return self._scaled(moves[self.axes])

    def _scaled(self, moves: Array) -> Array:
        up = np.where(np.isfinite(self._high), self._high, 1.0)
        down = np.where(np.isfinite(self._low), -self._low, 1.0)
        scaled: Array = self._speed * np.where(moves >= 0.0, moves * up, moves * down)
        return scaled

    def _largest_step(self, *, unlimited: float = _JOINT_VELOCITY) -> Array:
        """Motion of each axis in one tick at full deflection."""
        velocity = np.array(self._part.max_speed or (unlimited,) * self._part.num_axes)
        step: Array = self._speed * velocity * self._period_s
        return step

    def _measured(self, observation: Observation) -> Array | None:
        seen = observation.values.get(self._part.measured_key)
        return None if seen is None else seen.reshape(-1)[self._part.measured_slice].astype(np.float64)


class _Cartesian(_PartMapping):
    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        super().__init__(robot, part, speed=speed)
        self._frame = PartFrame(part)

    def begin(self) -> None:
        self._frame.begin()

    def observe(self, observation: Observation) -> None:
        self._frame.observe(observation)

    def action(self, moves: Array, observation: Observation) -> Array:
        moves = moves[self.axes].copy()
        if (
            self._frame.from_base is not None
        ):  # without a pose, or in the base frame, the axes are those of the action
            for first in range(0, len(moves), 3):
                turned = self._frame.from_base @ moves[first : first + 3]
                moves[first : first + 3] = turned / max(1.0, float(np.abs(turned).max()))
        return self._scaled(moves)


class _Joints(_PartMapping):
    """Joint targets never lead the measured joints by more than one step, except for joints at rest, which keep theirs."""

    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        super().__init__(robot, part, speed=speed)
        self._step = self._largest_step()
        self._targets: Array | None = None

    def begin(self) -> None:
        self._targets = None

    def release(self) -> None:
        self._targets = None

    def action(self, moves: Array, observation: Observation) -> Array:
        measured = self._measured(observation)
        assert measured is not None
        targets = measured if self._targets is None else self._targets
        if self.kinematics is not None and moves[self.cartesian].any():
            targets = self._moved(np.clip(targets, measured - self._step, measured + self._step), moves)
            targets = np.clip(targets, measured - self._step, measured + self._step)
        jogs = moves[self.axes]
        self._targets = np.where(jogs != 0.0, measured + jogs * self._step, targets)
        return self._targets

    def _moved(self, joints: Array, moves: Array) -> Array:
        assert self.kinematics is not None
        move = moves[self.cartesian] * self.kinematics.largest_move * self._speed * self._period_s
        return self.kinematics.moved(joints, move, max_step=self._step, low=self._low, high=self._high)


class _JointVelocities(_PartMapping):
    """Joint velocities; Cartesian jog needs measured joints."""

    def action(self, moves: Array, observation: Observation) -> Array:
        velocities = self._scaled(moves[self.axes])
        measured = self._measured(observation)
        if self.kinematics is None or measured is None or not moves[self.cartesian].any():
            return velocities
        move = moves[self.cartesian] * self.kinematics.largest_move * self._speed * self._period_s
        unlimited = np.full(len(measured), np.inf)
        fastest = self._speed * np.minimum(np.abs(self._low), np.abs(self._high)) * self._period_s
        moved = self.kinematics.moved(measured, move, max_step=fastest, low=-unlimited, high=unlimited)
        return np.asarray(velocities + (moved - measured) / self._period_s)


class _Pose(_PartMapping):
    """An absolute pose: position and, with six axes, rotation vector, in the base frame."""

    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        super().__init__(robot, part, speed=speed)
        self._step = self._largest_step(unlimited=0.1)
        self._target: Array | None = None

    def begin(self) -> None:
        self._target = None

    def release(self) -> None:
        self._target = None

    def action(self, moves: Array, observation: Observation) -> Array:
        pose = self._measured(observation)
        assert pose is not None
        here = pose[:3]
        if self._part.num_axes > 3:
            near = None if self._target is None else self._target[3:]
            here = np.concatenate((here, to_vector(from_quaternion(pose[3:7]), near=near)))
        target = here if self._target is None else self._target
        moves = moves[self.axes]
        position = np.where(moves[:3] != 0.0, here[:3] + moves[:3] * self._step[:3], target[:3])
        turn = target[3:]
        if moves[3:].any():
            turned = from_vector(moves[3:] * self._step[3:]) @ from_vector(here[3:])
            change = to_vector(turned, near=here[3:]) - here[3:]
            # a rotation vector may change faster than its rotation
            turn = here[3:] + change / max(1.0, float(np.max(np.abs(change) / self._step[3:])))
        self._target = np.concatenate((position, turn))
        return self._target


class _Gripper(_PartMapping):
    def __init__(self, robot: RobotSpec, part: ActionPart, *, speed: float) -> None:
        super().__init__(robot, part, speed=speed)
        self.begin()

    def begin(self) -> None:
        self._command: Array | None = None
        self.keeps = np.ones(self._part.num_axes, np.bool_)

    def release(self) -> None:
        self.begin()

    def action(self, moves: Array, observation: Observation) -> Array:
        moves = moves[self.axes]
        self.keeps = self.keeps & (np.abs(moves) <= _GRIP)
        if self._command is None:
            seen = self._measured(observation)
            self._command = self._high if seen is None else np.clip(seen, self._low, self._high)
        self._command = np.where(moves > _GRIP, self._high, np.where(moves < -_GRIP, self._low, self._command))
        return self._command
