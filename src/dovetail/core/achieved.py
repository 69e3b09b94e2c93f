"""Achieved actions: the motion that each action caused, computed from measurements before and after it.

Hi-ORS learns from achieved actions. They differ from `executed`, the command: an arm lags behind and contact stops it.

    ee_delta            the motion from pose to pose, in the part's frame
    joint_target        the joint positions one tick later
    velocities          the measured velocities one tick later
    gripper             the measured opening one tick later, or else the command
    any                 observation `achieved` of the next step, if the robot measures it itself

Other kinds, and parts that nothing measures, have no achieved actions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array

__all__ = ["achieved_actions", "measures_achieved", "pose_deltas"]

_OWN, _GRIPPER, _JOINTS = "achieved", "gripper", "joint_pos"


def measures_achieved(robot: RobotSpec) -> bool:
    """Whether achieved actions can be computed from the robot's observations."""
    return _sources(robot) is not None


def achieved_actions(robot: RobotSpec, observations: Mapping[str, Array], executed: Array) -> Array:
    """float32 [T, A] from the observations [T + 1, ...] of a whole episode. NaN if a needed observation is missing."""
    observations = {
        key: values
        for key, values in observations.items()
        if key in robot.observation and values.shape[1:] == robot.observation[key].shape
    }
    sources = _sources(robot)
    if sources is None or any(key not in observations for key, _ in sources.values()):
        return np.full(executed.shape, np.nan, np.float32)
    if _OWN in sources:
        return observations[_OWN][1:].astype(np.float32)
    achieved = executed.astype(np.float32)
    for part in robot.parts:
        axes = robot.slice_of(part.name)
        if part.name in sources:
            key, columns = sources[part.name]
            measured = observations[key][:, columns]
            achieved[:, axes] = pose_deltas(measured, part.frame) if part.kind == "ee_delta" else measured[1:]
        elif (opening := _opening(robot, part)) is not None and opening[0] in observations:
            achieved[:, axes] = observations[opening[0]][1:, opening[1]]
    return achieved


_Source = tuple[str, slice]  # an observation and its columns


def _sources(robot: RobotSpec) -> dict[str, _Source] | None:
    """The observation to compute each part from, grippers excepted. None: a part is not measured."""
    if _OWN in robot.observation and robot.observation[_OWN].shape == robot.action.shape:
        return {_OWN: (_OWN, slice(None))}
    sources: dict[str, _Source] = {}
    for part in robot.parts:
        if part.kind == "gripper" and not _is_in_joints(robot, part):
            if part.derived_from == "joint_target" and not part.names:
                return None  # not known to be a gripper: its measured opening may not replace its command
            continue
        source = _joint_column(robot, part) if part.kind == "gripper" else (part.measured_key, part.measured_slice)
        is_measurable = part.kind in ("ee_delta", "joint_target", "gripper") or part.is_velocity
        if not is_measurable or _width(robot, source) != (7 if part.kind == "ee_delta" else part.num_axes):
            return None
        sources[part.name] = source
    return sources or None


def _is_in_joints(robot: RobotSpec, part: ActionPart) -> bool:
    """Whether the joints of a spec in the form of 0.6 include its grippers."""
    return part.derived_from == "joint_target" and _width(robot, (_JOINTS, slice(None))) == robot.action.shape[0]


def _joint_column(robot: RobotSpec, part: ActionPart) -> _Source:
    return _JOINTS, robot.slice_of(part.name)


def _width(robot: RobotSpec, source: _Source) -> int:
    """Number of columns of a source; 0 if it does not exist."""
    key, columns = source
    shape = robot.observation[key].shape if key in robot.observation else ()
    return len(range(*columns.indices(shape[0]))) if len(shape) == 1 else 0


def _opening(robot: RobotSpec, part: ActionPart) -> _Source | None:
    """The measured opening of a gripper."""
    if not part.derived_from:
        return (part.measured_key, part.measured_slice) if part.measured else None
    spec = robot.observation.get(_GRIPPER)
    if spec is None or len(spec.shape) != 1:
        return None
    named = [index for index, name in enumerate(spec.names) if "opening" in name]
    columns = named or list(range(spec.shape[0]))
    grippers = [gripper.name for gripper in robot.parts if gripper.kind == "gripper"]
    if len(columns) != len(grippers):
        return None
    at = columns[grippers.index(part.name)]
    return _GRIPPER, slice(at, at + 1)


def pose_deltas(poses: Array, frame: str) -> Array:
    """From poses [T + 1, 7] to translations and rotations [T, 6] in the base, the first pose or each pose ("tool")."""
    pose = poses.astype(np.float64)
    position, quat = pose[:, :3], pose[:, 3:] / np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)
    moves, turns = np.diff(position, axis=0), _rotation_vectors(_product(quat[1:], _inverse(quat[:-1])))
    if frame == "base":
        return np.concatenate((moves, turns), axis=1)
    unframe = _inverse(quat[:-1] if frame == "tool" else quat[:1])
    unframe = np.broadcast_to(unframe, (len(quat) - 1, 4))
    return np.concatenate((_turned(unframe, moves), _turned(unframe, turns)), axis=1)


# ---- quaternions (w, x, y, z), [N, 4]


def _inverse(quat: Array) -> Array:
    inverse: Array = quat * np.array((1.0, -1.0, -1.0, -1.0))
    return inverse


def _product(first: Array, second: Array) -> Array:
    """Rotate by `second`, then by `first`."""
    w, v, u, r = first[:, :1], first[:, 1:], second[:, :1], second[:, 1:]
    real = w * u - (v * r).sum(axis=1, keepdims=True)
    return np.concatenate((real, w * r + u * v + np.cross(v, r)), axis=1)


def _turned(quat: Array, vectors: Array) -> Array:
    twice = 2.0 * np.cross(quat[:, 1:], vectors)
    turned: Array = vectors + quat[:, :1] * twice + np.cross(quat[:, 1:], twice)
    return turned


def _rotation_vectors(quat: Array) -> Array:
    """Axis times angle, for the shorter rotation."""
    quat = np.where(quat[:, :1] < 0.0, -quat, quat)
    sine = np.linalg.norm(quat[:, 1:], axis=1, keepdims=True)
    angle = 2.0 * np.arctan2(sine, quat[:, :1])
    scale = np.divide(angle, sine, out=np.full_like(sine, 2.0), where=sine > 1e-9)
    vectors: Array = quat[:, 1:] * scale
    return vectors
