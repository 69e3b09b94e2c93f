"""Converts the positions of a leader arm to an action of the robot, without a jump at the takeover.

    joint_target, gripper             the leader's position; what differs at the takeover is matched or blended out
    joint_velocity                    the leader's motion since the last tick
    ee_delta, ee_velocity, ee_target  the motion of the leader's end effector since the takeover: `human.leader_pose`

Other parts, such as a mobile base, are not led: another operator may drive them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.abilities import Leader, LeadsByPose
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.human.leader_pose import CARTESIAN, PoseLead

__all__ = ["JointMap", "LeaderMapping"]

_KINDS = ("joint_target", "joint_velocity", "gripper")
_ANGLES = {"rad": 1.0, "deg": math.pi / 180.0}
_JOINT_SPEED = 0.8  # rad/s, if the part has no limit
_TOLERANCE_M_PER_RAD = 1.0 / 3.0
_GRIPPER_TOLERANCE = 0.25  # of its range


class JointMap(Config):
    """How an axis of the action follows an axis of the leader: scale * position + offset."""

    axis: str
    """Axis of the leader."""
    scale: float = Field(default=1.0)
    """Factor, after the conversion of units; a negative one reverses the direction."""
    offset: float = 0.0
    """Added, in the unit of the action's axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One axis of the action that the leader drives."""

    name: str
    at: int  # in the action
    source: int  # in the leader's positions
    factor: float
    offset: float
    step: float  # largest motion per tick
    tolerance: float
    is_gripper: bool
    is_velocity: bool
    measured: tuple[str, int] | None  # observation and index


