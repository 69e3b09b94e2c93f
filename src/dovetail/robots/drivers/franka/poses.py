"""Rotations for the driver: quaternions (w, x, y, z) and rotation vectors. `robots.sim.rotations` would load MuJoCo."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["Vector", "limited_lead", "rotvec_between", "turned"]

Vector = npt.NDArray[np.float64]


def turned(quat: Vector, rotvec: Vector) -> Vector:
    """The orientation after a rotation in the base frame."""
    angle = float(np.linalg.norm(rotvec))
    scale = 0.5 - angle * angle / 48.0 if angle < 1e-4 else math.sin(0.5 * angle) / angle
    return _unit(_product(np.concatenate(((math.cos(0.5 * angle),), scale * rotvec)), quat))


def rotvec_between(start: Vector, end: Vector) -> Vector:
    """The shortest rotation from one orientation to another, in the base frame."""
    w, *xyz = _product(end, start * np.array((1.0, -1.0, -1.0, -1.0))).tolist()
    vector = np.array(xyz)
    if w < 0.0:
        w, vector = -w, -vector
    sine = float(np.linalg.norm(vector))
    return vector * (2.0 if sine < 1e-9 else 2.0 * math.atan2(sine, w) / sine)


def limited_lead(
    position: Vector, quat: Vector, *, here: Vector, here_quat: Vector, max_m: float, max_rad: float
) -> tuple[Vector, Vector]:
    """A pose that is at most so far from the measured one, on each axis."""
    ahead = np.clip(position - here, -max_m, max_m)
    turn = np.clip(rotvec_between(here_quat, quat), -max_rad, max_rad)
    return here + ahead, turned(here_quat, turn)


def _product(a: Vector, b: Vector) -> Vector:
    aw, ax, ay, az = a.tolist()
    bw, bx, by, bz = b.tolist()
    return np.array(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        )
    )


def _unit(quat: Vector) -> Vector:
    return quat / np.linalg.norm(quat)
