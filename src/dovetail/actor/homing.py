"""Move the arm to its start pose through the safety filter, and verify that it arrived."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock, GuardedRobot
from dovetail.core.errors import ConfigError, RobotFault
from dovetail.core.specs import RobotSpec

__all__ = ["Home", "go_home"]


class Home(Config):
    """Start pose of each episode, as joint targets. The arm moves there before the task resets."""

    action: tuple[float, ...]
    """Target of each action axis, grippers included."""
    tolerance: float = 0.02
    """Largest difference between a measured joint and its target, in rad."""
    timeout_s: float = 15.0
    """Seconds after which an arm that has not arrived is a fault."""
    joint_key: str = "joint_pos"
    """Observation with the measured joint positions."""


def go_home(home: Home, robot: GuardedRobot, clock: Clock, *, tick: Callable[[], None]) -> None:
    """Return when the measured joints are at the target for two ticks. Raises RobotFault after the timeout.

    `tick` waits for the next tick and may raise to end the motion.
    """
    target = _checked(home, robot.spec)
    robot.reset()
    until_ns = clock.now_ns() + round(home.timeout_s * NS_PER_S)
    num_there = 0
    while True:
        measured = robot.observe().values[home.joint_key].reshape(-1)
        off = np.abs(measured - target[_joints(robot.spec, len(measured))])
        num_there = num_there + 1 if (off <= home.tolerance).all() else 0
        if num_there >= 2:
            return
        if clock.now_ns() > until_ns:
            worst = int(off.argmax())
            names = robot.spec.observation[home.joint_key].names
            joint = f"'{names[worst]}'" if names else f"{worst}"
            raise RobotFault(
                f"robot '{robot.spec.name}' did not reach its home pose in {home.timeout_s:g} s: joint {joint} is "
                f"{off[worst]:.3f} off. Check for obstacles, or whether actor.home is in reach"
            )
        robot.send(target)  # the filter limits each step
        tick()


def _joints(spec: RobotSpec, num_measured: int) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """The action axes of the measured joints: all axes, or those without a gripper."""
    num_axes, names = spec.action.shape[0], spec.action.names
    arm = [axis for axis in range(num_axes) if not names or "gripper" not in names[axis]]
    return np.array((range(num_axes) if num_measured == num_axes else arm)[:num_measured])


def _checked(home: Home, spec: RobotSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    target = np.array(home.action, np.float32)
    if spec.action_kind != "joint_target" or home.joint_key not in spec.observation:
        raise ConfigError(
            f"actor.home needs joint targets and observation '{home.joint_key}', but robot '{spec.name}' takes "
            f"{spec.action_kind} actions: let its task reset it"
        )
    low, high = spec.action.bounds
    if target.shape != spec.action.shape or (target < low).any() or (target > high).any():
        raise ConfigError(
            f"actor.home.action is {list(home.action)}, but should be {spec.action.describe()} within the limits"
        )
    return target
