"""Moves parts of a robot to their targets before an episode: slowly, through the safety filter, with verified arrival.

Each part has a track, which gives its command for the next tick and says how far it is from its target:

    Joints        absolute targets that approach the goal step by step, all joints in proportion
    PoseTargets   the same for the pose of an end effector
    PoseDeltas    deltas from the measured pose
    Gripper       the target itself; the filter limits its speed
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock, GuardedRobot
from dovetail.core.errors import RobotFault
from dovetail.core.poses import (
    inverse,
    nearest_turn,
    product,
    quat_of,
    rotation_between,
    rotation_vector,
    turned,
)
from dovetail.core.reset_steps import MoveTo, check_targets
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array

__all__ = ["Gripper", "Joints", "Track", "follow", "move_to"]

Vector = npt.NDArray[np.float64]
_TICKS_THERE = 2  # consecutive ticks at the target
_MIN_GAIN, _STALL_TICKS = 0.25, 5  # of deltas, see PoseDeltas


class Track(Protocol):
    """The motion of one part to its target."""

    def begin(self, values: Mapping[str, Array], still: Vector) -> None:
        """Start at this observation. `still` is the action that stands still."""

    def command(self, values: Mapping[str, Array], action: Vector) -> None:
        """Write the part's command for the next tick into the action."""

    def off(self, values: Mapping[str, Array]) -> tuple[float, str]:
        """How far the part is from its target, relative to the tolerance, and the same in words."""


def move_to(motion: MoveTo, robot: GuardedRobot, clock: Clock, *, tick: Callable[[], None]) -> None:
    """Return when all parts have arrived. Raises RobotFault after the timeout, ConfigError for an unsuitable robot.

    `tick` waits for the next tick and may raise to end the motion.
    """
    check_targets(robot.spec, [motion], where="task")
    steps = np.asarray(robot.largest_steps(), np.float64)
    tracks = [_track(robot.spec.part(name), robot.spec, motion, steps) for name in motion.targets]
    follow(tracks, robot, clock, what=motion.name, timeout_s=motion.timeout_s, tick=tick)


def follow(
    tracks: Sequence[Track],
    robot: GuardedRobot,
    clock: Clock,
    *,
    what: str,
    timeout_s: float,
    tick: Callable[[], None],
) -> None:
    """Move all tracks together. Parts without a track stand still."""
    robot.reset()
    values = robot.observe().values
    still = robot.hold().astype(np.float64)
    for track in tracks:
        track.begin(values, still)
    tick()
    until_ns = clock.now_ns() + round(timeout_s * NS_PER_S)
    num_there = 0
    while True:
        values = robot.observe().values
        is_valid = robot.problem is None
        off = [track.off(values) for track in tracks] if is_valid else []
        is_there = is_valid and all(ratio <= 1.0 for ratio, _ in off)
        num_there = num_there + 1 if is_there else 0
        if num_there >= _TICKS_THERE:
            return
        if clock.now_ns() > until_ns:
            why = max(off)[1] if off else f"its last observation is invalid ({robot.problem})"
            raise RobotFault(
                f"robot '{robot.spec.name}' did not reach {what} in {timeout_s:g} s: {why}. Check for obstacles, or "
                "whether it is in reach"
            )
        action = still.copy()
        if is_valid:
            for track in tracks:
                track.command(values, action)
        robot.send(action.astype(np.float32))
        tick()


def _track(part: ActionPart, robot: RobotSpec, motion: MoveTo, steps: Vector) -> Track:
    at = robot.slice_of(part.name)
    axes, target = np.arange(at.start, at.stop), np.array(motion.targets[part.name], np.float64)
    offset = np.array(motion.offsets.get(part.name, np.zeros(part.num_axes)), np.float64)
    names = tuple(robot.action.names[at]) or tuple(f"{part.name}[{i}]" for i in range(part.num_axes))
    if part.kind == "gripper":
        return Gripper(axes=axes, target=target + offset, step=steps[at])
    if part.kind == "joint_target":
        in_unit = {"deg": math.degrees(motion.tolerance_rad), "m": motion.tolerance_m}
        return Joints(
            axes=axes,
            key=part.measured_key,
            columns=part.measured_slice,
            target=target + offset,
            tolerance=in_unit.get(part.unit, motion.tolerance_rad),
            step=steps[at],
            speed=motion.speed,
            names=names,
            unit=part.unit,
        )
    kind = PoseTargets if part.kind == "ee_target" else PoseDeltas
    return kind(part, axes=axes, motion=motion, target=target, offset=offset, step=steps[at], names=names)


