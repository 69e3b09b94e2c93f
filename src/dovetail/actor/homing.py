"""Back to where an episode starts, step by step through the safety filter, and looked at before it counts as arrived."""

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
    """Joint targets where each episode starts, before the task resets the rest."""

    action: tuple[float, ...]
    """One number per axis of the action, grippers included."""
    tolerance: float = 0.02
    """How far a joint may be from there, as measured."""
    timeout_s: float = 15.0
    joint_key: str = "joint_pos"


def go_home(home: Home, robot: GuardedRobot, clock: Clock, *, tick: Callable[[], None]) -> None:
    """Returns when the measured joints are there and stay for a tick; a fault if they are not in time.

    `tick` waits for the next one, and raises what should end the motion.
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
                f"robot '{robot.spec.name}' did not come home in {home.timeout_s:g} s: joint {joint} is "
                f"{off[worst]:.3f} off. Something may be in its way, or actor.home may be out of reach"
            )
        robot.send(target)  # the filter lets it go one step of it at a time
        tick()


def _joints(spec: RobotSpec, num_measured: int) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """Which axes of the action the measured joints are: all of them, or those that are no grippers."""
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
            f"actor.home.action is {list(home.action)}, but should be {spec.action.describe()} in limits"
        )
    return target
