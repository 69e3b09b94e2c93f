"""Compares the measured speed and position of a robot with the limits of its safety filter, from the rows on the board.

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
from dovetail.robots.limits.settings import checked_parts, largest_steps

__all__ = ["MeasuredLimits"]

_WINDOW_S = 0.1  # over which a speed is measured
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

    def read(self, board: Board, row: int) -> _Vector:
        found = board.recent(self.part.measured_key, np.array([row]))
        assert found is not None
        values: _Vector = found[0].reshape(-1)[self.part.measured_slice].astype(np.float64)
        return values[: len(self.names)]

    def excess(self, values: _Vector) -> _Vector:
        """How far each value is outside its limits."""
        return np.maximum(np.maximum(self.low - values, values - self.high), 0.0)


class MeasuredLimits:
    """Call `violation` at every poll. Compares a new row with the row 0.1 s before it and with the first of the episode."""

    def __init__(self, board: Board, spec: RobotSpec, config: SafetyConfig) -> None:
        self._board, self._margin = board, 1.0 + config.guard_speed_margin
        self._window = max(1, round(_WINDOW_S * spec.control_hz))
        self._values = _measured_values(spec, config)
        self._row = -1
        self._first = -1
        self._excess: list[_Vector] = []  # at the first row: an arm may start outside its limits and return

    def violation(self) -> str | None:
        """What the newest row breaks, or None."""
        board = self._board
        first, row = board.first, board.num_seen - 1
        if row <= first or row == self._row:  # the first row alone shows no motion
            return None
        self._row = row
        if first != self._first:
            self._first = first
            self._excess = [one.excess(one.read(board, first)) for one in self._values]
        before = max(first, row - self._window)
        for one, excess in zip(self._values, self._excess, strict=True):
            # values before times: a row that is replaced meanwhile then looks slower, not faster
            here, there = one.read(board, row), one.read(board, before)
            if (found := self._too_fast(one, here, there, self._seconds(before, row))) is not None:
                return found
            if (found := _outside(one, here, excess)) is not None:
                return found
        return None

    def _seconds(self, before: int, row: int) -> float:
        times = self._board.recent("time_ns", np.array([before, row]))
        assert times is not None
        return float(times[1] - times[0]) / NS_PER_S

    def _too_fast(self, one: _Values, here: _Vector, there: _Vector, seconds: float) -> str | None:
        if seconds <= 0.0:
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
    """None for a part whose measurement has another meaning than its limits, such as a gripper that holds an object."""
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
        # The frame of the action may be rotated against that of the measurement: any direction may get all of it.
        limits = max_speed[:3]
        if part.is_delta:
            largest = np.maximum(np.abs(part.low[:3]), np.abs(part.high[:3])) * spec.control_hz
            limits = np.minimum(limits, largest)
        box = config.workspace
        return _Values(
            part=part,
            names=("x", "y", "z"),
            unit="m",
            max_speed=np.full(3, float(np.linalg.norm(limits))),
            low=np.array(box.low) if box else -no_limit[:3],
            high=np.array(box.high) if box else no_limit[:3],
            margin=margin,
        )
    return None