class LeaderMapping:
    """See `human.handover.ActionMapping`. The axes of a drive command are the leader's positions."""

    refusal: str | None = None

    def __init__(
        self,
        robot: RobotSpec,
        leader: Leader,
        *,
        parts: Sequence[str] = (),
        joints: Mapping[str, JointMap] | None = None,
        waits: bool = True,
        tolerance_rad: float = 0.15,
        blend_speed: float = 0.2,
        speed: float = 1.0,
        scale: float = 1.0,
    ) -> None:
        """`waits`: the robot stands still until the leader is near it. `scale`: of an end effector's translations."""
        self._robot, self._leader = robot, leader
        self._poses: Mapping[str, int] = leader.poses if isinstance(leader, LeadsByPose) else {}
        self._joints, self._tolerance_rad, self._speed = dict(joints or {}), tolerance_rad, speed
        self._waits, self._blend_speed = waits, blend_speed
        self._low, self._high = robot.action.bounds
        self._check_names()
        allowed = [part for part in robot.parts if not parts or part.name in parts]
        self._leads = [
            PoseLead(robot, part, source=source, speed=speed, scale=scale)
            for part in allowed
            if (source := self._pose_of(part, allowed)) is not None
        ]
        others = [part for part in allowed if part.kind not in CARTESIAN or not self._poses]
        self._axes = [axis for part in others for axis in self._axes_of(part, wanted=part.name in parts)]
        if not self._axes and not self._leads:
            raise UsageError(
                f"operator 'leader': no axis of leader '{leader.name}' ({', '.join(leader.axes)}) has the name of a joint "
                f"of robot '{robot.name}' ({', '.join(robot.action.names)}). Set operator.joints; or, "
                "to lead an end effector, operator.kinematics and operator.part"
            )
        self.keeps: Array | None = None  # the leader has a position for each axis
        self.driven: Array | None = np.zeros(robot.action.shape, np.bool_)
        self._at = np.array([axis.at for axis in self._axes], np.int64)
        self.driven[self._at] = True
        for lead in self._leads:
            self.driven[lead.slice] = True
        self._is_gripper = np.array([axis.is_gripper for axis in self._axes], np.bool_)
        self._is_velocity = np.array([axis.is_velocity for axis in self._axes], np.bool_)
        self._last: Array | None = None  # wanted positions of the last tick, for velocities
        self._step = np.array([axis.step for axis in self._axes])
        self._tolerance = np.array([axis.tolerance for axis in self._axes])
        self._offset: Array | None = None  # the robot minus the leader, not yet blended out
        self._hold: Array | None = None  # where the robot waits
        self.waiting: str | None = None  # why the robot does not follow yet

    def check_gripper(self) -> None:
        """Raises UsageError if no gripper can be squeezed."""
        if not any(axis.is_gripper for axis in self._axes):
            raise UsageError(
                "operator 'leader': switch 'squeeze' needs a gripper that the leader drives. Set operator.switch=key"
            )

    def opening(self, positions: Array) -> float | None:
        """The leader's gripper from 0, closed, to 1, open; None without a gripper."""
        for axis in self._axes:
            if axis.is_gripper:
                low, high = float(self._low[axis.at]), float(self._high[axis.at])
                return (axis.factor * float(positions[axis.source]) + axis.offset - low) / (high - low)
        return None

    def leader_positions(self, observation: Observation, current: Array | None) -> Array | None:
        """The leader's positions that fit the robot's pose. None while the leader or the robot is not measured."""
        if current is None:
            return None
        wanted = np.array(current, np.float64)
        for axis, here in zip(self._axes, self._measured(observation), strict=True):
            if np.isfinite(here):
                wanted[axis.source] = (here - axis.offset) / axis.factor
        return wanted

    def begin(self) -> None:
        self.release()
        for lead in self._leads:
            lead.begin()

    def observe(self, observation: Observation) -> None:
        for lead in self._leads:
            lead.observe(observation)

    def release(self) -> None:
        self._offset = self._hold = self.waiting = self._last = None
        for lead in self._leads:
            lead.release()

    def action(self, axes: Array, observation: Observation) -> Array:
        """float32 [A]. Only the driven axes are valid."""
        wanted = np.array([axis.factor * float(axes[axis.source]) + axis.offset for axis in self._axes])
        measured = self._measured(observation)
        here = np.where(np.isfinite(measured), measured, wanted)  # a gripper that is not measured
        if self._offset is None:
            self._begin_following(wanted, here)
        if self._offset is None:
            assert self._hold is not None
            command = self._hold
        else:
            decay = self._blend_speed * self._step
            self._offset = np.sign(self._offset) * np.maximum(np.abs(self._offset) - decay, 0.0)
            command = wanted + self._offset
            near = np.clip(command, here - self._step, here + self._step)
            command = np.where(self._is_gripper, command, near)
        moved = wanted - (wanted if self._last is None or self._offset is None else self._last)
        velocities = np.clip(moved, -self._step, self._step) * self._robot.control_hz
        self._last = wanted
        action = np.zeros(self._low.shape)
        action[self._at] = np.where(self._is_velocity, velocities, command)
        for lead in self._leads:
            action[lead.slice] = lead.action(axes, observation, waits=self._offset is None)
        clipped: Array = np.clip(action, self._low, self._high).astype(np.float32)
        return clipped

    def _begin_following(self, wanted: Array, here: Array) -> None:
        """Follow from now on, or wait."""
        apart = np.abs(here - wanted) / self._tolerance
        worst = int(np.argmax(apart)) if len(apart) else 0
        if self._waits and (apart > 1.0).any():
            self._hold = here if self._hold is None else self._hold
            name, distance = self._axes[worst].name, abs(float(here[worst] - wanted[worst]))
            self.waiting = f"{name} is {distance:.2g} away, and {self._tolerance[worst]:.2g} is near enough"
            return
        self._offset, self._hold, self.waiting = here - wanted, None, None

    def _measured(self, observation: Observation) -> Array:
        """The robot's driven axes; NaN where nothing measures them."""
        found = np.full(len(self._axes), np.nan)
        for number, axis in enumerate(self._axes):
            if axis.measured is not None and (seen := observation.values.get(axis.measured[0])) is not None:
                found[number] = float(seen.reshape(-1)[axis.measured[1]])
        return found

    def _check_names(self) -> None:
        for name, mapped in self._joints.items():
            if name not in self._robot.action.names:
                raise UsageError(
                    f"operator.joints: robot '{self._robot.name}' has no action axis '{name}'."
                    + did_you_mean(name, self._robot.action.names)
                )
            if mapped.axis not in self._leader.axes:
                raise UsageError(
                    f"operator.joints.{name}: leader '{self._leader.name}' has no axis '{mapped.axis}'."
                    + did_you_mean(mapped.axis, self._leader.axes)
                )
            if mapped.scale == 0.0:
                raise UsageError(
                    f"operator.joints.{name}.scale is 0: the axis would not follow. Set another number"
                )

    def _pose_of(self, part: ActionPart, allowed: Sequence[ActionPart]) -> int | None:
        """First index of the leader's pose that leads this part: of the same name, or the only one. None: there is none."""
        if part.kind not in CARTESIAN or not self._poses:
            return None
        source = self._poses.get(part.name)
        if source is None and len(self._poses) == 1 and sum(one.kind in CARTESIAN for one in allowed) == 1:
            (source,) = self._poses.values()
        if source is not None and not (part.measured_key in self._robot.observation or part.frame == "base"):
            raise UsageError(
                f"operator 'leader': robot '{self._robot.name}' does not measure the pose of its part '{part.name}': set "
                "`measured` in its spec"
            )
        return source

    def _axes_of(self, part: ActionPart, *, wanted: bool) -> list[_Axis]:
        """The driven axes of a part: all of them, or none if the leader has none of them."""
        missing = [name for name in part.names if name not in self._joints and name not in self._leader.axes]
        if len(missing) == len(part.names) and not wanted:
            return []
        if missing:
            raise UsageError(
                f"operator 'leader': leader '{self._leader.name}' has no axis '{missing[0]}' of part '{part.name}', only "
                f"{', '.join(self._leader.axes)}. Set operator.joints.{missing[0]}"
            )
        if part.kind not in _KINDS:
            raise UsageError(
                f"operator 'leader' cannot drive part '{part.name}' of robot '{self._robot.name}' by joints: it takes "
                f"{part.kind} actions. Set operator.kinematics to lead its end effector, or operator.part to another arm"
            )
        if part.kind == "joint_target" and part.measured_key not in self._robot.observation:
            raise UsageError(
                f"operator 'leader': robot '{self._robot.name}' does not measure its part '{part.name}': set `measured` "
                "in its spec"
            )
        return [self._axis(part, number) for number in range(part.num_axes)]

    def _axis(self, part: ActionPart, number: int) -> _Axis:
        name, is_gripper = part.names[number], part.kind == "gripper"
        mapped = self._joints.get(name) or JointMap(axis=name)
        source = self._leader.axes.index(mapped.axis)
        unit, span = self._leader.units[source], part.high[number] - part.low[number]
        ours = part.unit.removesuffix("/s")
        both_angles = unit in _ANGLES and ours in _ANGLES
        if unit != ours and not both_angles and name not in self._joints:
            raise UsageError(
                f"operator 'leader': axis '{name}' is in {unit} at the leader, but in {ours} at the robot. "
                f"Set operator.joints.{name} with a scale"
            )
        convert = _ANGLES[unit] / _ANGLES[ours] if both_angles else 1.0
        rate = part.max_speed[number] if part.max_speed else span if is_gripper else _JOINT_SPEED
        per_rad = 1.0 / _ANGLES[ours] if ours in _ANGLES else _TOLERANCE_M_PER_RAD
        first = part.measured_slice.start or 0
        is_measured = part.measured_key in self._robot.observation and not part.is_velocity
        return _Axis(
            name=name,
            at=self._robot.slice_of(part.name).start + number,
            source=source,
            factor=mapped.scale * convert,
            offset=mapped.offset,
            step=self._speed * rate / self._robot.control_hz,
            tolerance=_GRIPPER_TOLERANCE * span if is_gripper else self._tolerance_rad * per_rad,
            is_gripper=is_gripper,
            is_velocity=part.is_velocity,
            measured=(part.measured_key, first + number) if is_measured else None,
        )
