"""Whether a robot moves the way it is told: each axis that is measured moves a little forth, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dovetail.core.achieved import pose_deltas
from dovetail.core.specs import ActionPart
from dovetail.core.types import Array, Observation
from dovetail.testing._rig import Rig, expect

__all__ = ["STEP", "check_directions"]

STEP = 0.05  # of an axis' range, and at most 0.05 rad or m
_NUM_TICKS, _SETTLE_TICKS = 5, 3
_LATE_S = 1.0  # an arm may execute a command late
_STANDS = 0.1  # share of the commanded motion; with degrees and rad confused, an axis moves 0.017 of it
_AWAY = 1.5  # a target that is this much further away than at the start is not approached
_BACKWARD = 0.3  # share of the commanded motion


def check_directions(rig: Rig) -> None:
    """Raise AssertionError if an axis moves against its command, or if a joint of a real robot ignores its target. Axes that
    nothing measures pass, and so do those of a simulated robot that do not move."""
    rig.safe.observe()
    for part in rig.spec.parts:
        if not _width(rig, part):
            continue
        if part.kind in ("joint_target", "ee_target"):
            _check_target(rig, part)
        elif part.kind == "ee_delta" or part.is_velocity:
            _check_motion(rig, part)


def _check_target(rig: Rig, part: ActionPart) -> None:
    """A target near the measured position must come nearer, and a real robot must move towards it."""
    num_axes = 3 if part.kind == "ee_target" else part.num_axes  # a turned pose is not compared
    axes = _axes(rig, part, num_axes)
    low, high = (bound[axes] for bound in rig.spec.action.bounds)
    step = STEP * np.minimum(np.degrees(1.0) if part.unit == "deg" else 1.0, 0.5 * (high - low))
    furthest = np.zeros(num_axes)  # share of the step
    for sign in (1.0, -1.0):
        start = _measured(part, _settled(rig))[:num_axes]
        inward = np.where((start + sign * step > high) | (start + sign * step < low), -sign, sign)
        target = start + inward * step
        for tick in range(_NUM_TICKS + round(_LATE_S * rig.spec.control_hz)):
            if tick >= _NUM_TICKS and (rig.simulated or (furthest >= _STANDS).all()):
                break
            here = _measured(part, _step(rig, axes, target))[:num_axes]
            _refuse_moving_away(rig, part, away=np.abs(target - here), step=step)
            furthest = np.maximum(furthest, np.abs(here - start) / step)
    stands = np.flatnonzero(furthest < _STANDS)
    if stands.size and not rig.simulated:
        rig.safe.stop()
        axis = int(stands[0])
        raise AssertionError(
            f"axis '{_name(part, axis)}' should move by {step[axis]:.3g} {part.unit} and moved by "
            f"{furthest[axis] * step[axis]:.2g}: it sends another unit, or the arm is not enabled or blocked"
        )


def _refuse_moving_away(rig: Rig, part: ActionPart, *, away: Array, step: Array) -> None:
    wrong = np.flatnonzero(away > _AWAY * step)
    if wrong.size:
        rig.safe.stop()
        axis = int(wrong[0])
        raise AssertionError(
            f"axis '{_name(part, axis)}' was {step[axis]:.3g} {part.unit} from its target and is now "
            f"{away[axis]:.3g} away: the driver reverses the axis, or uses another unit or zero"
        )


def _check_motion(rig: Rig, part: ActionPart) -> None:
    """A relative motion or a velocity must have the sign of its command."""
    axes = _axes(rig, part, part.num_axes)
    low, high = (bound[axes] for bound in rig.spec.action.bounds)
    step = STEP * np.minimum(-low, high)
    moved = {sign: _motion(rig, part, partial(_step, rig, axes, sign * step)) for sign in (1.0, -1.0)}
    expected = step * _NUM_TICKS * (1.0 if part.is_delta else 1.0 / rig.spec.control_hz)
    wrong = np.flatnonzero((moved[1.0] < -_BACKWARD * expected) & (moved[-1.0] > _BACKWARD * expected))
    if wrong.size:
        rig.safe.stop()
    expect(
        not wrong.size,
        f"axis '{_name(part, int(wrong[0]) if wrong.size else 0)}' moves against its command: the driver reverses the axis",
    )


def _motion(rig: Rig, part: ActionPart, step: Callable[[], Observation]) -> Array:
    """How far each axis moves in some ticks, [A], in the units of its action and their integral for a velocity."""
    measured = [_measured(part, _settled(rig)), *(_measured(part, step()) for _ in range(_NUM_TICKS))]
    if _width(rig, part) == 7 and part.frame:
        moved: Array = pose_deltas(np.stack(measured), part.frame).sum(axis=0)[: part.num_axes]
        return moved
    total: Array = np.sum(measured[1:], axis=0) / rig.spec.control_hz  # measured velocities
    return total


def _settled(rig: Rig) -> Observation:
    for _ in range(_SETTLE_TICKS):
        observation = rig.wait()
    return observation


def _step(rig: Rig, axes: slice, values: Array) -> Observation:
    """One tick in which these axes get a command and the others hold."""
    action = np.array(rig.safe.hold(), np.float32)
    action[axes] = values
    return rig.step(action)


def _axes(rig: Rig, part: ActionPart, num_axes: int) -> slice:
    first = rig.spec.slice_of(part.name).start
    return slice(first, first + num_axes)


def _width(rig: Rig, part: ActionPart) -> int:
    """Number of measured values of a part; 0 if they do not tell its motion."""
    spec = rig.spec.observation.get(part.measured_key)
    if spec is None or len(spec.shape) != 1:
        return 0
    width = len(range(*part.measured_slice.indices(spec.shape[0])))
    fits = (
        width == 7 if part.kind in ("ee_delta", "ee_target") else width in (7 if part.frame else 0, part.num_axes)
    )
    return width if fits else 0


def _measured(part: ActionPart, observation: Observation) -> Array:
    return observation.values[part.measured_key].reshape(-1)[part.measured_slice].astype(np.float64)


def _name(part: ActionPart, axis: int) -> str:
    return part.names[axis] if part.names else f"{part.name}[{axis}]"
