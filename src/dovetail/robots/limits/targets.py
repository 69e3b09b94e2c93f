"""Parts with absolute targets: joints, poses and grippers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dovetail.core.specs import ActionPart
from dovetail.core.types import Array
from dovetail.robots.limits.axes import Axes, Vector
from dovetail.robots.limits.frames import Frame, rotation_vector

__all__ = ["Gripper", "JointTargets", "PoseTargets"]


class JointTargets:
    """Stay within one step of the measured joints. To stand still, the measured joints are the target.

    That target stays the same until the next motion: an arm with delay would repeat its own past motion if it followed every
    measurement.

    The targets of a real arm are also limited in speed: while an arm lags behind, they could jump by two steps. Those of a
    simulated arm are not, so that runs repeat those of version 0.6 exactly.
    """

    def __init__(self, part: ActionPart, at: slice, axes: Axes, step: Vector, *, simulated: bool) -> None:
        self._at, self._axes, self._step = at, axes, step
        self._key, self._columns = part.measured_key, part.measured_slice
        axes.is_target[at] = True
        if not simulated:
            axes.set_step(at, step)
        self._simulated = simulated
        self._is_holding = False  # the last command was the holding action
        self._is_new = True

    def reset(self, *, moved: bool) -> None:
        self._is_new |= moved

    def measure(self, values: Mapping[str, Array]) -> None:
        self._place(values[self._key].reshape(-1)[self._columns].astype(np.float64))

    def remember(self, executed: Array) -> None:
        last, still = self._axes.last[self._at], self._axes.still[self._at]
        self._is_holding = not self._simulated and bool((last == still).all())

    def forget_hold(self) -> None:
        """The arm was stopped: hold where it is measured next."""
        self._is_holding = False

    def _place(self, here: Vector) -> None:
        axes, at = self._axes, self._at
        if self._is_new:
            axes.last[at] = here
            self._is_new = False
        # the step counts last: a joint beyond its limit returns in small steps
        low, high = axes.window_low[at], axes.window_high[at]
        np.subtract(here, self._step, out=low)
        np.add(here, self._step, out=high)
        still = axes.still[at] if self._is_holding else here
        still = np.minimum(np.maximum(still, axes.low[at]), axes.high[at])
        axes.still[at] = np.minimum(np.maximum(still, low), high)


class PoseTargets(JointTargets):
    """Position and rotation vector of an end effector, in the base frame.

    The end effector turns at most as fast as its rotation vector changes.
    """

    def __init__(
        self, part: ActionPart, at: slice, axes: Axes, step: Vector, frame: Frame, *, simulated: bool
    ) -> None:
        super().__init__(part, at, axes, step, simulated=simulated)
        self.frame = frame

    def measure(self, values: Mapping[str, Array]) -> None:
        here = np.empty(self._step.size)
        here[:3] = self.frame.position
        if here.size > 3:
            here[3:] = rotation_vector(self.frame.rotation, near=self._axes.last[self._at][3:])
        self._place(here)

    def unwrap(self, action: Vector) -> None:
        """Replace the rotation vector, in place, by the equal one that is closest to the last command. Vectors beyond half a
        turn equal shorter ones, and without this the arm would turn back for such a vector."""
        vector = action[self._at][3:]
        angle = float(np.linalg.norm(vector))
        if angle > 1e-6:
            last = self._axes.last[self._at][3:]
            turns = [vector * (1.0 + full * 2.0 * math.pi / angle) for full in (0, -1, 1)]
            vector[:] = min(turns, key=lambda turn: float(np.linalg.norm(turn - last)))


class Gripper:
    """Limited in speed, but not to the measured opening: a gripper that holds an object never reaches its target."""

    def __init__(self, part: ActionPart, at: slice, axes: Axes, step: Vector | None) -> None:
        """`step` is the largest change per tick. None: not limited."""
        self._part, self._at, self._axes = part, at, axes
        self._is_limited = step is not None
        if step is not None:
            axes.is_target[at] = True
            axes.set_step(at, step)
        if isinstance(part.hold, tuple):
            axes.still[at] = part.hold
        self._is_new = True
        self._is_known = False  # whether it was measured or commanded

    def reset(self, *, moved: bool) -> None:
        self._is_new |= moved or bool(self._part.measured)  # without a measurement, keep what was commanded
        self._is_known &= not moved

    def measure(self, values: Mapping[str, Array]) -> None:
        part, axes, at = self._part, self._axes, self._at
        if not self._is_new and part.hold != "measured":
            return
        here = axes.high[at]  # open, if nothing measures it
        if part.measured:
            here = values[part.measured_key][part.measured_slice]
        if not isinstance(part.hold, tuple):
            axes.still[at] = np.clip(here, axes.low[at], axes.high[at])
        if not self._is_known:
            axes.last[at] = axes.still[at]
            self._is_known = True
        self._is_new = False

    def remember(self, executed: Array) -> None:
        if self._part.hold == "last":
            at, axes = self._at, self._axes
            # a driver may return another scale
            axes.still[at] = np.clip(executed[at], axes.low[at], axes.high[at])
            self._is_new = False
