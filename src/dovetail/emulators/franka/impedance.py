"""The Cartesian impedance law of serl_franka_controllers, one cycle of 1 ms at a time.

    error  = pose - equilibrium, clipped per axis and sign; rotations as the vector part of the difference quaternion
    torque = J^T (-K error - D J dq - Ki integral) + null space + Coriolis, changed by at most 1 Nm per cycle

Equilibrium and gains follow their targets with a first-order filter of 0.005 per cycle: a time constant of 0.2 s.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np

from dovetail.robots.sim.rotations import Vector
from dovetail.robots.sim.world import World

__all__ = ["DEFAULTS", "Impedance"]

_FILTER = 0.005  # per cycle
_MAX_TORQUE_CHANGE = 1.0  # Nm per cycle
_MAX_INTEGRAL = np.array((0.1,) * 3 + (0.3,) * 3)
_DAMPING = 1e-4  # of the inverse, at singular poses
_GRAVITY = 9.81

_CLIPS = [
    f"{kind}_clip_{sign}{axis}"
    for sign in ("neg_", "")
    for kind in ("translational", "rotational")
    for axis in "xyz"
]
DEFAULTS: Mapping[str, float] = {
    "translational_stiffness": 2000.0,
    "translational_damping": 89.0,
    "rotational_stiffness": 150.0,
    "rotational_damping": 7.0,
    "nullspace_stiffness": 0.2,
    "joint1_nullspace_stiffness": 100.0,
    "translational_Ki": 0.0,
    "rotational_Ki": 0.0,
    **{name: 0.01 if name.startswith("translational") else 0.05 for name in _CLIPS},
}
_FILTERED = (
    "translational_stiffness",
    "rotational_stiffness",
    "translational_damping",
    "rotational_damping",
    "translational_Ki",
    "rotational_Ki",
    "nullspace_stiffness",
    "joint1_nullspace_stiffness",
)


class Impedance:
    """Computes joint torques for the pose and the velocities that the world has now."""

    def __init__(self, world: World) -> None:
        self._world, self._data = world, world.data
        self._site = int(world.model.site("tcp").id)
        self._num = world.arm.num_joints
        assert world.joint_dof.tolist() == list(range(self._num)), "the arm's joints come first"
        self._jacobian = np.zeros((6, world.model.nv))
        self._arm_jacobian = self._jacobian[:, : self._num]
        self._quat, self._turn = np.zeros(4), np.zeros(4)
        self._error, self._wrench, self._solved = np.zeros(6), np.zeros(6), np.zeros(6)
        self._integral = np.zeros(6)
        self._target_position, self._target_quat = np.zeros(3), np.zeros(4)
        self._position, self._equilibrium_quat = np.zeros(3), np.zeros(4)
        self._home = np.zeros(self._num)
        self._torque = np.zeros(self._num)
        self._eye = _DAMPING * np.eye(6)
        self.load_kg = 0.0
        self._targets, self._gains = np.zeros(len(_FILTERED)), np.zeros(len(_FILTERED))
        self._low, self._high = np.zeros(6), np.zeros(6)
        self._parameters = dict(DEFAULTS)
        self._use_parameters()
        self.start()

    def start(self) -> None:
        """Start the controller: the equilibrium is where the arm is, and the null space pulls to these joints."""
        self._measure()
        self._target_position[:] = self._position[:] = self._data.site_xpos[self._site]
        self._target_quat[:] = self._equilibrium_quat[:] = self._quat
        self._home[:] = self._data.qpos[: self._num]
        self._integral[:] = 0.0
        self._torque[:] = 0.0
        self._gains[:] = self._targets

    def set_pose(self, position: Vector, quat: Vector) -> None:
        """A new equilibrium; `quat` is (w, x, y, z)."""
        self._target_position[:] = position
        self._target_quat[:] = quat / np.linalg.norm(quat)
        if float(self._target_quat @ self._equilibrium_quat) < 0.0:
            self._target_quat *= -1.0
        self._integral[:] = 0.0

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Values outside their range must have been clamped."""
        self._parameters.update(values)
        self._use_parameters()

    @property
    def parameters(self) -> Mapping[str, float]:
        return self._parameters

    @property
    def jacobian(self) -> Vector:
        """[6, n] of the last measurement."""
        return self._arm_jacobian

    def measure_pose(self) -> tuple[Vector, Vector]:
        self._measure()
        return self._data.site_xpos[self._site].copy(), self._quat.copy()

    def external_wrench(self) -> Vector:
        """[6] force and torque on the arm from contacts, in the base frame, from the torques of the last step."""
        jacobian = self._arm_jacobian
        external = np.asarray(self._data.qfrc_constraint[: self._num])
        gram = jacobian @ jacobian.T + self._eye
        wrench: Vector = np.linalg.solve(gram, jacobian @ external)
        wrench[2] += self.load_kg * _GRAVITY
        return wrench

    def cycle(self) -> Vector:
        """The joint torques of one cycle, [n]."""
        self._measure()
        data, gains = self._data, self._gains
        gains += _FILTER * (self._targets - gains)
        self._position += _FILTER * (self._target_position - self._position)
        equilibrium_quat = self._equilibrium_quat
        equilibrium_quat += _FILTER * (self._target_quat - equilibrium_quat)
        equilibrium_quat *= 1.0 / np.sqrt(equilibrium_quat @ equilibrium_quat)

        error = self._error
        error[:3] = data.site_xpos[self._site]
        error[:3] -= self._position
        error[3:] = self._rotation_error()
        np.minimum(np.maximum(error, self._low, out=error), self._high, out=error)

        velocities = data.qvel[: self._num]
        wrench = self._arm_jacobian @ velocities
        wrench[:3] *= -gains[2]
        wrench[3:] *= -gains[3]
        wrench[:3] -= gains[0] * error[:3]
        wrench[3:] -= gains[1] * error[3:]
        if gains[4] or gains[5]:
            self._integral += error
            np.clip(self._integral, -_MAX_INTEGRAL, _MAX_INTEGRAL, out=self._integral)
            wrench[:3] -= gains[4] * self._integral[:3]
            wrench[3:] -= gains[5] * self._integral[3:]
        wrench[2] += self.load_kg * _GRAVITY
        wanted = self._arm_jacobian.T @ wrench
        wanted += self._null_space(velocities)
        wanted += data.qfrc_bias[: self._num]  # Coriolis; the world compensates gravity
        wanted -= data.qfrc_gravcomp[: self._num]

        wanted -= self._torque
        np.minimum(np.maximum(wanted, -_MAX_TORQUE_CHANGE, out=wanted), _MAX_TORQUE_CHANGE, out=wanted)
        self._torque += wanted
        return self._torque

    def _measure(self) -> None:
        model, data = self._world.model, self._data
        mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], self._site)
        mujoco.mju_mat2Quat(self._quat, data.site_xmat[self._site])

    def _rotation_error(self) -> Vector:
        """Vector part of the quaternion from the equilibrium to the measured orientation, in the base frame."""
        inverse = self._equilibrium_quat * _CONJUGATE
        mujoco.mju_mulQuat(self._turn, self._quat, inverse)
        return -self._turn[1:] if self._turn[0] < 0.0 else self._turn[1:]

    def _null_space(self, velocities: Vector) -> Vector:
        """Torques toward the joints at the start that do not move the end effector."""
        stiffness, first = float(self._gains[6]), float(self._gains[7])
        pull = stiffness * (self._home - self._data.qpos[: self._num])
        pull -= 2.0 * np.sqrt(stiffness) * velocities
        pull[0] = (
            stiffness * first * (self._home[0] - self._data.qpos[0])
            - 4.0 * np.sqrt(stiffness * first) * velocities[0]
        )
        jacobian = self._arm_jacobian
        gram = jacobian @ jacobian.T
        gram += self._eye
        mujoco.mju_cholFactor(gram, 0.0)
        mujoco.mju_cholSolve(self._solved, gram, jacobian @ pull)
        result: Vector = pull - jacobian.T @ self._solved
        return result

    def _use_parameters(self) -> None:
        values = self._parameters
        self._targets[:] = [values[name] for name in _FILTERED]
        self._low[:] = [-values[name] for name in _CLIPS[:6]]
        self._high[:] = [values[name] for name in _CLIPS[6:]]


_CONJUGATE = np.array((1.0, -1.0, -1.0, -1.0))
