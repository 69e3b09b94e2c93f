"""From a policy's action to servo targets, once per control tick.

Both controllers only set the targets of the joint servos. Both return the executed action, which learning needs.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.core.errors import RobotError
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import (
    Vector,
    quat_conjugate,
    quat_from_rotvec,
    quat_multiply,
    quat_normalize,
    quat_to_rotvec,
    rotate,
)
from dovetail.robots.sim.world import World

__all__ = ["CartesianDelta", "Controller", "Gripper", "JointTarget"]

_LOST_M = 1e-3  # a reference is out of reach if inverse kinematics misses it by more
_LOST_RAD = 1e-2


class Controller(Protocol):
    """Actions to servo targets. Call `reset` after each reset of the world, then `command` once per tick."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def low(self) -> tuple[float, ...]: ...

    @property
    def high(self) -> tuple[float, ...]: ...

    def reset(self, world: World) -> None: ...

    def command(self, world: World, action: ArrayLike) -> NDArray[np.float32]:
        """Set the servo targets and return the executed action."""

    def hold(self, world: World) -> None:
        """Hold the current pose."""

    def reference_error(self, world: World) -> Vector:
        """[6] reference minus measured pose (m, rad), proportional to the servo forces."""

    @property
    def gripper(self) -> float:
        """The gripper's command: 0 closed, 1 open."""


class Gripper:
    """0 closed, 1 open. Commands from 0.4 to 0.6 keep the state, so that a noisy policy drops nothing."""

    def __init__(self, *, close_below: float = 0.4, open_above: float = 0.6) -> None:
        self._close_below = close_below
        self._open_above = open_above
        self.command = 1.0

    def reset(self, world: World) -> None:
        opening = float(world.data.ctrl[world.gripper_ctrl]) / (0.5 * world.arm.max_opening_m)
        self.command = 1.0 if opening >= 0.5 else 0.0

    def set(self, world: World, value: float) -> float:
        if value < self._close_below:
            self.command = 0.0
        elif value > self._open_above:
            self.command = 1.0
        world.data.ctrl[world.gripper_ctrl] = self.command * 0.5 * world.arm.max_opening_m
        return self.command


class CartesianDelta:
    """Action: [dx, dy, dz, drx, dry, drz, gripper], meters and radians per tick, in the reset pose's frame.

    Actions add up to a reference pose, which the servos follow like a spring. On each axis the reference stays within
    `max_lead_m` of the measured pose, so the contact force is at most stiffness times lead. Axes are independent.

    The executed action is the action clipped to its limits, before the lead limit. Otherwise, pushing against a wall
    would be recorded as no motion, and a critic would never see the actions of a stuck policy.
    """

    names: tuple[str, ...] = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")

    def __init__(
        self,
        *,
        max_step_m: float = 0.02,
        max_turn_rad: float = 0.1,
        max_lead_m: float = 0.02,
        max_lead_rad: float = 0.15,
        period_s: float = 0.1,
    ) -> None:
        self._max_step_m, self._max_turn_rad = max_step_m, max_turn_rad
        self._max_lead_m, self._max_lead_rad = max_lead_m, max_lead_rad
        self._period_s = period_s
        self._gripper = Gripper()
        self.low = (-max_step_m,) * 3 + (-max_turn_rad,) * 3 + (0.0,)
        self.high = (max_step_m,) * 3 + (max_turn_rad,) * 3 + (1.0,)
        self._low, self._high = np.array(self.low), np.array(self.high)
        self._frame = np.array((1.0, 0.0, 0.0, 0.0))  # orientation of the reset pose
        self._unframe = self._frame
        self._position = np.zeros(3)
        self._quat = self._frame
        self._joints: Vector | None = None

    @property
    def gripper(self) -> float:
        return self._gripper.command

    @property
    def reference(self) -> tuple[Vector, Vector]:
        """The target pose of the servos, in the base frame."""
        return self._position.copy(), self._quat.copy()

    def reset(self, world: World) -> None:
        """Use the current pose as reference, and its orientation as the frame of all actions."""
        self._position, self._quat = world.tcp_pose()
        self._frame, self._unframe = self._quat, quat_conjugate(self._quat)
        self._joints = world.joint_positions()
        world.data.ctrl[world.joint_ctrl] = self._joints
        self._gripper.reset(world)

    def command(self, world: World, action: ArrayLike) -> NDArray[np.float32]:
        wanted = np.clip(_checked(action, size=7), self._low, self._high)
        if self._joints is None:
            self.reset(world)
        assert self._joints is not None
        turn = quat_from_rotvec(rotate(self._frame, wanted[3:6]))
        self._move_reference(
            world, self._position + rotate(self._frame, wanted[:3]), quat_multiply(turn, self._quat)
        )
        self._follow(world)
        wanted[6] = self._gripper.set(world, float(wanted[6]))
        return wanted.astype(np.float32)

    def hold(self, world: World) -> None:
        """Set reference and servo targets to the current pose. The action frame stays."""
        self._position, self._quat = world.tcp_pose()
        self._joints = world.joint_positions()
        world.data.ctrl[world.joint_ctrl] = self._joints

    def reference_error(self, world: World) -> Vector:
        position, quat = world.tcp_pose()
        return np.concatenate((rotate(self._unframe, self._position - position), self._in_frame(self._quat, quat)))

    def _move_reference(self, world: World, position: Vector, quat: Vector) -> None:
        """Move the reference, limited to the maximum lead on each axis."""
        here, here_quat = world.tcp_pose()
        ahead = np.clip(rotate(self._unframe, position - here), -self._max_lead_m, self._max_lead_m)
        self._position = here + rotate(self._frame, ahead)
        turn = np.clip(self._in_frame(quat, here_quat), -self._max_lead_rad, self._max_lead_rad)
        self._quat = quat_normalize(quat_multiply(quat_from_rotvec(rotate(self._frame, turn)), here_quat))

    def _follow(self, world: World) -> None:
        """Set servo targets for the reference. If the arm cannot reach it, move the reference to where it can."""
        assert self._joints is not None
        start = self._joints
        found = world.kinematics.solve(position=self._position, quat=self._quat, start=start)
        longest = np.array(world.arm.max_velocity) * self._period_s
        joints = start + np.clip(found.joints - start, -longest, longest)
        slowed = bool((np.abs(found.joints - start) > longest).any())
        if slowed or found.position_error_m > _LOST_M or found.rotation_error_rad > _LOST_RAD:
            self._position, self._quat = world.kinematics.pose(joints)
        self._joints = joints
        world.data.ctrl[world.joint_ctrl] = joints

    def _in_frame(self, target: Vector, origin: Vector) -> Vector:
        """Rotation from `origin` to `target`, as a vector in the reset frame."""
        return rotate(self._unframe, quat_to_rotvec(quat_multiply(target, quat_conjugate(origin))))


