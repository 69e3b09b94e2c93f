"""Move the arm to its start pose through the safety filter, and verify that it arrived."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock, GuardedRobot
from dovetail.core.errors import ConfigError, RobotFault
from dovetail.core.specs import RobotSpec

__all__ = ["Home", "go_home"]


class Home(Config):
    """Start pose of each episode, as joint targets. The arm moves there before the task resets."""

    action: tuple[float, ...]
    """Target of each action axis, grippers included; zero for velocities."""
    tolerance: float = 0.02
    """Largest difference between a measured joint and its target, in rad."""
    timeout_s: float = 15.0
    """Seconds after which an arm that has not arrived is a fault."""
    joint_key: str = "joint_pos"
    """Observation with the measured joint positions, unless the robot's action parts name it."""


def go_home(home: Home, robot: GuardedRobot, clock: Clock, *, tick: Callable[[], None]) -> None:
    """Return when the measured joints are at the target for two ticks. Raises RobotFault after the timeout.

    `tick` waits for the next tick and may raise to end the motion.
    """
    target = _checked(home, robot.spec)
    joints = _joints(home, robot.spec)
    robot.reset()
    until_ns = clock.now_ns() + round(home.timeout_s * NS_PER_S)
    num_there = 0
    while True:
        values = robot.observe().values
        off = np.concatenate(
            [np.abs(values[key].reshape(-1)[columns] - target[axes]) for key, columns, axes in joints]
        )
        num_there = num_there + 1 if (off <= home.tolerance).all() else 0
        if num_there >= 2:
            return
        if clock.now_ns() > until_ns:
            worst = int(off.argmax())
            axis = int(np.concatenate([axes for _, _, axes in joints])[worst])
            names = robot.spec.action.names
            joint = f"'{names[axis]}'" if names else f"{axis}"
            raise RobotFault(
                f"robot '{robot.spec.name}' did not reach its home pose in {home.timeout_s:g} s: joint {joint} is "
                f"{off[worst]:.3f} off. Check for obstacles, or whether actor.home is in reach"
            )
        robot.send(target)  # the filter limits each step
        tick()


def _joints(home: Home, spec: RobotSpec) -> list[tuple[str, slice, npt.NDArray[np.intp]]]:
    """Each observation that measures joints, its entries, and the action axes that they belong to."""
    parts = [part for part in spec.parts if part.kind == "joint_target"]
    if not any(part.derived_from for part in parts):
        axes = np.arange(spec.action.shape[0])
        return [(part.measured_key, part.measured_slice, axes[spec.slice_of(part.name)]) for part in parts]
    size = spec.observation[home.joint_key].shape[0]
    arm = np.flatnonzero(~spec.axes_of("gripper"))
    axes = np.arange(spec.action.shape[0]) if size == spec.action.shape[0] else arm[:size]
    return [(home.joint_key, slice(None), axes)]


def _checked(home: Home, spec: RobotSpec) -> npt.NDArray[np.float32]:
    target = np.array(home.action, np.float32)
    joints = [part for part in spec.parts if part.kind == "joint_target"]
    moving = [part for part in spec.parts if part.kind not in ("joint_target", "gripper") and not part.is_velocity]
    is_measured = joints and (not joints[0].derived_from or home.joint_key in spec.observation)
    if not joints or moving or not is_measured:
        raise ConfigError(
            f"actor.home needs joint targets and observation '{home.joint_key}', but robot '{spec.name}' takes "
            f"{moving[0].kind if moving else spec.action_kind} actions: let its task reset it"
        )
    low, high = spec.action.bounds
    if target.shape != spec.action.shape or not ((target >= low) & (target <= high)).all():
        raise ConfigError(
            f"actor.home.action is {list(home.action)}, but should be {spec.action.describe()} within the limits"
        )
    for part in spec.parts:
        if part.is_velocity and target[spec.slice_of(part.name)].any():
            raise ConfigError(f"actor.home.action has velocities for part '{part.name}', but should have zeros")
    return target
