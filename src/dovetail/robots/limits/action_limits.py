"""All limits of a robot's action: those of its parts, over time, and of the workspace.

The limits of a command are applied in this order:

    1. low and high of each part
    2. the step from the measured state, and the motion that the time since the last commands allows
    3. the workspace, less the motions that no measurement shows yet
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from dovetail.config.safety import SafetyConfig
from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array
from dovetail.robots.limits.allowance import Allowance
from dovetail.robots.limits.axes import LARGEST, Axes, Reason, Vector, clip
from dovetail.robots.limits.deltas import Deltas
from dovetail.robots.limits.frames import Frame, Room
from dovetail.robots.limits.pending import PendingDeltas
from dovetail.robots.limits.settings import checked_parts, largest_steps
from dovetail.robots.limits.targets import Gripper, JointTargets, PoseTargets

__all__ = ["ActionLimits"]

_DELAY_TICKS = 3


class _PartLimits(Protocol):
    def reset(self, *, moved: bool) -> None:
        """Start an episode. `moved`: a simulator may have placed the robot anywhere."""

    def measure(self, values: Mapping[str, Array]) -> None:
        """Store a valid observation."""

    def remember(self, executed: Array) -> None:
        """Store the executed action."""


class _Arm:
    """The end effector of one part, if the workspace or its frame matters."""

    def __init__(self, at: slice, frame: Frame, limits: Deltas | PoseTargets, room: Room | None) -> None:
        self.xyz = slice(at.start, at.start + 3)
        self.frame, self.limits, self.room = frame, limits, room


class ActionLimits:
    """Limits actions, in place, as float64 vectors."""

    def __init__(self, spec: RobotSpec, config: SafetyConfig, *, simulated: bool = False) -> None:
        parts = checked_parts(spec, config, simulated=simulated)
        self._simulated = simulated
        self._axes = axes = Axes(spec, parts)
        self._parts: list[_PartLimits] = []
        self._arms: list[_Arm] = []
        self.largest_steps = steps = largest_steps(spec, config, axes)  # infinite where nothing limits them
        for part, at in axes.parts:
            self._add(part, at, steps[at], spec=spec, config=config)
        self._deltas = [part for part in self._parts if isinstance(part, Deltas)]
        self._has_targets = bool(axes.is_target.any())
        self._limits_targets = bool((axes.step_up[axes.is_target] < LARGEST).any())  # in speed
        self._allowance = Allowance(axes, spec.control_hz)
        delay_s = _DELAY_TICKS / spec.control_hz if config.delay_s is None else config.delay_s
        is_unknown = any(
            arm.room and isinstance(arm.limits, Deltas) and arm.limits.ahead is None for arm in self._arms
        )
        self._pending = PendingDeltas(
            axes.low.size, num_arms=len(self._arms), delay_ns=int(delay_s * NS_PER_S) if is_unknown else 0
        )
        self._is_reserved = True  # whether the windows take all pending deltas into account
        self._no_motion = np.zeros((len(self._arms), 3))

    @property
    def low(self) -> Vector:
        return self._axes.low

    @property
    def high(self) -> Vector:
        return self._axes.high

    @property
    def is_gripper(self) -> Array:
        """Mask of the gripper axes, bool [A]."""
        return self._axes.is_gripper

    def reset(self) -> None:
        """Take the frames and the grippers from the next observation. Spent allowances stay spent."""
        for part in self._parts:
            part.reset(moved=self._simulated)
        for arm in self._arms:
            arm.frame.reset()
        if self._simulated:
            self._pending.clear()

    def forget_hold(self) -> None:
        """The robot was stopped: hold where it is measured next."""
        for part in self._parts:
            if isinstance(part, JointTargets):
                part.forget_hold()

    def find_problem(self, values: Mapping[str, Array]) -> str | None:
        for arm in self._arms:
            if (problem := arm.frame.find_problem(values)) is not None:
                return problem
        return None

    def measure(self, values: Mapping[str, Array], measured_ns: int) -> None:
        """Store a valid observation. `measured_ns` is its time by the filter's clock."""
        self._pending.measure(measured_ns)
        for arm in self._arms:
            arm.frame.measure(values)
        for part in self._parts:
            part.measure(values)
        for arm in self._arms:
            if arm.room is not None:
                arm.room.measure(arm.limits.ahead if isinstance(arm.limits, Deltas) else None)
        self._is_reserved = self._pending.is_empty

    def hold(self) -> Vector:
        """An action that stands still: the measured targets, zero deltas and velocities, unchanged grippers."""
        return self._axes.still.copy()

    def unwrap(self, action: Vector) -> None:
        """Write rotations as the vectors that are closest to the last command, in place."""
        for arm in self._arms:
            if isinstance(arm.limits, PoseTargets):
                arm.limits.unwrap(action)

    def limit(self, action: Vector, now_ns: int) -> int:
        """Clip an action in place. Return the reasons as flags."""
        axes = self._axes
        reasons = int(Reason.LIMIT) if clip(action, axes.low, axes.high) else 0
        self._allowance.refill(now_ns)
        if not self._is_reserved:
            self._reserve()
        low, high = axes.window_low, axes.window_high
        if self._limits_targets or not self._allowance.has_step:
            down, up = self._allowance.steps()
            center = np.minimum(np.maximum(axes.last, low), high)
            low, high = np.maximum(low, center - down), np.minimum(high, center + up)
        if clip(action, low, high):
            reasons |= int(Reason.STEP)
        for arm in self._arms:
            if arm.room is not None and self._keep_inside(arm, action, low, high):
                reasons |= int(Reason.WORKSPACE)
        return reasons

    def charge(self, sent: Vector, now_ns: int) -> None:
        """Count a command, before it is sent."""
        axes = self._axes
        self._allowance.refill(now_ns)
        self._allowance.charge(sent - axes.last)
        if self._has_targets:
            np.copyto(axes.last, sent, where=axes.is_target)
        if self._deltas:
            moved = self._no_motion
            if self._arms:
                moved = np.array([arm.frame.matrix @ sent[arm.xyz] for arm in self._arms])
            self._pending.add(sent * axes.is_delta, moved, now_ns)
            self._is_reserved = False

    def remember(self, executed: Array) -> None:
        """Store the executed action that the driver returned."""
        for part in self._parts:
            part.remember(executed)

    def _reserve(self) -> None:
        """Update the windows and rooms of delta parts for the pending deltas."""
        pending = self._pending
        self._is_reserved = True
        since = pending.since_measured()
        for part in self._deltas:
            part.reserve(since)
        for index, arm in enumerate(self._arms):
            if arm.room is None or not isinstance(arm.limits, Deltas):
                continue
            if pending.is_full:
                arm.room.close()
            elif not pending.is_empty:
                arm.room.reserve(*pending.extremes(index))

    def _keep_inside(self, arm: _Arm, action: Vector, low: Vector, high: Vector) -> bool:
        assert arm.room is not None
        at = arm.xyz
        if isinstance(arm.limits, Deltas):
            return arm.room.keep_inside(action[at], low[at], high[at])
        center = arm.frame.position
        motion = action[at] - center
        changed = arm.room.keep_inside(
            motion, np.minimum(low[at] - center, 0.0), np.maximum(high[at] - center, 0.0)
        )
        if changed:
            action[at] = center + motion
        return changed

    def _add(
        self,
        part: ActionPart,
        at: slice,
        step: Vector,
        *,
        spec: RobotSpec,
        config: SafetyConfig,
    ) -> None:
        axes = self._axes
        if part.kind == "joint_target":
            self._parts.append(JointTargets(part, at, axes, step, simulated=self._simulated))
        elif part.kind == "gripper":
            limited = np.array(part.max_speed) / spec.control_hz if part.max_speed else None
            self._parts.append(Gripper(part, at, axes, limited))
        elif part.kind in ("ee_delta", "ee_target"):
            self._add_arm(part, at, step, spec=spec, config=config)
        elif part.is_velocity:
            fastest = np.minimum(step * spec.control_hz, LARGEST)
            axes.low[at] = np.maximum(axes.low[at], -fastest)
            axes.high[at] = np.minimum(axes.high[at], fastest)
        else:  # unknown kind: limited in its change from command to command
            if config.hold_action is not None:
                axes.still[at] = np.clip(config.hold_action[at], axes.low[at], axes.high[at])
            axes.last[at] = axes.still[at]
            if np.isfinite(step).all():
                axes.is_target[at] = True
                axes.set_step(at, step)

    def _add_arm(
        self,
        part: ActionPart,
        at: slice,
        step: Vector,
        *,
        spec: RobotSpec,
        config: SafetyConfig,
    ) -> None:
        frame = Frame(part.frame, part.measured_key, part.measured_slice)
        room = Room(config.workspace, frame) if config.workspace is not None else None
        limits: Deltas | PoseTargets
        if part.kind == "ee_target":
            limits = PoseTargets(part, at, self._axes, step, frame, simulated=self._simulated)
        else:
            deltas = [one for one, _ in self._axes.parts if one.kind == "ee_delta"]
            reference = spec.observation.get(config.reference_key)
            is_known = reference is not None and reference.shape == (6 * len(deltas),)
            number = deltas.index(part)
            limits = Deltas(
                at,
                self._axes,
                step,
                reference_key=config.reference_key if is_known else "",
                columns=slice(6 * number, 6 * number + part.num_axes),
            )
        self._parts.append(limits)
        if room is not None or part.kind == "ee_target":
            self._arms.append(_Arm(at, frame, limits, room))