class JointTarget:
    """Action: [joint1..jointN, gripper], absolute angles, limited to a range around the measured joints."""

    def __init__(self, *, arm: Arm, max_step_rad: float = 0.2) -> None:
        self.names = (*arm.joint_names, "gripper")
        self.low = (*arm.lower, 0.0)
        self.high = (*arm.upper, 1.0)
        self._lower, self._upper = np.array(arm.lower), np.array(arm.upper)
        self._max_step_rad = max_step_rad
        self._gripper = Gripper()

    @property
    def gripper(self) -> float:
        return self._gripper.command

    def reset(self, world: World) -> None:
        self._gripper.reset(world)
        self.hold(world)

    def command(self, world: World, action: ArrayLike) -> NDArray[np.float32]:
        wanted = _checked(action, size=len(self.names))
        here = world.joint_positions()
        targets = here + np.clip(wanted[:-1] - here, -self._max_step_rad, self._max_step_rad)
        targets = np.clip(targets, self._lower, self._upper)
        world.data.ctrl[world.joint_ctrl] = targets
        executed = np.empty(len(self.names), np.float32)
        executed[:-1] = targets
        executed[-1] = self._gripper.set(world, float(wanted[-1]))
        return executed

    def hold(self, world: World) -> None:
        world.data.ctrl[world.joint_ctrl] = world.joint_positions()

    def reference_error(self, world: World) -> Vector:
        """[6] errors of the joint servos as a pose error in the TCP's frame."""
        wanted, wanted_quat = world.kinematics.pose(world.joint_targets())
        position, quat = world.tcp_pose()
        unframe = quat_conjugate(quat)
        turn = quat_to_rotvec(quat_multiply(wanted_quat, unframe))
        return np.concatenate((rotate(unframe, wanted - position), rotate(unframe, turn)))


def _checked(action: ArrayLike, *, size: int) -> Vector:
    """Return a finite float64 vector. NaN must never reach a servo."""
    values = np.asarray(action, dtype=np.float64)
    if values.shape != (size,):
        raise RobotError(f"the action has shape {values.shape}, expected ({size},)")
    if not np.isfinite(values).all():
        raise RobotError(f"the action is not finite: {values.tolist()}")
    return values
