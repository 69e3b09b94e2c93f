"""What an action came to, in the numbers of an action: worked out from what was measured before and after it.

Learning from it, as Hi-ORS does, is learning from where the arm really went. It is not `executed`, which is what the
arm was told: an arm lags behind, and is held up by what it touches.

    ee_delta        the way from pose to pose, in the frame of the episode's first one
    joint_target    the joints as they were one tick later
    any             where the robot itself tells it, as observation `achieved`: what the action before came to

Grippers are as far open as they were measured, where observation `gripper` says so; otherwise as they were told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["achieved_actions", "gripper_axes", "is_delta", "tells_achieved"]

_OWN, _POSE, _JOINTS, _GRIPPER = "achieved", "ee_pose", "joint_pos", "gripper"


def tells_achieved(robot: RobotSpec) -> bool:
    """Whether a robot's observations say what an action came to."""
    return _source(robot) is not None


def is_delta(action_kind: str) -> bool:
    """Whether an arm's numbers say how far to go, and not where to."""
    return action_kind.endswith("_delta")


def gripper_axes(action: ArraySpec, action_kind: str) -> Array:
    """Which axes are grippers, bool [A]: those named so; without names, those behind the six of an arm."""
    num_axes = action.shape[0]
    if action.names:
        return np.array(["gripper" in name for name in action.names])
    axes = np.arange(num_axes)
    if action_kind != "ee_delta":
        return np.zeros(num_axes, np.bool_)
    is_gripper: Array = axes % 7 == 6 if num_axes % 7 == 0 else axes >= 6
    return is_gripper


def achieved_actions(robot: RobotSpec, observations: Mapping[str, Array], executed: Array) -> Array:
    """float32 [T, A], from observations [T + 1, ...] of a whole episode; NaN where there are none of the needed ones."""
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
    if source == _JOINTS and measured.shape[1] == len(grippers):  # grippers are joints among others
        return measured[1:].astype(np.float32)
    achieved = executed.astype(np.float32)
    achieved[:, ~grippers] = measured[1:] if source == _JOINTS else _deltas(measured)
    opening = _openings(robot, observations)
    if opening is not None and opening.shape[1] == grippers.sum():
        achieved[:, grippers] = opening[1:]
    return achieved


def _source(robot: RobotSpec) -> str | None:
    """The observation that tells it."""
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
    """How far the grippers are open, [T + 1, G]."""
    spec, measured = robot.observation.get(_GRIPPER), observations.get(_GRIPPER)
    if spec is None or measured is None:
        return None
    named = [index for index, name in enumerate(spec.names) if "opening" in name]
    return measured[:, named] if named else measured


def _deltas(poses: Array) -> Array:
    """From poses [T + 1, 7 n] to moves and turns [T, 6 n] in the frame of the first pose, an arm after the other."""
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
    """The rotation `second`, then the rotation `first`."""
    w, v, u, r = first[:, :1], first[:, 1:], second[:, :1], second[:, 1:]
    real = w * u - (v * r).sum(axis=1, keepdims=True)
    return np.concatenate((real, w * r + u * v + np.cross(v, r)), axis=1)


def _turned(quat: Array, vectors: Array) -> Array:
    twice = 2.0 * np.cross(quat[:, 1:], vectors)
    turned: Array = vectors + quat[:, :1] * twice + np.cross(quat[:, 1:], twice)
    return turned


def _rotation_vectors(quat: Array) -> Array:
    """Axis times angle, the short way round."""
    quat = np.where(quat[:, :1] < 0.0, -quat, quat)
    sine = np.linalg.norm(quat[:, 1:], axis=1, keepdims=True)
    angle = 2.0 * np.arctan2(sine, quat[:, :1])
    scale = np.divide(angle, sine, out=np.full_like(sine, 2.0), where=sine > 1e-9)
    vectors: Array = quat[:, 1:] * scale
    return vectors
