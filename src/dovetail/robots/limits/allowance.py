"""Limit of motion over time: one token bucket per axis."""

from __future__ import annotations

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.robots.limits.axes import LARGEST, Axes, Vector

__all__ = ["Allowance"]

_MOST = 1.5  # ticks of motion in store: half a tick absorbs the jitter of a control loop
_DEBT = -2.0  # ticks; a hold may exceed the allowance, because it must not wait


class Allowance:
    """Counts commanded motion in ticks at full speed. Each tick of time adds one, up to 1.5.

    In any interval of T ticks an axis is commanded to move at most T + 1.5 steps, in however many calls. A loop with exact
    ticks always has a whole step left, so that the limits are exactly those of one tick.
    """

    def __init__(self, axes: Axes, control_hz: float) -> None:
        self._axes = axes
        self._tick_ns = int(NS_PER_S / control_hz)
        limited = axes.step_up < LARGEST
        with np.errstate(divide="ignore"):
            self._per_up = np.where(limited & (axes.step_up > 0), 1.0 / axes.step_up, 0.0)
            self._per_down = np.where(limited & (axes.step_down > 0), -1.0 / axes.step_down, 0.0)
        self._left = np.full(axes.low.shape, _MOST)
        self._least = _MOST
        self._time_ns: int | None = None

    def refill(self, now_ns: int) -> None:
        elapsed_ns = 0 if self._time_ns is None else now_ns - self._time_ns
        if self._time_ns is None or elapsed_ns > 0:
            self._time_ns = now_ns
        if elapsed_ns > 0:
            elapsed = elapsed_ns / self._tick_ns
            np.add(self._left, elapsed, out=self._left)
            np.minimum(self._left, _MOST, out=self._left)
            self._least = min(_MOST, self._least + elapsed)

    @property
    def has_step(self) -> bool:
        """Whether each axis may move a whole step now."""
        return self._least >= 1.0

    def steps(self) -> tuple[Vector, Vector]:
        """Largest motion of each axis now, down and up."""
        left = np.maximum(self._left, 0.0) if self._least < 0.0 else self._left
        return left * self._axes.step_down, left * self._axes.step_up

    def charge(self, motion: Vector) -> None:
        """Count a commanded motion."""
        np.subtract(self._left, np.maximum(motion * self._per_up, motion * self._per_down), out=self._left)
        self._least = min(self._left.tolist())
        if self._least < _DEBT:
            np.maximum(self._left, _DEBT, out=self._left)
            self._least = _DEBT
