"""Rotations of one pose: quaternions (w, x, y, z) and rotation vectors (axis times angle)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["inverse", "nearest_turn", "product", "quat_of", "rotation_between", "rotation_vector", "turned"]

Vector = npt.NDArray[np.float64]


def product(first: Vector, second: Vector) -> Vector:
    """Rotate by `second`, then by `first`."""
    w, v, u, r = first[0], first[1:], second[0], second[1:]
    return np.concatenate(([w * u - v @ r], w * r + u * v + np.cross(v, r)))


def inverse(quat: Vector) -> Vector:
    return np.asarray(quat * (1.0, -1.0, -1.0, -1.0))


def turned(quat: Vector, vector: Vector) -> Vector:
    """The vector, rotated by a unit quaternion."""
    twice = 2.0 * np.cross(quat[1:], vector)
    return np.asarray(vector + quat[0] * twice + np.cross(quat[1:], twice))


def rotation_vector(quat: Vector) -> Vector:
    """Axis times angle, of the shorter rotation."""
    w, xyz = float(quat[0]), quat[1:]
    if w < 0.0:
        w, xyz = -w, -xyz
    sine = float(np.linalg.norm(xyz))
    return np.asarray(xyz * (2.0 * math.atan2(sine, w) / sine if sine > 1e-9 else 2.0))


def quat_of(vector: Vector) -> Vector:
    """The unit quaternion of a rotation vector."""
    angle = float(np.linalg.norm(vector))
    scale = math.sin(angle / 2.0) / angle if angle > 1e-9 else 0.5
    return np.concatenate(([math.cos(angle / 2.0)], vector * scale))


def rotation_between(start: Vector, end: Vector) -> Vector:
    """The rotation vector, in the base frame, that turns the pose `start` into `end`."""
    return rotation_vector(product(end, inverse(start)))


def nearest_turn(vector: Vector, near: Vector) -> Vector:
    """Of the rotation vectors that mean the same rotation, the one closest to `near`."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-9:
        return vector
    axis = vector / angle
    turns = [axis * (angle + 2.0 * math.pi * full) for full in (-1, 0, 1)]
    return min(turns, key=lambda turn: float(np.linalg.norm(turn - near)))
