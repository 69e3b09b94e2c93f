"""Cartesian jog of an arm with joint actions: inverse kinematics by damped least squares on MuJoCo's Jacobian.

    kinematics = Kinematics(config, part=spec.part("arm"))
    kinematics.load()                                                  # reads the file; slow
    targets = kinematics.moved(joints, move, max_step=..., low=..., high=...)

A step never leaves the joint limits, never moves a joint by more than `max_step`, and never increases the distance to the
wanted pose. Near a singularity the damping grows, so that the arm slows down instead of turning fast. With fewer than six
joints, the position has priority over the rotation. MuJoCo is imported by `load`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import UsageError, did_you_mean, one_line
from dovetail.core.specs import ActionPart
from dovetail.core.types import Array
from dovetail.human.drive_settings import KinematicsConfig
from dovetail.human.rotations import from_vector, to_vector

__all__ = ["Kinematics"]

_MAX_ROUNDS = 6
_TOLERANCE = 1e-7  # m
_TURN_M = 0.3  # a turn of 1 rad counts like this distance
_FEW_JOINTS_TURN_M = 0.01
_NEAR_SINGULAR = 0.008  # singular value below which a direction is damped
_MAX_ROUND_RAD = 0.3
_FROM_UNIT = {"rad": 1.0, "deg": math.pi / 180.0, "m": 1.0}


class Kinematics:
    """One arm. Joints are in the unit of the part."""

    def __init__(self, config: KinematicsConfig, *, part: ActionPart) -> None:
        self._config, self._part = config, part
        self._names = config.joints or part.names
        self._unit = _FROM_UNIT[part.unit]
        self._mujoco: Any = None
        if len(self._names) != part.num_axes:
            raise UsageError(
                f"operator.kinematics has {len(self._names)} joints, but part '{part.name}' has {part.num_axes} axes. "
                "Set operator.kinematics.joints to one joint of the file for each axis"
            )
        self._turn_m = _TURN_M if part.num_axes >= 6 else _FEW_JOINTS_TURN_M

    @property
    def part(self) -> str:
        return self._part.name

    @property
    def largest_move(self) -> Array:
        """Speed at full deflection, [6] in m/s and rad/s."""
        return np.repeat((self._config.max_speed_m_s, self._config.max_turn_rad_s), 3)

    def load(self) -> None:
        """Read the file, once. Raises UsageError if it, or a name in it, is missing."""
        if self._mujoco is not None:
            return
        import mujoco  # here, because it is large and only this mode needs it

        path, config = Path(self._config.file).expanduser(), self._config
        if not path.is_file():
            raise UsageError(f"operator.kinematics.file: there is no file {path}")
        try:
            spec = mujoco.MjSpec.from_file(str(path))
            _keep_the_joints(spec)
            if config.angle is not None:
                spec.compiler.degree = config.angle == "degree"
            self._model = spec.compile()
        except (ValueError, OSError) as error:
            raise UsageError(f"operator.kinematics.file: MuJoCo cannot read {path}: {one_line(error)}") from error
        self._data = mujoco.MjData(self._model)
        self._find_joints(mujoco)
        bodies = {self._model.body(at).name: at for at in range(self._model.nbody)}
        sites = {self._model.site(at).name: at for at in range(self._model.nsite)}
        self._site = sites.get(config.end_effector)
        self._body = bodies.get(config.end_effector)
        if self._site is None and self._body is None:
            raise UsageError(
                f"operator.kinematics.end_effector: {path.name} has no site or body '{config.end_effector}'."
                + did_you_mean(config.end_effector, [*sites, *bodies])
            )
        if config.base is not None and config.base not in bodies:
            raise UsageError(
                f"operator.kinematics.base: {path.name} has no body '{config.base}'."
                + did_you_mean(config.base, bodies)
            )
        self._base = None if config.base is None else bodies[config.base]
        self._mujoco = mujoco

    def pose(self, joints: Array) -> tuple[Array, Array]:
        """Position [3] and rotation [3, 3] of the end effector in the base frame."""
        self._forward(np.asarray(joints, np.float64) * self._unit)
        return self._end_effector()

    def moved(self, joints: Array, move: Array, *, max_step: Array, low: Array, high: Array) -> Array:
        """Joints after a motion [6] of the end effector: translation and rotation vector in the base frame."""
        start = np.asarray(joints, np.float64) * self._unit
        # a joint beyond its limit may stay there, but not move further out
        low = np.minimum(np.maximum(np.asarray(low) * self._unit, self._low), start)
        high = np.maximum(np.minimum(np.asarray(high) * self._unit, self._high), start)
        self._forward(start)
        position, rotation = self._end_effector()
        goal = position + move[:3], from_vector(move[3:]) @ rotation
        before = float(np.linalg.norm(self._error(goal)))
        found = self._solved(start, goal, low=low, high=high)
        change = found - start
        most = float(np.max(np.abs(change) / np.maximum(np.asarray(max_step) * self._unit, 1e-12)))
        wanted = start + change / max(1.0, most)
        self._forward(wanted)
        if float(np.linalg.norm(self._error(goal))) > before:
            wanted = start  # stay where it is instead of moving away
        return np.asarray(wanted / self._unit)

    def _solved(self, start: Array, goal: tuple[Array, Array], *, low: Array, high: Array) -> Array:
        joints, is_blocked = start.copy(), np.zeros(len(start), np.bool_)
        for _ in range(_MAX_ROUNDS):
            self._forward(joints)
            error = self._error(goal)
            if float(np.linalg.norm(error)) < _TOLERANCE:
                break
            jacobian = self._jacobian()
            jacobian[:, is_blocked] = 0.0
            step = _damped_step(jacobian, error)
            step = step / max(1.0, float(np.abs(step).max()) / _MAX_ROUND_RAD)
            joints = np.clip(joints + step, low, high)
            is_blocked = ((joints <= low) & (step < 0.0)) | ((joints >= high) & (step > 0.0))
        return joints

    def _find_joints(self, mujoco: Any) -> None:
        model, names = self._model, [self._model.joint(at).name for at in range(self._model.njnt)]
        for name in self._names:
            if name not in names:
                raise UsageError(
                    f"operator.kinematics.joints: {Path(self._config.file).name} has no joint '{name}'."
                    + did_you_mean(name, names)
                )
        joints = [model.joint(name) for name in self._names]
        kinds = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
        if odd := [joint.name for joint in joints if int(joint.type[0]) not in kinds]:
            raise UsageError(f"operator.kinematics.joints: joint '{odd[0]}' neither turns nor slides on one axis")
        self._at = np.array([int(joint.qposadr[0]) for joint in joints])
        self._columns = np.array([int(joint.dofadr[0]) for joint in joints])
        limited = np.array([bool(model.jnt_limited[joint.id]) for joint in joints])
        ranges = np.array([model.jnt_range[joint.id] for joint in joints])
        self._low = np.where(limited, ranges[:, 0], -np.inf)
        self._high = np.where(limited, ranges[:, 1], np.inf)

    def _forward(self, joints: Array) -> None:
        self._data.qpos[self._at] = joints
        self._mujoco.mj_kinematics(self._model, self._data)
        self._mujoco.mj_comPos(self._model, self._data)

    def _end_effector(self) -> tuple[Array, Array]:
        data, at = self._data, self._site if self._site is not None else self._body
        is_site = self._site is not None
        position = (data.site_xpos if is_site else data.xpos)[at].copy()
        rotation = (data.site_xmat if is_site else data.xmat)[at].reshape(3, 3).copy()
        if self._base is None:
            return position, rotation
        frame = self._base_frame()
        return frame.T @ (position - data.xpos[self._base]), frame.T @ rotation

    def _base_frame(self) -> Array:
        if self._base is None:
            return np.eye(3)
        frame: Array = self._data.xmat[self._base].reshape(3, 3)
        return frame

    def _error(self, goal: tuple[Array, Array]) -> Array:
        position, rotation = self._end_effector()
        return np.concatenate((goal[0] - position, self._turn_m * to_vector(goal[1] @ rotation.T)))

    def _jacobian(self) -> Array:
        """[6, N] in the base frame, turns weighted like the error."""
        moves, turns = np.zeros((3, self._model.nv)), np.zeros((3, self._model.nv))
        if self._site is not None:
            self._mujoco.mj_jacSite(self._model, self._data, moves, turns, self._site)
        else:
            self._mujoco.mj_jacBody(self._model, self._data, moves, turns, self._body)
        frame = self._base_frame().T
        return np.vstack((frame @ moves[:, self._columns], self._turn_m * (frame @ turns[:, self._columns])))


def _damped_step(jacobian: Array, error: Array) -> Array:
    """Least squares in which each direction is damped by itself, the more the closer it is to a singularity."""
    u, sizes, vt = np.linalg.svd(jacobian, full_matrices=False)
    damping = _NEAR_SINGULAR * np.sqrt(np.maximum(0.0, 1.0 - (sizes / _NEAR_SINGULAR) ** 2))
    step: Array = vt.T @ ((sizes / np.maximum(sizes**2 + damping**2, 1e-12)) * (u.T @ error))
    return step


def _keep_the_joints(spec: Any) -> None:
    """Remove everything but bodies, sites and joints: meshes may be missing, and masses do not matter."""
    spec.compiler.fusestatic = False  # links that are fixed to another one keep their names
    spec.compiler.boundmass = spec.compiler.boundinertia = 1e-3
    spec.compiler.balanceinertia = True
    for kind in (
        spec.keys, spec.sensors, spec.actuators, spec.tendons, spec.equalities, spec.pairs, spec.excludes, spec.skins,
        spec.flexes, spec.geoms, spec.meshes, spec.hfields, spec.materials, spec.textures,
    ):  # fmt: skip
        for one in list(kind):
            spec.delete(one)
