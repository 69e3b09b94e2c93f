"""Compares the measured speed and position of a robot with the limits of its safety filter: in episodes, resets and homing.

The filter limits what is commanded. A robot that moves faster or further than that is out of control: a wrong gain, a
collision, another program that moves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dovetail.actor.board import Board
from dovetail.config.safety import SafetyConfig
from dovetail.core.action_parts import ActionPart
from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import RobotSpec
from dovetail.robots.limits.axes import Axes
from dovetail.robots.limits.settings import checked_parts, largest_steps, pose_speeds

__all__ = ["MeasuredLimits"]

_WINDOW_S = 0.1  # over which a speed is measured
_GAP_NS = 10 * NS_PER_S  # in an episode the filter stops a robot that is not measured for so long
_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """Measured values of one part: each has a largest speed and limits, infinite if there are none."""

    part: ActionPart
    names: tuple[str, ...]
    unit: str
    max_speed: _Vector
    low: _Vector
    high: _Vector
    margin: float
    measures_speed: bool = False  # the observation is the speed itself

    def read(self, board: Board, number: int) -> _Vector:
        measured = board.measured(self.part.measured_key, number)[self.part.measured_slice]
        values: _Vector = measured.astype(np.float64)[: len(self.names)]
        return values

    def excess(self, values: _Vector) -> _Vector:
        """How far each value is outside its limits."""
        return np.maximum(np.maximum(self.low - values, values - self.high), 0.0)


class MeasuredLimits:
    """Call `violation` at every poll. Compares the newest measurement with the limits and with one 0.1 s before it.

    An arm may start outside its limits, and then only return: at the first measurement, after `restart`, at the start of an
    episode, and after 10 s without a measurement, because a person or its own controller may have moved it.
    """

    def __init__(self, board: Board, spec: RobotSpec, config: SafetyConfig) -> None:
        self._board, self._margin = board, 1.0 + config.guard_speed_margin
        self._values = _measured_values(spec, config)
        self._newest = -1  # the last measurement that was compared
        self._since = 0  # measurements before this one do not count
        self._newest_ns = 0  # its time
        self._episode = -1  # its first row
        self._excess: list[_Vector] = []  # how far each value may be outside its limits

    def restart(self) -> None:
        """Accept the position of the next measurement: a person may have moved the arm."""
        self._since, self._excess = self._board.num_measured, []

    def violation(self) -> str | None:
        """What the newest measurement breaks, or None."""
        board = self._board
        newest, episode = board.num_measured - 1, board.first
        if newest < self._since or newest == self._newest:
            return None
        newest_ns = int(board.measured_ns(newest)[-1])
        has_gap = newest_ns - self._newest_ns > _GAP_NS
        self._newest, self._newest_ns = newest, newest_ns
        here = [one.read(board, newest) for one in self._values]
        excess = [one.excess(values) for one, values in zip(self._values, here, strict=True)]
        if not self._excess or episode != self._episode or has_gap:
            self._episode, self._excess = episode, excess
        before, seconds = self._earlier(newest)
        for one, values, allowed in zip(self._values, here, self._excess, strict=True):
            there = one.read(board, before)
            found = self._too_fast(one, values, there, seconds) or _outside(one, values, allowed)
            if found is not None:
                return found
        self._excess = [np.minimum(old, new) for old, new in zip(self._excess, excess, strict=True)]
        return None

    def _earlier(self, newest: int) -> tuple[int, float]:
        """The last measurement that is 0.1 s older, and the seconds between them; 0 if there is none."""
        times = self._board.measured_ns(newest)[-(newest + 1 - self._since) :]
        ages_s = (times[-1] - times) / NS_PER_S
        old = np.flatnonzero(ages_s >= 0.99 * _WINDOW_S)
        if not len(old):
            return newest, 0.0
        return newest - (len(times) - 1 - int(old[-1])), float(ages_s[old[-1]])

    def _too_fast(self, one: _Values, here: _Vector, there: _Vector, seconds: float) -> str | None:
        if not (seconds or one.measures_speed):
            return None
        speed = np.abs(here) if one.measures_speed else np.abs(here - there) / seconds
        broken = speed > self._margin * one.max_speed
        if not broken.any():
            return None
        axis = int(np.argmax(np.where(broken, speed / one.max_speed, 0.0)))
        unit = one.unit if one.measures_speed else f"{one.unit}/s"
        return (
            f"the guard measured '{one.names[axis]}' of part '{one.part.name}' at {speed[axis]:.2f} {unit}, "
            f"but its limit is {one.max_speed[axis]:.2f} {unit}"
        )


def _outside(one: _Values, here: _Vector, excess_before: _Vector) -> str | None:
    broken = one.excess(here) > excess_before + one.margin
    if not broken.any():
        return None
    axis = int(np.argmax(broken))
    return (
        f"the guard measured '{one.names[axis]}' of part '{one.part.name}' at {here[axis]:.3f} {one.unit}, "
        f"outside its limits {one.low[axis]:.3f} to {one.high[axis]:.3f} {one.unit}"
    )


def _measured_values(spec: RobotSpec, config: SafetyConfig) -> list[_Values]:
    parts = checked_parts(spec, config, simulated=False)
    axes = Axes(spec, parts)
    speeds = largest_steps(spec, config, axes) * spec.control_hz
    return [
        values
        for part, at in axes.parts
        if part.measured_key in spec.observation
        and (values := _values_of(part, speeds[at], spec, config)) is not None
    ]


def _values_of(part: ActionPart, max_speed: _Vector, spec: RobotSpec, config: SafetyConfig) -> _Values | None:
    """Measured values of a part. None if they have another meaning than its limits: a gripper may hold an object."""
    num_measured = len(np.zeros(spec.observation[part.measured_key].shape).reshape(-1)[part.measured_slice])
    no_limit = np.full(part.num_axes, np.inf)
    names = part.names or tuple(f"axis {axis}" for axis in range(part.num_axes))
    margin = config.guard_position_margin
    if part.kind == "joint_target" and num_measured == part.num_axes:
        return _Values(
            part=part,
            names=names,
            unit=part.unit,
            max_speed=max_speed,
            low=np.array(part.low, np.float64),
            high=np.array(part.high, np.float64),
            margin=math.degrees(margin) if part.unit == "deg" else margin,
        )
    if part.is_velocity and num_measured == part.num_axes:
        return _Values(
            part=part,
            names=names,
            unit=part.unit,
            max_speed=np.array(part.max_speed, np.float64),
            low=-no_limit,
            high=no_limit,
            margin=margin,
            measures_speed=True,
        )
    if part.kind in ("ee_delta", "ee_target") and num_measured == 7:
        meters_per_s, _ = pose_speeds(part, max_speed, control_hz=spec.control_hz)
        box = config.workspace
        return _Values(
            part=part,
            names=("x", "y", "z"),
            unit="m",
            max_speed=np.full(3, meters_per_s),
            low=np.array(box.low) if box else -no_limit[:3],
            high=np.array(box.high) if box else no_limit[:3],
            margin=margin,
        )
    return None
