"""The motion of igris_b: 12 arm joints and 12 fingers, each with second-order dynamics. Right side first, as on the wire."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["NUM_ARM", "NUM_FINGERS", "START_ARMS_RAD", "START_FINGERS", "Body", "ReachTargets"]

Vector = npt.NDArray[np.float64]

NUM_ARM, NUM_FINGERS = 12, 12
START_ARMS_RAD: Vector = np.radians([20, 30, 0, -120, 0, 0, -20, -30, 0, 120, 0, 0])
START_FINGERS: Vector = np.array([1, 1, 1, 1, 1, 0.5] * 2, np.float64)
_LOW: Vector = np.array([-3.0] * NUM_ARM + [0.0] * NUM_FINGERS)
_HIGH: Vector = np.array([3.0] * NUM_ARM + [1.0] * NUM_FINGERS)
_FREQUENCY: Vector = np.array([20.0] * NUM_ARM + [25.0] * NUM_FINGERS)  # rad/s, critically damped
_MAX_SPEED: Vector = np.array([3.0] * NUM_ARM + [5.0] * NUM_FINGERS)
_STEP_S = 0.002


class Body:
    """Positions follow targets. `advance` moves them on."""

    def __init__(self, *, at_start_pose: bool) -> None:
        arms = START_ARMS_RAD if at_start_pose else np.zeros(NUM_ARM)
        self.position: Vector = np.concatenate((arms, START_FINGERS))
        self.target: Vector = self.position.copy()
        self.speed: Vector = np.zeros(NUM_ARM + NUM_FINGERS)
        self._rest_s = 0.0

    def advance(self, duration_s: float) -> None:
        self._rest_s += duration_s
        for _ in range(math.floor(self._rest_s / _STEP_S)):
            self._rest_s -= _STEP_S
            push = _FREQUENCY**2 * (self.target - self.position) - 2.0 * _FREQUENCY * self.speed
            self.speed = np.clip(self.speed + _STEP_S * push, -_MAX_SPEED, _MAX_SPEED)
            moved = self.position + _STEP_S * self.speed
            self.position = np.clip(moved, _LOW, _HIGH)
            self.speed[moved != self.position] = 0.0  # at a mechanical stop

    @property
    def arms(self) -> Vector:
        return self.position[:NUM_ARM]

    @property
    def fingers(self) -> Vector:
        return self.position[NUM_ARM:]

    @property
    def effort(self) -> Vector:
        """Of the arms, in Nm: what the servo pushes with."""
        return 5.0 * (self.target - self.position)[:NUM_ARM]

    @property
    def finger_current(self) -> Vector:
        """In A."""
        return 0.05 + 0.4 * np.abs(self.target - self.position)[NUM_ARM:]


class ReachTargets:
    """Targets for the task `igris_reach`: a new one each time the arms come back to the start pose."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._has_left = False
        self.position = self._draw()

    def look_at(self, body: Body) -> None:
        away = float(np.abs(body.arms - START_ARMS_RAD).max())
        if away > 0.15:
            self._has_left = True
        elif away < 0.05 and self._has_left:
            self._has_left = False
            self.position = self._draw()

    def _draw(self) -> Vector:
        """Arms up to 0.4 rad from the start pose, one axis at least 0.25 rad; fingers anywhere."""
        while True:
            offset = self._rng.uniform(-0.4, 0.4, NUM_ARM)
            if np.abs(offset).max() > 0.25:
                return np.concatenate((START_ARMS_RAD + offset, self._rng.uniform(0.1, 0.9, NUM_FINGERS)))
