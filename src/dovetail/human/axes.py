"""Maps the axes of an input device, each in [-1, 1], to an action within the robot's limits.

Motions are in the robot's base frame, so that up is up. They are rotated into the frame of the action, which is the pose at
the start of the episode. A gripper axis opens above 0.5, closes below -0.5, and otherwise keeps the gripper's state.
"""

from __future__ import annotations

import numpy as np

from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation

__all__ = ["AxisMapping", "cartesian_axes"]

_JOINT_VELOCITY = 0.8  # rad/s
_GRIP = 0.5


class AxisMapping:
    """Call `observe` with every observation, and `action` while the operator drives."""

    def __init__(self, robot: RobotSpec, *, speed: float = 1.0) -> None:
        self._robot = robot
        low, high = robot.action.bounds
        self._low, self._high = low, high
        bounded = np.isfinite(high - low)
        self._middle = np.where(bounded, (low + high) / 2, 0.0)
        self._reach = speed * np.where(bounded, (high - low) / 2, 1.0)
        self._grip = robot.axes_of("gripper")
        self._is_joint = robot.action_kind == "joint_target" and "joint_pos" in robot.observation
        self._step = speed * _JOINT_VELOCITY / robot.control_hz
        pose = robot.observation.get("ee_pose")
        known = pose is not None and pose.shape == (7,)
        self._triples = [axes[0] for axes in cartesian_axes(robot)] if known else []
        gripper = robot.observation.get("gripper")
        self._grip_at = gripper.names.index("command") if gripper and "command" in gripper.names else 0
        self.begin()

    def begin(self) -> None:
        """Start a new episode. Its first observation sets the frame."""
        self._unframe: Array | None = None  # base to action
        self._gripper: Array | None = None

    def observe(self, observation: Observation) -> None:
        if self._unframe is None and self._triples:
            self._unframe = _matrix(observation.values["ee_pose"][3:7]).T

    def release(self) -> None:
        """The policy may move the gripper from now on."""
        self._gripper = None

    def action(self, axes: Array, observation: Observation) -> Array:
        """float32 [A]."""
        moves = np.asarray(axes, np.float64)
        if self._is_joint:
            joints = observation.values["joint_pos"].reshape(-1)
            wanted = moves * self._step
            wanted[~self._grip if len(joints) < len(wanted) else slice(None)] += joints
        else:
            moves = moves.copy()
            for first in self._triples:
                assert self._unframe is not None, "observe() comes first"
                turned = self._unframe @ moves[first : first + 3]
                moves[first : first + 3] = turned / max(1.0, float(np.abs(turned).max()))
            wanted = self._middle + moves * self._reach
        if self._grip.any():
            wanted[self._grip] = self._grip_command(np.asarray(axes)[self._grip], observation)
        clipped: Array = np.clip(wanted, self._low, self._high).astype(np.float32)
        return clipped

    def _grip_command(self, axes: Array, observation: Observation) -> Array:
        low, high = self._low[self._grip], self._high[self._grip]
        if self._gripper is None:
            seen = observation.values.get("gripper")
            if seen is None:
                self._gripper = high.copy()
            else:
                self._gripper = np.clip(np.full(low.shape, seen.reshape(-1)[self._grip_at]), low, high)
        self._gripper = np.where(axes > _GRIP, high, np.where(axes < -_GRIP, low, self._gripper))
        return self._gripper


def cartesian_axes(robot: RobotSpec) -> list[list[int]]:
    """Translation axes, and rotation axes if any, of a single arm with delta actions. Empty for other robots."""
    arm = np.flatnonzero(~robot.axes_of("gripper")).tolist()
    if robot.action_kind != "ee_delta" or len(arm) not in (3, 6) or arm != list(range(len(arm))):
        return []
    return [arm[:3], arm[3:]][: len(arm) // 3]


def _matrix(quat: Array) -> Array:
    """Rotation matrix of a quaternion (w, x, y, z)."""
    w, x, y, z = np.asarray(quat, np.float64) / max(float(np.linalg.norm(quat)), 1e-9)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
