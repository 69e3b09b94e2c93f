"""The frame of a Cartesian part and its room in the workspace."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dovetail.config.safety import Workspace
from dovetail.core.types import Array
from dovetail.robots.limits.axes import Vector, clip

__all__ = ["Frame", "Room", "rotation_vector"]


class Frame:
    """Converts between a part's frame and the base frame, from the measured pose of one arm."""

    def __init__(self, name: str, key: str, columns: slice) -> None:
        self._name, self._key = name, key
        self._columns = columns
        self.matrix: Vector = np.eye(3)  # part's frame to base frame
        self.position: Vector = np.zeros(3)  # measured, in the base frame
        self._quat: Vector = np.array((1.0, 0.0, 0.0, 0.0))
        self._is_new = True

    def reset(self) -> None:
        self._is_new = True

    def find_problem(self, values: Mapping[str, Array]) -> str | None:
        if abs(float(np.linalg.norm(values[self._key][self._columns][3:7])) - 1.0) > 0.05:
            return f"observation '{self._key}' has no unit quaternion (qw, qx, qy, qz)"
        return None

    def measure(self, values: Mapping[str, Array]) -> None:
        pose = values[self._key][self._columns].astype(np.float64)
        self.position, self._quat = pose[:3], pose[3:7]
        if self._is_new and self._name == "reset":
            self.matrix = _rotation(self._quat)
        self._is_new = False

    @property
    def rotation(self) -> Vector:
        """[3, 3] measured rotation in the base frame."""
        return _rotation(self._quat)


class Room:
    """How far one arm may move in the base frame without leaving the workspace."""

    def __init__(self, box: Workspace, frame: Frame) -> None:
        self._box_low, self._box_high = np.array(box.low), np.array(box.high)
        self._frame = frame
        self._down, self._up = np.zeros(3), np.zeros(3)
        self._now_down, self._now_up = self._down, self._up

    def measure(self, ahead: Vector | None) -> None:
        """`ahead` is the servo target minus the measured pose in the part's frame. None: not known."""
        here = self._frame.position
        # an arm outside the box may not move further out
        self._down = np.minimum(self._box_low - here, 0.0)
        self._up = np.maximum(self._box_high - here, 0.0)
        if ahead is not None:
            target = here + self._frame.matrix @ ahead
            self._down = np.maximum(self._down, np.minimum(self._box_low - target, 0.0))
            self._up = np.minimum(self._up, np.maximum(self._box_high - target, 0.0))
        self._now_down, self._now_up = self._down, self._up

    def reserve(self, down: Vector, up: Vector) -> None:
        """Subtract motions that no measurement shows yet, [3] each."""
        self._now_down = np.minimum(self._down - down, 0.0)
        self._now_up = np.maximum(self._up - up, 0.0)

    def close(self) -> None:
        self._now_down, self._now_up = np.zeros(3), np.zeros(3)

    def keep_inside(self, delta: Vector, low: Vector, high: Vector) -> bool:
        """Limit a motion in place, within `low` and `high`, which include zero. Return whether it changed."""
        frame = self._frame.matrix
        moved = frame @ delta
        if not clip(moved, self._now_down, self._now_up):
            return False
        inside = moved @ frame
        # Clipping in the base frame may exceed a limit in the part's frame. Scaling all axes satisfies both,
        # because both regions are convex and contain the origin.
        scale = 1.0
        for value, least, most in zip(inside.tolist(), low.tolist(), high.tolist(), strict=True):
            if value > most:
                scale = min(scale, most / value)
            elif value < least:
                scale = min(scale, least / value)
        np.multiply(inside, scale, out=delta)
        return True


def rotation_vector(matrix: Vector, *, near: Vector) -> Vector:
    """Axis times angle of a rotation matrix. Of the equal vectors, the one closest to `near`."""
    angle = math.acos(min(1.0, max(-1.0, (float(np.trace(matrix)) - 1.0) / 2.0)))
    axis = np.array((matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]))
    length = float(np.linalg.norm(axis))
    if length < 1e-6:
        if angle < 1.0:
            return axis / 2.0
        column = int(np.argmax(np.diag(matrix)))  # half a turn: the axis is a column of matrix + 1
        axis = matrix[:, column] + np.eye(3)[column]
        length = float(np.linalg.norm(axis))
    axis = axis / length
    turns = [axis * (angle + 2.0 * math.pi * full) for full in (-1, 0, 1)]
    return min(turns, key=lambda turn: float(np.linalg.norm(turn - near)))


def _rotation(quat: Vector) -> Vector:
    """[3, 3] matrix of a quaternion (w, x, y, z)."""
    w, x, y, z = (quat / np.linalg.norm(quat)).tolist()
    return np.array(
        (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
    )
