"""A policy that acts at a lower rate than its robot: one policy step lasts several control ticks.

ticks = ticks_per_step(control_hz=50.0, policy_hz=10.0)     # 5
robot = at_policy_rate(robot, ticks)                        # the robot as the policy sees it: larger deltas
actions = to_ticks(parts, chunk, ticks, how="linear", before=last_action)      # [H, A] -> [H * ticks, A]
chunk = to_steps(parts, actions, ticks)                     # the inverse, for training and for committed actions

part          one policy step, from its ticks        its ticks, from one policy step
deltas        their sum                              equal parts
targets       the last one                           interpolated from the last step, or held
velocities    their mean                             held
grippers      the last one                           held
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from dovetail.core.action_parts import ActionPart
from dovetail.core.errors import ConfigError
from dovetail.core.poses import nearest_turn
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array

__all__ = ["Resampling", "at_policy_rate", "ticks_per_step", "to_steps", "to_ticks"]

Resampling = Literal["hold", "linear", "chunk"]
_TARGETS = ("joint_target", "ee_target")


def ticks_per_step(*, control_hz: float, policy_hz: float | None) -> int:
    """Control ticks of one policy step. Raises ConfigError unless it is a whole number."""
    if policy_hz is None:
        return 1
    ratio = control_hz / policy_hz
    if ratio < 1.0 - 1e-6 or abs(ratio - round(ratio)) > 1e-6:
        ticks = max(1, math.floor(ratio))
        nearest = " or ".join(f"{control_hz / n:.9g}" for n in ((ticks + 1, ticks) if ratio > 1.0 else (1,)))
        raise ConfigError(
            f"actor.policy_hz is {policy_hz:g}, but the robot's {control_hz:g} Hz is not a whole multiple of it. Set "
            f"actor.policy_hz to the nearest rate that works: {nearest}"
        )
    return round(ratio)


def at_policy_rate(robot: RobotSpec, ticks: int) -> RobotSpec:
    """The robot as the policy sees it: its rate, and deltas as large as those of all ticks of a step together."""
    if ticks == 1:
        return robot
    if any(not part.derived_from for part in robot.parts):
        parts = tuple(
            replace(part, low=_scaled(part.low, ticks), high=_scaled(part.high, ticks)) if part.is_delta else part
            for part in robot.parts
        )
        return RobotSpec(
            name=robot.name,
            embodiment=robot.embodiment,
            observation=robot.observation,
            parts=parts,
            control_hz=robot.control_hz / ticks,
        )
    factors = (
        np.where(_axes(robot.parts, is_delta=True), float(ticks), 1.0).tolist() or [1.0] * robot.action.shape[0]
    )
    low, high = (
        tuple(value * factor for value, factor in zip(bound, factors, strict=True)) if bound else ()
        for bound in (robot.action.low, robot.action.high)
    )
    action = replace(robot.action, low=low, high=high)
    return replace(robot, action=action, parts=(), control_hz=robot.control_hz / ticks)


def to_ticks(
    parts: Sequence[ActionPart], actions: Array, ticks: int, *, how: Resampling, before: Array | None = None
) -> Array:
    """From policy steps [H, A] to ticks [H * ticks, A]. `before` is the action of the tick before them, if it is known.

    Linear targets reach each point of the chunk at the last tick of its step.
    """
    if ticks == 1:
        return actions
    resampled = np.repeat(actions, ticks, axis=0).astype(np.float32)
    delta = _axes(parts, is_delta=True)
    if delta.any():
        resampled[:, delta] /= ticks
    if how == "linear":
        start = actions[:1] if before is None else np.asarray(before, actions.dtype)[None]
        share = ((np.arange(ticks) + 1) / ticks)[None, :, None]  # [1, ticks, 1]
        for part, at in _slices(parts):
            if part.kind not in _TARGETS:
                continue
            points, earlier = actions[:, at], np.concatenate((start[:, at], actions[:-1, at]))
            if part.kind == "ee_target" and part.num_axes == 6:
                turns = zip(earlier[:, 3:].astype(np.float64), points[:, 3:].astype(np.float64), strict=True)
                earlier[:, 3:] = [nearest_turn(turn, near=point) for turn, point in turns]
            between = earlier[:, None] + share * (points - earlier)[:, None]  # [H, ticks, n]
            between[:, -1] = points  # exactly
            resampled[:, at] = between.reshape(-1, points.shape[1])
    return resampled


def to_steps(
    parts: Sequence[ActionPart], actions: Array, ticks: int, *, exists: npt.NDArray[np.bool_] | None = None
) -> Array:
    """From ticks [..., H * ticks, A] to policy steps [..., H, A]. `exists` [..., H * ticks] is false after the last tick; a
    step counts what exists. A step without any tick repeats the values of its first row, without motion."""
    *batch, length, num_axes = actions.shape
    shaped = actions.reshape(*batch, length // ticks, ticks, num_axes)
    known = np.ones(shaped.shape[:-1], np.bool_) if exists is None else exists.reshape(shaped.shape[:-1])
    last = np.maximum(known.sum(axis=-1) - 1, 0)[..., None, None]  # ticks that exist come first
    steps: Array = np.take_along_axis(shaped, np.broadcast_to(last, (*last.shape[:-1], num_axes)), axis=-2)[
        ..., 0, :
    ].copy()
    delta, rate = _axes(parts, is_delta=True), _axes(parts, is_velocity=True)
    for axes, divides in ((delta, False), (rate, True)):
        if axes.any():
            total = np.where(known[..., None], shaped[..., axes], 0.0).sum(axis=-2)
            count = np.maximum(known.sum(axis=-1), 1)[..., None]
            steps[..., axes] = total / count if divides else total
    return steps.astype(actions.dtype)


def _slices(parts: Sequence[ActionPart]) -> list[tuple[ActionPart, slice]]:
    ends = np.cumsum([part.num_axes for part in parts]).tolist()
    return [(part, slice(end - part.num_axes, end)) for part, end in zip(parts, ends, strict=True)]


def _axes(
    parts: Sequence[ActionPart], *, is_delta: bool = False, is_velocity: bool = False
) -> npt.NDArray[np.bool_]:
    chosen = [(is_delta and part.is_delta) or (is_velocity and part.is_velocity) for part in parts]
    return np.repeat(np.array(chosen, np.bool_), [part.num_axes for part in parts])


def _scaled(values: tuple[float, ...], factor: int) -> tuple[float, ...]:
    return tuple(value * factor for value in values)