class Joints:
    """Joint targets. `step` is the largest motion per tick."""

    def __init__(
        self,
        *,
        axes: npt.NDArray[np.intp],
        key: str,
        columns: slice,
        target: Vector,
        tolerance: float,
        step: Vector,
        names: Sequence[str],
        speed: float = 1.0,
        unit: str = "",
    ) -> None:
        self._axes, self._key, self._columns = axes, key, columns
        self._target, self._tolerance, self._step, self._speed = target, tolerance, step, speed
        self._names, self._unit = names, f" {unit}" if unit else ""
        self._reference = target

    def begin(self, values: Mapping[str, Array], still: Vector) -> None:
        self._reference = self._measured(values)

    def command(self, values: Mapping[str, Array], action: Vector) -> None:
        self._reference = _approached(self._reference, self._target, self._speed * self._step)
        here = self._measured(values)  # a blocked arm must not be far behind its command
        self._reference = np.clip(self._reference, here - self._step, here + self._step)
        action[self._axes] = self._reference

    def off(self, values: Mapping[str, Array]) -> tuple[float, str]:
        far = np.abs(self._measured(values) - self._target)
        worst = int(far.argmax())
        return float(
            far[worst]
        ) / self._tolerance, f"joint '{self._names[worst]}' is {far[worst]:.3f}{self._unit} off"

    def _measured(self, values: Mapping[str, Array]) -> Vector:
        return values[self._key].reshape(-1)[self._columns].astype(np.float64)


class Gripper:
    """A gripper. Whether it arrives is not verified: it may hold an object."""

    def __init__(self, *, axes: npt.NDArray[np.intp], target: Vector, step: Vector) -> None:
        self._axes, self._target, self._step = axes, target, step
        self._num_left = 0

    def begin(self, values: Mapping[str, Array], still: Vector) -> None:
        ticks = np.abs(self._target - still[self._axes]) / self._step
        self._num_left = math.ceil(float(ticks.max()) - 1e-6) + 1  # until the filter has let it through

    def command(self, values: Mapping[str, Array], action: Vector) -> None:
        action[self._axes] = self._target
        self._num_left = max(0, self._num_left - 1)

    def off(self, values: Mapping[str, Array]) -> tuple[float, str]:
        return float(2 * self._num_left), "its gripper is still moving"


class _Pose:
    """Common part of both kinds of end effector motion: the goal and the distance to it."""

    def __init__(
        self,
        part: ActionPart,
        *,
        axes: npt.NDArray[np.intp],
        motion: MoveTo,
        target: Vector,
        offset: Vector,
        step: Vector,
        names: Sequence[str],
    ) -> None:
        self._part, self._axes, self._step, self._speed = part, axes, step, motion.speed
        self._position, self._given = target[:3] + offset[:3], target[3:]
        self._turn = quat_of(offset[3:]) if offset.size > 3 else np.array((1.0, 0.0, 0.0, 0.0))
        self._quat = self._turn
        self._tolerance = np.repeat((motion.tolerance_m, motion.tolerance_rad), 3)[: axes.size]
        self._names = names

    def begin(self, values: Mapping[str, Array], still: Vector) -> None:
        given = self._given if self._given.size else self._measured(values)[1]
        self._quat = product(self._turn, given / np.linalg.norm(given))

    def off(self, values: Mapping[str, Array]) -> tuple[float, str]:
        far = np.abs(self._error(values))
        worst = int((far / self._tolerance).argmax())
        unit = "m" if worst < 3 else "rad"
        text = f"axis '{self._names[worst]}' of part '{self._part.name}' is {far[worst]:.3f} {unit} off"
        return float((far / self._tolerance).max()), text

    def _error(self, values: Mapping[str, Array]) -> Vector:
        """Motion to the goal in the base frame: translation and rotation vector."""
        position, quat = self._measured(values)
        error = np.concatenate((self._position - position, rotation_between(quat, self._quat)))
        return error[: self._axes.size]

    def _measured(self, values: Mapping[str, Array]) -> tuple[Vector, Vector]:
        pose = values[self._part.measured_key].reshape(-1)[self._part.measured_slice].astype(np.float64)
        return pose[:3], pose[3:7] / np.linalg.norm(pose[3:7])


