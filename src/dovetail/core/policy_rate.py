"""A policy that acts at a lower rate than its robot: a policy step lasts several control ticks, or a fraction like 5/3.

ticks = ticks_per_step(control_hz=50.0, policy_hz=30.0)     # 5/3
robot = at_policy_rate(robot, ticks)                        # the robot as the policy sees it: larger deltas
actions = to_ticks(parts, chunk, ticks, how="linear", before=last_action)      # [H, A] -> [covering_ticks(H), A]
chunk = to_steps(parts, actions, ticks)                     # back, for training and for committed actions

Step k of a chunk lasts from k * ticks to (k + 1) * ticks, tick t from t to t + 1. So a tick may belong to two steps.

part          one policy step, from its ticks            a tick, from the policy steps
deltas        their sum, weighted by the overlap         a tick's share of each step that it overlaps
targets       interpolated at the end of the step        at the end of the tick: interpolated, or of the step at that time
velocities    their mean, weighted by the overlap        the mean of the steps, weighted by the overlap
grippers      of the last tick that ends in the step     of the step at the end of the tick

With a whole number of ticks, `to_steps` is the exact inverse of `to_ticks`. Otherwise it is exact while the motion is even:
a tick across the end of a step mixes two steps, so that no tick exceeds the limit of a tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from dovetail.core.action_parts import ActionPart
from dovetail.core.errors import ConfigError
from dovetail.core.poses import nearest_turn
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, TicksPerStep

__all__ = [
    "Resampling",
    "at_policy_rate",
    "begun_steps",
    "covering_ticks",
    "first_tick",
    "nearest_ticks",
    "ticks_of_steps",
    "ticks_per_step",
    "to_steps",
    "to_ticks",
]

Resampling = Literal["hold", "linear", "chunk"]
_TARGETS = ("joint_target", "ee_target")
_MAX_DENOMINATOR = 1000  # so that 16.6666667 Hz is a third of 50 Hz
_Count = TypeVar("_Count", int, Array)


def ticks_per_step(*, control_hz: float, policy_hz: float | None) -> TicksPerStep:
    """Control ticks of one policy step, exactly. Raises ConfigError if the policy is faster than the robot."""
    if policy_hz is None:
        return 1
    if control_hz / policy_hz < 1.0 - 1e-6:
        raise ConfigError(
            f"actor.policy_hz is {policy_hz:g}, but the robot's rate is {control_hz:g} Hz. Set actor.policy_hz to at most "
            f"{control_hz:g}"
        )
    return Fraction(control_hz / policy_hz).limit_denominator(_MAX_DENOMINATOR)


def first_tick(step: _Count, ticks: TicksPerStep) -> _Count:
    """The tick in which a step begins."""
    return step * ticks.numerator // ticks.denominator


def covering_ticks(num_steps: _Count, ticks: TicksPerStep) -> _Count:
    """Ticks until so many steps are over."""
    return -(-num_steps * ticks.numerator // ticks.denominator)


def nearest_ticks(num_steps: _Count, ticks: TicksPerStep) -> _Count:
    """Ticks that are the closest to the duration of so many steps."""
    return (2 * num_steps * ticks.numerator + ticks.denominator) // (2 * ticks.denominator)


def begun_steps(num_ticks: _Count, ticks: TicksPerStep) -> _Count:
    """Steps that have begun within so many ticks."""
    return -(-num_ticks * ticks.denominator // ticks.numerator)


def ticks_of_steps(num_steps: int, ticks: TicksPerStep) -> tuple[Array, Array]:
    """The ticks that each step overlaps and by how much, both [num_steps, M]. A step that overlaps fewer than M ticks has
    its first one again, by 0."""
    step = np.arange(num_steps)[:, None]
    first, end = first_tick(step, ticks), covering_ticks(step + 1, ticks)
    tick = first + np.arange(int((end - first).max(initial=1)))
    tick_length, step_length = ticks.denominator, ticks.numerator  # in the smallest unit of time
    until = np.minimum((tick + 1) * tick_length, (step + 1) * step_length)
    overlap = (until - np.maximum(tick * tick_length, step * step_length)) / tick_length
    return np.where(tick < end, tick, first), np.where(tick < end, overlap, 0.0)


def at_policy_rate(robot: RobotSpec, ticks: TicksPerStep) -> RobotSpec:
    """The robot as the policy sees it: its rate, and deltas as large as those of all ticks of a step together."""
    if ticks == 1:
        return robot
    policy_hz = float(Fraction(robot.control_hz) / ticks)
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
            control_hz=policy_hz,
        )
    factors = (
        np.where(_axes(robot.parts, is_delta=True), float(ticks), 1.0).tolist() or [1.0] * robot.action.shape[0]
    )
    low, high = (
        tuple(value * factor for value, factor in zip(bound, factors, strict=True)) if bound else ()
        for bound in (robot.action.low, robot.action.high)
    )
    action = replace(robot.action, low=low, high=high)
    return replace(robot, action=action, parts=(), control_hz=policy_hz)


def to_ticks(
    parts: Sequence[ActionPart],
    actions: Array,
    ticks: TicksPerStep,
    *,
    how: Resampling,
    before: Array | None = None,
) -> Array:
    """From policy steps [H, A] to ticks [covering_ticks(H), A]. `before` is the action of the tick before them, if it is
    known.

    Linear targets reach each point of the chunk at the end of its step. The last tick may end after the last step, which
    then continues to the end of the tick.
    """
    if ticks == 1:
        return actions
    tick_length, step_length = ticks.denominator, ticks.numerator  # in the smallest unit of time
    end = (1 + np.arange(covering_ticks(len(actions), ticks))) * tick_length
    step = np.minimum(-(-end // step_length) - 1, len(actions) - 1)  # the one at the end of each tick
    since = end - step * step_length  # its time until then
    resampled = actions[step].astype(np.float32)
    delta = _axes(parts, is_delta=True)
    moving = delta | _axes(parts, is_velocity=True)
    if moving.any():
        two = since < tick_length  # ticks of two steps
        share = (since[two] / tick_length)[:, None]
        both = share * actions[step[two]] + (1.0 - share) * actions[step[two] - 1]
        resampled[np.ix_(two, moving)] = both[:, moving]
        resampled[:, delta] /= float(ticks)
    if how == "linear":
        start = actions[:1] if before is None else np.asarray(before, actions.dtype)[None]
        share = (since / step_length)[:, None]
        for part, at in _slices(parts):
            if part.kind not in _TARGETS:
                continue
            points, earlier = actions[:, at], np.concatenate((start[:, at], actions[:-1, at]))
            if part.kind == "ee_target" and part.num_axes == 6:
                turns = zip(earlier[:, 3:].astype(np.float64), points[:, 3:].astype(np.float64), strict=True)
                earlier[:, 3:] = [nearest_turn(turn, near=point) for turn, point in turns]
            between = earlier[step] + share * (points - earlier)[step]
            resampled[:, at] = np.where(share >= 1.0, points[step], between)  # exactly
    return resampled


def to_steps(
    parts: Sequence[ActionPart],
    actions: Array,
    ticks: TicksPerStep,
    *,
    exists: npt.NDArray[np.bool_] | None = None,
) -> Array:
    """From ticks [..., T, A] to the policy steps [..., H, A] that end within them. `exists` [..., T] is false after the last
    tick; a step counts what exists. A step without any tick repeats the values of its first row, without motion."""
    *batch, length, _ = actions.shape
    of_step, overlap = ticks_of_steps(length // ticks, ticks)  # [H, M]
    num_known = np.full(batch, length) if exists is None else exists.sum(axis=-1)  # ticks that exist come first
    newest = num_known[..., None] - 1  # [..., 1]
    first, ends = of_step[:, 0], np.arange(1, len(of_step) + 1)
    # [..., H], the last tick that ends in the step
    last = np.maximum(np.minimum(first_tick(ends, ticks) - 1, newest), first)
    steps: Array = np.take_along_axis(actions, last[..., None], axis=-2)
    # the part of the next tick that belongs to the step
    rest = (ends * ticks.numerator % ticks.denominator / ticks.denominator)[:, None]
    if rest.any():
        after = np.take_along_axis(actions, np.maximum(np.minimum(last + 1, newest), last)[..., None], axis=-2)
        for part, at in _slices(parts):
            if part.kind in _TARGETS:
                steps[..., at] = _between(part, steps[..., at], after[..., at], rest)
    known = (of_step <= newest[..., None]) & (overlap > 0.0)  # [..., H, M]
    shares = np.where(known, overlap, 0.0)
    by_step = np.take(actions, of_step, axis=-2)  # [..., H, M, A]
    delta, rate = _axes(parts, is_delta=True), _axes(parts, is_velocity=True)
    for axes, divides in ((delta, False), (rate, True)):
        if axes.any():
            moved = by_step[..., axes] * shares[..., None].astype(actions.dtype)
            total = np.where(known[..., None], moved, 0.0).sum(axis=-2)
            count = shares.sum(axis=-1)[..., None]
            steps[..., axes] = total / np.where(count > 0.0, count, 1.0) if divides else total
    return steps


def _between(part: ActionPart, start: Array, end: Array, share: Array) -> Array:
    """Targets at a share of the way from `start` to `end`, [..., n]."""
    if part.kind == "ee_target" and part.num_axes == 6:
        far = np.linalg.norm((end - start)[..., 3:], axis=-1) > np.pi  # then another rotation vector is nearer
        turns = zip(end[far, 3:].astype(np.float64), start[far, 3:].astype(np.float64), strict=True)
        for at, (turn, near) in zip(np.argwhere(far), turns, strict=True):
            end[(*at, slice(3, None))] = nearest_turn(turn, near=near)
    return np.asarray(start + share * (end - start))


def _slices(parts: Sequence[ActionPart]) -> list[tuple[ActionPart, slice]]:
    ends = np.cumsum([part.num_axes for part in parts]).tolist()
    return [(part, slice(end - part.num_axes, end)) for part, end in zip(parts, ends, strict=True)]


def _axes(
    parts: Sequence[ActionPart], *, is_delta: bool = False, is_velocity: bool = False
) -> npt.NDArray[np.bool_]:
    chosen = [(is_delta and part.is_delta) or (is_velocity and part.is_velocity) for part in parts]
    return np.repeat(np.array(chosen, np.bool_), [part.num_axes for part in parts])


def _scaled(values: tuple[float, ...], factor: TicksPerStep) -> tuple[float, ...]:
    return tuple(value * float(factor) for value in values)
