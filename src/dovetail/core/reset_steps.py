"""The steps of a reset: motions, waits and requests to a person. A task describes them; the control loop executes them.

    [
        MoveTo(name="home", targets={"arm": (0.0, -0.8, 1.2)}, speed=0.25),
        AskPerson(text="place the part"),
    ]

Every command passes the safety filter, STOP works at every tick, and arrival is verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.core.action_parts import ActionPart
from dovetail.core.errors import ConfigError, SpecMismatch
from dovetail.core.specs import RobotSpec

__all__ = ["AskPerson", "MoveTo", "ResetStep", "Wait", "check_targets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTo:
    """Move some parts and verify that they arrived. The others stand still.

    A target has one value per axis for joints and grippers. For an end effector it is a pose in the base frame (x, y, z, qw,
    qx, qy, qz), or only a position. The opening of a gripper is not verified, because it may hold an object.
    """

    name: str  # for errors, such as `home`
    targets: Mapping[str, tuple[float, ...]]
    offsets: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict
    )  # added to targets: per axis, or x y z and a rotation vector
    speed: float = 1.0  # relative to the limits of the safety filter
    tolerance_m: float = 0.005
    tolerance_rad: float = 0.02
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Stand still."""

    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPerson:
    """Show a text, and stand still until a person signals start."""

    text: str


ResetStep = MoveTo | Wait | AskPerson


def check_targets(robot: RobotSpec, steps: Sequence[ResetStep], *, where: str) -> None:
    """Raise ConfigError if the robot cannot execute a motion. `where` names the setting."""
    for step in steps:
        if isinstance(step, MoveTo):
            here = f"{where}.{step.name}"
            for name, target in step.targets.items():
                try:
                    part = robot.part(name)
                except SpecMismatch as error:
                    raise ConfigError(f"{here}: {error}") from error
                _check_part(part, robot, target, step.offsets.get(name, ()), here=f"{here}.parts.{name}")
            for name in step.offsets:
                if name not in step.targets:
                    raise ConfigError(f"{here}.offsets names part '{name}', which has no target. Add it to parts")


def _check_part(
    part: ActionPart, robot: RobotSpec, target: tuple[float, ...], offset: tuple[float, ...], *, here: str
) -> None:
    if part.is_velocity:
        raise ConfigError(
            f"{here} is a target, but part '{part.name}' takes {part.kind} actions. Remove it: it stands still"
        )
    if part.kind not in ("joint_target", "gripper", "ee_delta", "ee_target"):
        raise ConfigError(f"{here}: a reset cannot move a part of kind {part.kind}. Remove it")
    is_pose = part.kind.startswith("ee_")
    sizes = ((3, 7) if part.num_axes == 6 else (3,)) if is_pose else (part.num_axes,)
    if len(target) not in sizes:
        expected = " or ".join(map(str, sizes))
        raise ConfigError(f"{here} has {len(target)} values, but part '{part.name}' needs {expected}")
    if offset and len(offset) != part.num_axes:
        raise ConfigError(f"{here} has {len(offset)} offsets, but part '{part.name}' needs {part.num_axes}")
    if not np.isfinite((*target, *offset)).all():
        raise ConfigError(f"{here} is {list(target)}. Give finite numbers")
    if part.kind != "gripper" and not part.measured:
        raise ConfigError(
            f"{here}: no observation measures part '{part.name}', so arrival cannot be verified. Remove it"
        )
    if is_pose and len(target) == 7 and abs(float(np.linalg.norm(target[3:])) - 1.0) > 0.01:
        raise ConfigError(f"{here} has no unit quaternion (qw, qx, qy, qz), but {list(target[3:])}")
    if part.kind == "ee_delta" or not part.low:
        return
    far = np.abs(offset or np.zeros(part.num_axes))
    low, high, axes = np.array(part.low), np.array(part.high), slice(0, 3 if is_pose else None)
    center = np.array(target[:3] if is_pose else target)
    if (center - far[axes] < low[axes] - 1e-6).any() or (center + far[axes] > high[axes] + 1e-6).any():
        raise ConfigError(
            f"{here} is {list(target)}, which with its offsets is outside {list(low)} to {list(high)}"
        )
