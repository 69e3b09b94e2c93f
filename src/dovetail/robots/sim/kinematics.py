"""Forward and inverse kinematics of one arm, on a separate model.

So inverse kinematics never changes the physics state, and its cost does not depend on the scene.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import (
    Vector,
    clip_norm,
    quat_conjugate,
    quat_from_matrix,
    quat_multiply,
    quat_to_rotvec,
)

__all__ = ["Kinematics", "Solution"]

_MAX_TURN = 0.5  # rad: the longest step of one iteration, so that a far start does not overshoot


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Joint angles, and the remaining errors of the TCP pose."""

    joints: Vector  # [n] rad
    position_error_m: float
    rotation_error_rad: float


class Kinematics:
    """TCP pose for given joints, and joints for a given TCP pose (base frame)."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        model: Any = mujoco.MjModel.from_xml_string(arm.xml())
        self._model = model
        self._data: Any = mujoco.MjData(model)
        self._site = int(model.site("tcp").id)
        joints = [model.joint(name) for name in arm.joint_names]
        self._qpos = np.array([int(joint.qposadr[0]) for joint in joints])
        self._dof = np.array([int(joint.dofadr[0]) for joint in joints])
        self._lower = np.array(arm.lower)
        self._upper = np.array(arm.upper)
        self._home = np.array(arm.home)
        self._jacobian = np.zeros((6, model.nv))
        self._eye = np.eye(6)
        self._solved = np.zeros(6)

    def pose(self, joints: Vector) -> tuple[Vector, Vector]:
        """TCP position and quaternion (w, x, y, z) in the base frame."""
        self._place(joints)
        return self._data.site_xpos[self._site].copy(), quat_from_matrix(self._data.site_xmat[self._site])

    def jacobian(self, joints: Vector) -> Vector:
        """[6, n]: TCP velocity (linear, then angular, base frame) per joint velocity."""
        self._place(joints)
        return self._read_jacobian().copy()

    def solve(
        self,
        *,
        position: Vector,
        quat: Vector,
        start: Vector,
        max_iterations: int = 4,
        tolerance_m: float = 1e-5,
        tolerance_rad: float = 1e-4,
        damping: float = 1e-3,
        home_gain: float = 0.1,
    ) -> Solution:
        """Damped least squares from `start` within the joint limits. Redundant joints are pulled towards home."""
        joints = self._within_limits(start)
        step_error, turn_error = self._errors(joints, position, quat)
        distance, angle = _norm(step_error), _norm(turn_error)
        for _ in range(max_iterations):
            if distance <= tolerance_m and angle <= tolerance_rad:
                break
            joints = self._improve(joints, step_error, turn_error, damping=damping, home_gain=home_gain)
            step_error, turn_error = self._errors(joints, position, quat)
            distance, angle = _norm(step_error), _norm(turn_error)
        return Solution(joints=joints, position_error_m=distance, rotation_error_rad=angle)

    def _improve(self, joints: Vector, step: Vector, turn: Vector, *, damping: float, home_gain: float) -> Vector:
        """One damped Gauss-Newton step. Joints that would leave their range stay at the limit."""
        jacobian = self._read_jacobian()
        error = np.concatenate((clip_norm(step, 0.2), clip_norm(turn, _MAX_TURN)))
        pull = home_gain * (self._home - joints)
        for _ in range(2):
            gram = jacobian @ jacobian.T + (damping * damping) * self._eye
            # J+ (e - J p) + p: reaches e and moves by p in the null space
            # positive definite because of the damping; faster than the call of numpy's solver
            mujoco.mju_cholFactor(gram, 0.0)
            mujoco.mju_cholSolve(self._solved, gram, error - jacobian @ pull)
            change = jacobian.T @ self._solved + pull
            moved = joints + change
            blocked = moved != self._within_limits(moved)
            if not blocked.any():
                return moved
            jacobian = np.where(blocked, 0.0, jacobian)
            pull = np.where(blocked, 0.0, pull)
        return self._within_limits(joints + change)

    def _within_limits(self, joints: Vector) -> Vector:
        inside: Vector = np.minimum(np.maximum(joints, self._lower), self._upper)  # 4x faster than np.clip
        return inside

    def _errors(self, joints: Vector, position: Vector, quat: Vector) -> tuple[Vector, Vector]:
        self._place(joints)
        here = quat_from_matrix(self._data.site_xmat[self._site])
        return position - self._data.site_xpos[self._site], quat_to_rotvec(
            quat_multiply(quat, quat_conjugate(here))
        )

    def _place(self, joints: Vector) -> None:
        self._data.qpos[self._qpos] = joints
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)

    def _read_jacobian(self) -> Vector:
        mujoco.mj_jacSite(self._model, self._data, self._jacobian[:3], self._jacobian[3:], self._site)
        return self._jacobian[:, self._dof]


def _norm(vector: Vector) -> float:
    return float(np.sqrt(vector @ vector))
