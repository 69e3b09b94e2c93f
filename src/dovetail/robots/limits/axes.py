"""The arrays that all parts of an action share: one entry per axis of the action vector."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from dovetail.core.specs import ActionPart, RobotSpec

__all__ = ["LARGEST", "Axes", "Reason", "Vector", "clip"]

Vector = npt.NDArray[np.float64]
LARGEST = float(np.finfo(np.float32).max)  # a larger float64 would become infinity as float32


class Reason(enum.IntFlag):
    """Why an action was changed."""

    NONE = 0
    NON_FINITE = 1
    LIMIT = 2  # of an action or joint
    STEP = 4  # too far from the measured state for one tick, or too much in too little time
    WORKSPACE = 8
    STALE = 16
    BAD_OBSERVATION = 32
    NO_OBSERVATION = 64
    FAULT = 128


class Axes:
    """Limits and state per axis, float64 [A]. Each part of the action sets its own entries."""

    def __init__(self, spec: RobotSpec, parts: tuple[ActionPart, ...]) -> None:
        size = spec.action.shape[0]
        low, high = spec.action.bounds
        self.low = np.maximum(low.astype(np.float64), -LARGEST)
        self.high = np.minimum(high.astype(np.float64), LARGEST)
        self.still = np.clip(np.zeros(size), self.low, self.high)  # action that stands still
        self.last = np.zeros(size)  # last command; stays zero for deltas and velocities
        # what the next command may be, by the last measurement
        self.window_low, self.window_high = np.full(size, -LARGEST), np.full(size, LARGEST)
        # largest motion per tick
        self.step_down, self.step_up = np.full(size, LARGEST), np.full(size, LARGEST)
        self.parts: list[tuple[ActionPart, slice]] = []  # in the order of the vector
        self.is_gripper = np.zeros(size, np.bool_)
        for part in parts:
            first = self.parts[-1][1].stop if self.parts else 0
            at = slice(first, first + part.num_axes)
            self.parts.append((part, at))
            self.is_gripper[at] = part.kind == "gripper"
        self.is_delta = np.zeros(size, np.bool_)
        self.is_target = np.zeros(size, np.bool_)  # absolute: its motion is counted from the last command

    def set_step(self, part: slice, step: Vector) -> None:
        self.step_down[part] = self.step_up[part] = np.minimum(step, LARGEST)


def clip(values: Vector, low: Vector, high: Vector) -> bool:
    """Clip in place and return whether anything changed. Comparing bytes is 10x faster than comparing arrays."""
    before = values.tobytes()
    np.maximum(values, low, out=values)
    np.minimum(values, high, out=values)
    return values.tobytes() != before
