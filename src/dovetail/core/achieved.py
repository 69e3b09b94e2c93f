"""Achieved actions: the motion that each action caused, computed from measurements before and after it.

Hi-ORS learns from achieved actions. They differ from `executed`, the command: an arm lags behind and contact stops it.

    ee_delta        the motion from pose to pose, in the frame of the episode's first pose
    joint_target    the joint positions one tick later
    any             observation `achieved` of the next step, if the robot measures it itself

Gripper axes use the measured opening from observation `gripper`, or else the command.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["achieved_actions", "gripper_axes", "is_delta", "measures_achieved"]

_OWN, _POSE, _JOINTS, _GRIPPER = "achieved", "ee_pose", "joint_pos", "gripper"


def measures_achieved(robot: RobotSpec) -> bool:
    """Whether achieved actions can be computed from the robot's observations."""
    return _source(robot) is not None


def is_delta(action_kind: str) -> bool:
    """Whether actions are relative motions, not absolute targets."""
    return action_kind.endswith("_delta")


def gripper_axes(action: ArraySpec, action_kind: str) -> Array:
    """Mask of the gripper axes, bool [A]: by name, or the axes after the six of an arm."""
    num_axes = action.shape[0]
    if action.names:
        return np.array(["gripper" in name for name in action.names])
    axes = np.arange(num_axes)
    if action_kind != "ee_delta":
        return np.zeros(num_axes, np.bool_)
    is_gripper: Array = axes % 7 == 6 if num_axes % 7 == 0 else axes >= 6
    return is_gripper


def achieved_actions(robot: RobotSpec, observations: Mapping[str, Array], executed: Array) -> Array:
    """float32 [T, A] from the observations [T + 1, ...] of a whole episode. NaN if a needed observation is missing."""
    observations = {
        key: values
        for key, values in observations.items()
        if key in robot.observation and values.shape[1:] == robot.observation[key].shape
    }
    source = _source(robot)
    if source is None or source not in observations:
        return np.full(executed.shape, np.nan, np.float32)
    measured = observations[source]
    if source == _OWN:
        return measured[1:].astype(np.float32)
    grippers = gripper_axes(robot.action, robot.action_kind)
    if source == _JOINTS and measured.shape[1] == len(grippers):  # the joints include the grippers
        return measured[1:].astype(np.float32)
    achieved = executed.astype(np.float32)
    achieved[:, ~grippers] = measured[1:] if source == _JOINTS else _deltas(measured)
    opening = _openings(robot, observations)
    if opening is not None and opening.shape[1] == grippers.sum():
        achieved[:, grippers] = opening[1:]
    return achieved


def _source(robot: RobotSpec) -> str | None:
    """The observation to compute from, or None."""
    if len(robot.action.shape) != 1:
        return None
    shapes = {key: spec.shape for key, spec in robot.observation.items()}
    num_axes, num_arm_axes = robot.action.shape[0], int((~gripper_axes(robot.action, robot.action_kind)).sum())
    if shapes.get(_OWN) == robot.action.shape:
        return _OWN
    if robot.action_kind == "ee_delta" and num_arm_axes and num_arm_axes % 6 == 0:
        return _POSE if shapes.get(_POSE) == (num_arm_axes // 6 * 7,) else None
    if robot.action_kind == "joint_target":
        return _JOINTS if shapes.get(_JOINTS) in ((num_arm_axes,), (num_axes,)) else None
    return None


def _openings(robot: RobotSpec, observations: Mapping[str, Array]) -> Array | None:
    """Gripper openings, [T + 1, G]."""
    spec, measured = robot.observation.get(_GRIPPER), observations.get(_GRIPPER)
    if spec is None or measured is None:
        return None
    named = [index for index, name in enumerate(spec.names) if "opening" in name]
    return measured[:, named] if named else measured


def _deltas(poses: Array) -> Array:
    """From poses [T + 1, 7 n] to translations and rotations [T, 6 n] in the frame of the first pose, arm by arm."""
    moves = []
    for pose in np.split(poses.astype(np.float64), poses.shape[1] // 7, axis=1):
        position, quat = pose[:, :3], pose[:, 3:] / np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)
        turns = _rotation_vectors(_product(quat[1:], _inverse(quat[:-1])))
        frame = np.broadcast_to(_inverse(quat[:1]), (len(quat) - 1, 4))
        moves += [_turned(frame, np.diff(position, axis=0)), _turned(frame, turns)]
    return np.concatenate(moves, axis=1)


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
