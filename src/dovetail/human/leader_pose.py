"""A leader's end effector leads the end effector of the robot.

What counts is the motion since the takeover, in the base frame of each, so nothing jumps: the robot starts where it is
measured, wherever the leader is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.core.abilities import Leader, StartsSlowly
from dovetail.core.errors import UsageError
from dovetail.core.poses import quat_of
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.human.drive_settings import KinematicsConfig
from dovetail.human.frames import PartFrame
from dovetail.human.kinematics import Kinematics
from dovetail.human.rotations import from_quaternion, from_vector, to_vector

__all__ = ["CARTESIAN", "POSE_NAMES", "PoseLead", "PosedLeader"]

CARTESIAN = ("ee_delta", "ee_velocity", "ee_target")
POSE_NAMES = ("x", "y", "z", "qw", "qx", "qy", "qz")
_SPEED_M_S, _TURN_RAD_S = 0.1, 0.5  # of a part without a speed limit
_FAR = 1e6


class PoseLead:
    """One Cartesian part that follows a pose. Values [7]: position, then quaternion (w, x, y, z)."""

    def __init__(self, robot: RobotSpec, part: ActionPart, *, source: int, speed: float, scale: float) -> None:
        """`source`: where the pose starts in the leader's values. `scale`: of translations."""
        self.slice = robot.slice_of(part.name)
        self._part, self._source, self._scale = part, slice(source, source + 7), scale
        self._hz, self._frame = robot.control_hz, PartFrame(part)
        most = np.array(part.max_speed or (_SPEED_M_S,) * 3 + (_TURN_RAD_S,) * (part.num_axes - 3)) / self._hz
        if part.is_delta:
            most = np.minimum(most, np.minimum(-np.array(part.low), np.array(part.high)))
        self._step = np.maximum(speed * most, 1e-9)  # largest motion per tick
        self.begin()

    def begin(self) -> None:
        self._frame.begin()
        self.release()

    def observe(self, observation: Observation) -> None:
        self._frame.observe(observation)

    def release(self) -> None:
        self._start: tuple[Array, Array] | None = None  # of the leader
        self._robot_start: tuple[Array, Array] | None = None  # only of a part with targets
        self._done = np.zeros(3), np.eye(3)  # what the deltas add up to

    def action(self, values: Array, observation: Observation, *, waits: bool) -> Array:
        """Values of the part. `waits`: the robot stands still, and the takeover begins later."""
        position, rotation = _pose(values[self._source])
        if self._start is None or waits:
            self._start = position, rotation
        move, turn = self._scale * (position - self._start[0]), rotation @ self._start[1].T
        return self._target(move, turn, observation) if self._part.kind == "ee_target" else self._delta(move, turn)

    def _target(self, move: Array, turn: Array, observation: Observation) -> Array:
        here, turned = _pose(observation.values[self._part.measured_key].reshape(-1)[self._part.measured_slice])
        if self._robot_start is None:
            self._robot_start = here, turned
        start, turned_start = self._robot_start
        move = _shortened(start + move - here, self._step[:3])
        if self._part.num_axes == 3:
            return here + move
        turn = from_vector(_shortened(to_vector(turn @ turned_start @ turned.T), self._step[3:]))
        return np.concatenate((here + move, to_vector(turn @ turned, near=to_vector(turned))))

    def _delta(self, move: Array, turn: Array) -> Array:
        """The rest of the motion, limited to one tick; for a velocity part, per second."""
        moved, turned = self._done
        frame = np.eye(3) if self._frame.from_base is None else self._frame.from_base
        step = _shortened(frame @ (move - moved), self._step[:3])
        steps, moved = [step], moved + frame.T @ step
        if self._part.num_axes > 3:
            step = _shortened(frame @ to_vector(turn @ turned.T), self._step[3:])
            steps, turned = [*steps, step], from_vector(frame.T @ step) @ turned
        self._done = moved, turned
        return np.concatenate(steps) * (self._hz if self._part.is_velocity else 1.0)


class PosedLeader:
    """A leader with joints whose pose is computed from an MJCF or URDF file. Its values are the joints', then the pose."""

    can_follow = False

    def __init__(self, leader: Leader, config: KinematicsConfig) -> None:
        self._leader = leader
        found = [at for at, unit in enumerate(leader.units) if unit in ("rad", "deg")]
        units = {leader.units[at] for at in found}
        if len(units) != 1:
            raise UsageError(
                f"operator.kinematics: leader '{leader.name}' has joints in {', '.join(sorted(units)) or 'no angle'}: "
                "expected one unit, rad or deg"
            )
        self._joints = np.array(found)
        names, count = tuple(leader.axes[at] for at in found), len(found)
        part = ActionPart(
            name=leader.name,
            kind="joint_target",
            unit=units.pop(),
            names=names,
            low=(-_FAR,) * count,
            high=(_FAR,) * count,
            max_speed=(_FAR,) * count,
            measured="leader",
        )
        self._kinematics = Kinematics(config, part=part)
        name = config.part or leader.name
        self.name = leader.name
        self.axes = (*leader.axes, *(f"{name}.{axis}" for axis in POSE_NAMES))
        self.units = (*leader.units, *("m",) * 3, *("1",) * 4)
        self.poses: Mapping[str, int] = {name: len(leader.axes)}

    @property
    def start_timeout_s(self) -> float:
        return self._leader.start_timeout_s if isinstance(self._leader, StartsSlowly) else 10.0

    def read(self) -> Array:
        self._kinematics.load()
        values = np.asarray(self._leader.read(), np.float64)
        position, rotation = self._kinematics.pose(values[self._joints])
        return np.concatenate((values, position, quat_of(to_vector(rotation))))

    def follow(self, positions: Array) -> None: ...

    def release(self) -> None:
        self._leader.release()

    def close(self) -> None:
        self._leader.close()


def _pose(values: Array) -> tuple[Array, Array]:
    return np.asarray(values[:3], np.float64), from_quaternion(values[3:7])


def _shortened(vector: Array, most: Array) -> Array:
    """The vector, shortened until no axis exceeds its limit."""
    return vector / max(1.0, float(np.max(np.abs(vector) / most)))
