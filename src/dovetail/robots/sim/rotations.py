"""Rotations as quaternions (w, x, y, z), for single poses.

Python floats are faster than numpy for three or four numbers, and these functions run several times per tick.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Vector",
    "clip_norm",
    "quat_conjugate",
    "quat_from_axis_angle",
    "quat_from_matrix",
    "quat_from_rotvec",
    "quat_multiply",
    "quat_normalize",
    "quat_to_matrix",
    "quat_to_rotvec",
    "rotate",
]

Vector = NDArray[np.float64]


def _floats(values: ArrayLike) -> list[float]:
    # `tolist` is ten times faster than iterating over an array
    array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=np.float64)
    floats: list[float] = array.tolist()
    return floats


def _unit(w: float, x: float, y: float, z: float) -> Vector:
    norm = math.sqrt(w * w + x * x + y * y + z * z)
    if not norm > 1e-12:
        raise ValueError(f"a quaternion of length {norm} is not a rotation: give (w, x, y, z)")
    return np.array((w / norm, x / norm, y / norm, z / norm))


def quat_normalize(quat: ArrayLike) -> Vector:
    """Unit quaternion. Raises ValueError for zero."""
    w, x, y, z = _floats(quat)
    return _unit(w, x, y, z)


def quat_multiply(a: ArrayLike, b: ArrayLike) -> Vector:
    """Rotate by b, then by a, both in the same fixed frame."""
    aw, ax, ay, az = _floats(a)
    bw, bx, by, bz = _floats(b)
    return np.array(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        )
    )


def quat_conjugate(quat: ArrayLike) -> Vector:
    """The inverse of a unit quaternion."""
    w, x, y, z = _floats(quat)
    return np.array((w, -x, -y, -z))


def quat_from_rotvec(rotvec: ArrayLike) -> Vector:
    """From a rotation vector: axis times angle in radians."""
    x, y, z = _floats(rotvec)
    angle = math.sqrt(x * x + y * y + z * z)
    # sin(a/2)/a by its series near zero, where the quotient would be 0/0
    scale = 0.5 - angle * angle / 48.0 if angle < 1e-4 else math.sin(0.5 * angle) / angle
    return np.array((math.cos(0.5 * angle), x * scale, y * scale, z * scale))


def quat_to_rotvec(quat: ArrayLike) -> Vector:
    """The shortest rotation vector of a unit quaternion, its angle in [0, pi]."""
    w, x, y, z = _floats(quat)
    if w < 0.0:  # q and -q are the same rotation: use the shorter one
        w, x, y, z = -w, -x, -y, -z
    sine = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 if sine < 1e-9 else 2.0 * math.atan2(sine, w) / sine
    return np.array((x * scale, y * scale, z * scale))


def quat_from_axis_angle(axis: ArrayLike, angle: float) -> Vector:
    """Rotation by `angle` radians about `axis`, which need not have unit length."""
    direction = np.asarray(axis, dtype=np.float64)
    return quat_from_rotvec(direction * (angle / float(np.linalg.norm(direction))))


def quat_to_matrix(quat: ArrayLike) -> Vector:
    """The 3x3 rotation matrix of a unit quaternion."""
    w, x, y, z = _floats(quat)
    return np.array(
        (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
    )


def quat_from_matrix(matrix: ArrayLike) -> Vector:
    """The unit quaternion of a 3x3 rotation matrix, with w >= 0."""
    flat = matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix, dtype=np.float64)
    a, b, c, d, e, f, g, h, i = flat.reshape(9).tolist()
    # Shepperd's method: divide by the largest of the four, which is never small
    trace = a + e + i
    if trace >= max(a, e, i):
        quat = _unit(1 + trace, h - f, c - g, d - b)
    elif a >= e and a >= i:
        quat = _unit(h - f, 1 + a - e - i, d + b, g + c)
    elif e >= i:
        quat = _unit(c - g, d + b, 1 + e - i - a, h + f)
    else:
        quat = _unit(d - b, g + c, h + f, 1 + i - a - e)
    return -quat if quat[0] < 0 else quat


def rotate(quat: ArrayLike, vector: ArrayLike) -> Vector:
    """The vector turned by the unit quaternion."""
    w, x, y, z = _floats(quat)
    vx, vy, vz = _floats(vector)
    tx, ty, tz = 2 * (y * vz - z * vy), 2 * (z * vx - x * vz), 2 * (x * vy - y * vx)
    return np.array((vx + w * tx + y * tz - z * ty, vy + w * ty + z * tx - x * tz, vz + w * tz + x * ty - y * tx))


def clip_norm(vector: ArrayLike, limit: float) -> Vector:
    """The vector, shortened to `limit` if it is longer; its direction stays."""
    out = np.asarray(vector, dtype=np.float64)
    norm = math.hypot(*out.tolist())
    return out * (limit / norm) if norm > limit else out
