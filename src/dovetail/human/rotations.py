"""Rotations as matrices, quaternions (w, x, y, z) and rotation vectors."""

from __future__ import annotations

import math

import numpy as np

from dovetail.core.types import Array

__all__ = ["from_quaternion", "from_vector", "to_vector"]


def from_quaternion(quat: Array) -> Array:
    """[3, 3] matrix of a quaternion (w, x, y, z)."""
    w, x, y, z = np.asarray(quat, np.float64) / max(float(np.linalg.norm(quat)), 1e-9)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def from_vector(vector: Array) -> Array:
    """[3, 3] matrix of a rotation vector."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.eye(3)
    half = math.sin(angle / 2.0) / angle
    return from_quaternion(np.array((math.cos(angle / 2.0), *(half * np.asarray(vector, np.float64)))))


def to_vector(matrix: Array, *, near: Array | None = None) -> Array:
    """Rotation vector of a matrix. Of the equal vectors, the one closest to `near`, or the shortest."""
    twice_sin = np.array((matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]))
    length, cosine = float(np.linalg.norm(twice_sin)), (float(np.trace(matrix)) - 1.0) / 2.0
    angle = math.atan2(length / 2.0, cosine)
    if length > 1e-6:
        axis = twice_sin / length
    elif cosine > 0.0:
        return _nearest(twice_sin / 2.0, near)
    else:  # half a turn: the axis is a column of matrix + 1
        column = int(np.argmax(np.diag(matrix)))
        axis = matrix[:, column] + np.eye(3)[column]
        axis = axis / np.linalg.norm(axis)
    return _nearest(axis * angle, near)


def _nearest(vector: Array, near: Array | None) -> Array:
    angle = float(np.linalg.norm(vector))
    if near is None or (angle < 1e-9 and float(np.linalg.norm(near)) < math.pi):
        return vector
    axis = vector / angle if angle >= 1e-9 else near / np.linalg.norm(near)
    turns = [axis * (angle + 2.0 * math.pi * full) for full in (-1, 0, 1)]
    return min(turns, key=lambda turn: float(np.linalg.norm(turn - near)))
