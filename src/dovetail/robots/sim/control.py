"""From a policy's action to servo targets, once per control tick.

Both controllers move the arm only by setting the targets of its joint servos, and both report what they
really commanded: learning has to know that, not what was asked for.
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
    quat_normalise,
    quat_to_rotvec,
    rotate,
)
from dovetail.robots.sim.world import World

__all__ = ["CartesianDelta", "Controller", "Gripper", "JointTarget"]

_LOST_M = 1e-3  # a reference that inverse kinematics misses by more is beyond reach
_LOST_RAD = 1e-2


class Controller(Protocol):
    """Actions to servo targets. `reset` after every reset of the world, then `command` once a tick."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def low(self) -> tuple[float, ...]: ...

    @property
    def high(self) -> tuple[float, ...]: ...

    def reset(self, world: World) -> None: ...

    def command(self, world: World, action: ArrayLike) -> NDArray[np.float32]:
        """Set the servo targets; returns the action really commanded."""

    def hold(self, world: World) -> None:
        """Stay where the arm is now."""

    def reference_error(self, world: World) -> Vector:
        """[6] reference minus measured pose (m, rad): how hard the servos are pushing."""

    @property
    def gripper(self) -> float:
        """The gripper's command: 0 closed, 1 open."""


class Gripper:
    """0 closed, 1 open. Sticky: between 0.4 and 0.6 it keeps what it did: a noisy policy drops nothing."""

    def __init__(self, *, sticky: bool = True, close_below: float = 0.4, open_above: float = 0.6) -> None:
        self._sticky = sticky
        self._close_below = close_below
        self._open_above = open_above
        self.command = 1.0

    def reset(self, world: World) -> None:
        self.command = float(world.data.ctrl[world.gripper_ctrl]) / (0.5 * world.arm.max_opening_m)
        if self._sticky:
            self.command = 1.0 if self.command >= 0.5 else 0.0

    def set(self, world: World, value: float) -> float:
        if not self._sticky:
            self.command = min(max(value, 0.0), 1.0)
        elif value < self._close_below:
            self.command = 0.0
        elif value > self._open_above:
            self.command = 1.0
        world.data.ctrl[world.gripper_ctrl] = self.command * 0.5 * world.arm.max_opening_m
        return self.command


class CartesianDelta:
    """Action: [dx, dy, dz, drx, dry, drz, gripper], metres and radians per tick, in the reset pose's frame.

    Actions add up to a reference pose, which the servos follow like a spring. A leash on each axis keeps the
    reference near the measured pose, so that the force in contact is bounded by stiffness times leash, however
    long a policy pushes, and pushing along one axis takes nothing from the others.

    What counts as executed is the action as it was taken, within its limits. The leash belongs to the arm, as the
    servos do: were it counted, pushing against a wall would be recorded as doing nothing, and a critic would never
    see the actions that a stuck policy keeps trying.
    """

    names: tuple[str, ...] = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")

    def __init__(
        self,
        *,
        max_step_m: float = 0.02,
        max_turn_rad: float = 0.1,
        leash_m: float = 0.02,
        leash_rad: float = 0.15,
        sticky_gripper: bool = True,
        period_s: float = 0.1,
    ) -> None:
        self._max_step_m, self._max_turn_rad = max_step_m, max_turn_rad
        self._leash_m, self._leash_rad = leash_m, leash_rad
        self._period_s = period_s
        self._gripper = Gripper(sticky=sticky_gripper)
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
        """The pose that the servos are told to reach, in the base frame."""
        return self._position.copy(), self._quat.copy()

    def reset(self, world: World) -> None:
        """Take the present pose as the reference, and its orientation as the frame of all actions."""
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
        self._leash(world, self._position + rotate(self._frame, wanted[:3]), quat_multiply(turn, self._quat))
        self._follow(world)
        wanted[6] = self._gripper.set(world, float(wanted[6]))
        return wanted.astype(np.float32)

    def hold(self, world: World) -> None:
        """Reference and servo targets become where the arm is; the action frame stays."""
        self._position, self._quat = world.tcp_pose()
        self._joints = world.joint_positions()
        world.data.ctrl[world.joint_ctrl] = self._joints

    def reference_error(self, world: World) -> Vector:
        position, quat = world.tcp_pose()
        return np.concatenate((rotate(self._unframe, self._position - position), self._in_frame(self._quat, quat)))

    def _leash(self, world: World, position: Vector, quat: Vector) -> None:
        """Move the reference, but on no axis further from the measured pose than the leash."""
        here, here_quat = world.tcp_pose()
        ahead = np.clip(rotate(self._unframe, position - here), -self._leash_m, self._leash_m)
        self._position = here + rotate(self._frame, ahead)
        turn = np.clip(self._in_frame(quat, here_quat), -self._leash_rad, self._leash_rad)
        self._quat = quat_normalise(quat_multiply(quat_from_rotvec(rotate(self._frame, turn)), here_quat))

    def _follow(self, world: World) -> None:
        """Servo targets for the reference; what the arm cannot reach, the reference gives up."""
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
        """The rotation from `origin` to `target`, as a vector in the reset frame."""
        return rotate(self._unframe, quat_to_rotvec(quat_multiply(target, quat_conjugate(origin))))


class JointTarget:
    """Action: [joint1..jointN, gripper], absolute angles, kept within limits and near the measured joints."""

    def __init__(self, *, arm: Arm, max_step_rad: float = 0.2, sticky_gripper: bool = True) -> None:
        self.names = (*arm.joint_names, "gripper")
        self.low = (*arm.lower, 0.0)
        self.high = (*arm.upper, 1.0)
        self._lower, self._upper = np.array(arm.lower), np.array(arm.upper)
        self._max_step_rad = max_step_rad
        self._gripper = Gripper(sticky=sticky_gripper)

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
        """[6] in the TCP's frame: the joint servos' errors, seen at the TCP."""
        wanted, wanted_quat = world.kinematics.pose(world.joint_targets())
        position, quat = world.tcp_pose()
        unframe = quat_conjugate(quat)
        turn = quat_to_rotvec(quat_multiply(wanted_quat, unframe))
        return np.concatenate((rotate(unframe, wanted - position), rotate(unframe, turn)))


def _checked(action: ArrayLike, *, size: int) -> Vector:
    """A finite float64 vector. Not-a-number must never reach a servo."""
    values = np.asarray(action, dtype=np.float64)
    if values.shape != (size,):
        raise RobotError(f"an action of shape {values.shape} was sent where ({size},) is expected")
    if not np.isfinite(values).all():
        raise RobotError(f"an action with numbers that are not finite was sent: {values.tolist()}")
    return values
