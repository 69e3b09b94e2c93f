"""Parts with relative motions of an end effector: x, y, z and a rotation vector."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.core.types import Array
from dovetail.robots.limits.axes import Axes, Vector

__all__ = ["Deltas"]


class Deltas:
    """One arm. All deltas since the last measurement share one step, and so does the servo target where it is known."""

    def __init__(self, at: slice, axes: Axes, step: Vector, *, reference_key: str, columns: slice) -> None:
        """`reference_key` is the observation with the servo target minus the measured pose, or empty."""
        self._at, self._axes, self._step = at, axes, step
        self._reference_key, self._columns = reference_key, columns
        self._ahead: Vector = np.zeros(step.shape)
        self._is_reserved = False  # whether the window takes pending deltas into account
        # limits of one tick
        self._low = np.minimum(np.maximum(axes.low[at], -step), 0.0)
        self._high = np.maximum(np.minimum(axes.high[at], step), 0.0)
        axes.is_delta[at] = True
        axes.step_down[at], axes.step_up[at] = -self._low, self._high
        axes.still[at] = 0.0
        self._set_window(None)

    @property
    def ahead(self) -> Vector | None:
        """Servo target minus measured position, [3]. None: not known."""
        return self._ahead[:3] if self._reference_key else None

    def reset(self, *, moved: bool) -> None:
        """Nothing to forget."""

    def measure(self, values: Mapping[str, Array]) -> None:
        if self._reference_key:
            self._ahead = values[self._reference_key][self._columns]
        if self._reference_key or self._is_reserved:
            self._set_window(None)

    def reserve(self, pending: Vector | None) -> None:
        """Take deltas that were sent since the measurement into account, [A] of the whole action. None: there are none."""
        self._set_window(None if pending is None else pending[self._at])

    def remember(self, executed: Array) -> None:
        """Nothing depends on the executed action."""

    def _set_window(self, pending: Vector | None) -> None:
        """Keep the servo target within one step of the measured pose.

        A target that is already further ahead must not move on, but need not return at once.
        """
        self._is_reserved = pending is not None
        low, high = self._axes.window_low[self._at], self._axes.window_high[self._at]
        ahead = self._ahead
        if pending is None:
            low[:], high[:] = self._low, self._high
        else:
            ahead = ahead + pending
            np.maximum(self._low, np.minimum(self._low - pending, 0.0), out=low)
            np.minimum(self._high, np.maximum(self._high - pending, 0.0), out=high)
        np.maximum(low, np.minimum(-self._step - ahead, 0.0), out=low)
        np.minimum(high, np.maximum(self._step - ahead, 0.0), out=high)
