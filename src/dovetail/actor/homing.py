"""The start pose of a joint-controlled arm, `actor.home`. See `reset_motion` for the motion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dovetail.actor.reset_motion import Gripper, Joints, Track, follow
from dovetail.config.model import Config
from dovetail.core.contracts import Clock, GuardedRobot
from dovetail.core.errors import ConfigError
from dovetail.core.specs import RobotSpec

__all__ = ["Home", "go_home"]


class Home(Config):
    """Start pose of each episode, as joint targets. The arm moves there before the task resets."""

    action: tuple[float, ...]
    """Target of each action axis, grippers included; zero for velocities."""
    speed: float = Field(default=1.0, gt=0.0, le=1.0)
    """Speed of the motion, relative to the limits of the safety filter."""
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
    target, spec = _checked(home, robot.spec).astype(np.float64), robot.spec
    steps = np.asarray(robot.largest_steps(), np.float64)
    names = spec.action.names or tuple(map(str, range(target.size)))
    tracks: list[Track] = []
    rest = ~np.repeat([part.is_velocity for part in spec.parts], [part.num_axes for part in spec.parts])
    for key, columns, axes in _joints(home, spec):
        rest[axes] = False
        tracks.append(
            Joints(
                axes=axes,
                key=key,
                columns=columns,
                target=target[axes],
                tolerance=home.tolerance,
                step=steps[axes],
                speed=home.speed,
                names=[names[axis] for axis in axes],
            )
        )
    if rest.any():
        grippers = np.flatnonzero(rest)
        tracks.append(Gripper(axes=grippers, target=target[grippers], step=steps[grippers]))
    follow(tracks, robot, clock, what="its home pose", timeout_s=home.timeout_s, tick=tick)


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