class PoseTargets(_Pose):
    """Absolute poses in the base frame."""

    def begin(self, values: Mapping[str, Array], still: Vector) -> None:
        super().begin(values, still)
        self._at, self._facing = self._measured(values)
        self._sent = still[self._axes]

    def command(self, values: Mapping[str, Array], action: Vector) -> None:
        here, facing = self._measured(values)
        self._at = _approached(self._at, self._position, self._speed * self._step[:3])
        self._at = np.clip(self._at, here - self._step[:3], here + self._step[:3])
        self._sent[:3] = self._at
        if self._sent.size > 3:
            reach = float(self._step[3:].min())
            turn = _shortened(rotation_between(self._facing, self._quat), self._speed * reach)
            ahead = product(quat_of(turn), self._facing)
            self._facing = product(quat_of(_shortened(rotation_between(facing, ahead), reach)), facing)
            self._sent[3:] = nearest_turn(rotation_vector(self._facing), near=self._sent[3:])
        action[self._axes] = self._sent


class PoseDeltas(_Pose):
    """Deltas from the measured pose.

    Some arms add a delta to their last target, others to the measured pose. For the first, a delta of the whole error would
    overshoot while the arm lags behind; for the second, a smaller one may never overcome friction. So the share of the error
    starts small and grows while the arm makes no progress.
    """

    def begin(self, values: Mapping[str, Array], still: Vector) -> None:
        super().begin(values, still)
        self._reset_quat = self._measured(values)[1]
        self._gain, self._best, self._num_stalled = _MIN_GAIN, math.inf, 0

    def command(self, values: Mapping[str, Array], action: Vector) -> None:
        error = self._error(values)
        self._adapt(self.off(values)[0])
        if self._part.frame != "base":
            unframe = inverse(self._measured(values)[1] if self._part.frame == "tool" else self._reset_quat)
            error = np.concatenate([turned(unframe, error[at : at + 3]) for at in range(0, error.size, 3)])
        limit, low, high = self._speed * self._step, np.array(self._part.low), np.array(self._part.high)
        limit = np.minimum(limit, self._speed * np.minimum(-low, high)) if low.size else limit
        zero = np.zeros(3)
        for at in range(0, error.size, 3):
            some = slice(at, at + 3)
            error[some] = _approached(zero, self._gain * error[some], limit[some])
        action[self._axes] = error

    def _adapt(self, off: float) -> None:
        if off < 0.99 * self._best:
            self._best, self._num_stalled = off, 0
            return
        self._num_stalled += 1
        if off > 1.5 * self._best:  # it overshoots
            self._gain, self._num_stalled = _MIN_GAIN, 0
        elif self._num_stalled >= _STALL_TICKS:
            self._gain, self._num_stalled = min(1.0, 1.5 * self._gain), 0


def _approached(start: Vector, goal: Vector, step: Vector) -> Vector:
    """From `start` towards `goal`, by at most `step` on each axis, in a straight line."""
    gap = goal - start
    ratio = float(np.max(np.abs(gap) / step))
    return goal.copy() if ratio <= 1.0 else start + gap / ratio


def _shortened(turn: Vector, most_rad: float) -> Vector:
    angle = float(np.linalg.norm(turn))
    return turn if angle <= most_rad else turn * (most_rad / angle)
