"""What the filter needs of a robot's parts and the safety settings. Whatever is missing is refused here."""

from __future__ import annotations

import numpy as np

from dovetail.config.safety import SafetyConfig
from dovetail.core.action_parts import KINDS, derived_parts
from dovetail.core.errors import ConfigError, SpecMismatch
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.robots.limits.axes import Axes, Vector

__all__ = ["checked_parts", "largest_steps", "limited_by_hand", "pose_speeds"]

_DEFAULT_JOINT_VELOCITY = 1.75  # rad/s: 5 degrees per tick at 20 Hz
_SIMULATED = "gym"  # kind of action of a simulated environment, whose meaning is not known


def checked_parts(spec: RobotSpec, config: SafetyConfig, *, simulated: bool) -> tuple[ActionPart, ...]:
    """The parts of a robot, with the observation keys of the settings. Raises if something is missing or unknown."""
    if len(spec.action.shape) != 1 or not spec.action.shape[0]:
        raise SpecMismatch(
            f"robot '{spec.name}' takes actions of shape {list(spec.action.shape)}, expected a vector"
        )
    parts = _with_keys(spec, config)
    for part in parts:
        if part.derived_from == _SIMULATED and simulated:
            continue
        missing = part.missing()
        if missing is not None and not limited_by_hand(part, config):
            by_hand = (
                ", or set safety.hold_action and safety.max_velocity, and give the action finite limits"
                if part.derived_from and part.derived_from not in ("ee_delta", "joint_target")
                else ""
            )
            raise SpecMismatch(
                f"robot '{spec.name}' must not move: its action part '{part.name}' of kind '{part.kind}' needs "
                f"{missing}{by_hand}"
            )
        _check_arm(spec, config, part, parts)
    if config.hold_action is not None and len(config.hold_action) != spec.action.shape[0]:
        raise ConfigError(
            f"safety.hold_action has {len(config.hold_action)} values for {spec.action.shape[0]} axes"
        )
    if config.workspace is not None:
        _check_workspace(spec, config, parts)
    return parts


def limited_by_hand(part: ActionPart, config: SafetyConfig) -> bool:
    """Whether the settings say how a part of unknown kind stands still and how fast it may move."""
    is_limited = config.max_velocity is not None or config.max_step is not None
    is_bounded = bool(part.low) and bool(np.isfinite((*part.low, *part.high)).all())
    return part.kind not in KINDS and config.hold_action is not None and is_limited and is_bounded


def largest_steps(spec: RobotSpec, config: SafetyConfig, axes: Axes) -> Vector:
    """Maximum motion per tick and axis, [A]; infinite where nothing limits it."""
    tick_s = 1.0 / spec.control_hz
    grip = axes.is_gripper
    steps = np.full(axes.low.shape, np.inf)
    given = [
        (name, value, factor)
        for name, value, factor in (
            ("max_step", config.max_step, 1.0),
            ("max_velocity", config.max_velocity, tick_s),
        )
        if value is not None
    ]
    for name, value, factor in given:
        values = np.asarray(value, np.float64) * factor
        if values.shape not in ((), steps.shape, (int((~grip).sum()),)):
            raise ConfigError(f"safety.{name} has {values.size} values for {steps.size} axes")
        if not ((values > 0) & np.isfinite(values)).all():
            raise ConfigError(f"safety.{name} must be above zero and finite, got {value}")
        where = slice(None) if values.shape == steps.shape else ~grip
        steps[where] = np.minimum(steps[where], values)
    steps[grip] = np.inf
    for part, at in axes.parts:
        if part.max_speed and not part.is_velocity:
            steps[at] = np.minimum(steps[at], np.array(part.max_speed) * tick_s)
        elif part.kind == "joint_target" and not given:
            steps[at] = _DEFAULT_JOINT_VELOCITY / spec.control_hz
    return steps


def pose_speeds(part: ActionPart, speed: Vector, *, control_hz: float) -> tuple[float, float]:
    """Largest measured speed of an end effector, in m/s and rad/s, from the limits [A] of its axes.

    The frame of the action may be rotated against that of the measurement: any direction may get the motion of all axes.
    """
    if part.is_delta:
        speed = np.minimum(speed, np.maximum(np.abs(part.low), np.abs(part.high)) * control_hz)
    return float(np.linalg.norm(speed[:3])), float(np.linalg.norm(speed[3:6]))


def _with_keys(spec: RobotSpec, config: SafetyConfig) -> tuple[ActionPart, ...]:
    """Parts of a spec in the form of 0.6 are measured by the observations that the settings name."""
    if not any(part.derived_from for part in spec.parts):
        return spec.parts
    gripper = spec.observation.get(config.gripper_key)
    return derived_parts(
        spec.action_kind,
        names=spec.action.names,
        low=spec.action.low,
        high=spec.action.high,
        num_axes=spec.action.shape[0],
        sizes={key: array.shape[0] for key, array in spec.observation.items() if len(array.shape) == 1},
        gripper_columns=gripper.names if gripper is not None else (),
        joint_key=config.joint_key,
        pose_key=config.ee_pose_key,
        gripper_key=config.gripper_key,
    )


def _check_arm(spec: RobotSpec, config: SafetyConfig, part: ActionPart, parts: tuple[ActionPart, ...]) -> None:
    if part.kind == "joint_target":
        if part.measured_key not in spec.observation:
            raise SpecMismatch(
                f"the safety filter needs observation '{config.joint_key}' to limit joint targets, "
                f"but robot '{spec.name}' gives {', '.join(spec.observation)}"
            )
        num_joints = spec.observation[part.measured_key].shape[0]
        num_arm = sum(one.num_axes for one in parts if one.kind == "joint_target")
        if part.derived_from and num_joints not in (num_arm, spec.action.shape[0]):
            raise SpecMismatch(
                f"robot '{spec.name}' has {num_joints} joints in '{part.measured_key}', but takes {num_arm} targets"
            )
    if part.kind == "ee_target" and part.frame != "base":
        raise SpecMismatch(
            f"action part '{part.name}' of robot '{spec.name}' has targets in frame {part.frame}: use frame base, or "
            "ee_delta"
        )
    if part.kind != "ee_delta":
        return
    if part.num_axes not in (3, 6) or (part.derived_from and part.num_axes != 6):
        raise SpecMismatch(
            f"robot '{spec.name}' takes ee_delta actions with {part.num_axes} values in part '{part.name}': "
            "expected 6 values per arm, x y z and a rotation"
        )
    if any(low > 0 for low in part.low) or any(high < 0 for high in part.high):
        raise SpecMismatch(
            f"robot '{spec.name}' takes ee_delta actions, but its limits exclude zero, so it cannot hold still"
        )


def _check_workspace(spec: RobotSpec, config: SafetyConfig, parts: tuple[ActionPart, ...]) -> None:
    arms = [part for part in parts if part.kind in ("ee_delta", "ee_target")]
    if not arms:
        kinds = spec.action_kind if len(parts) == 1 or parts[0].derived_from else ", ".join(p.kind for p in parts)
        raise ConfigError(
            f"safety.workspace needs ee_delta or ee_target actions, but robot '{spec.name}' takes {kinds}: "
            "set safety.workspace=null to run without a workspace limit"
        )
    others = [part.name for part in parts if part.kind in ("joint_target", "joint_velocity", "ee_velocity")]
    if others:
        raise ConfigError(
            f"safety.workspace cannot limit part '{others[0]}' of robot '{spec.name}': set safety.workspace=null"
        )
    for part in arms:
        if not part.measured:
            raise SpecMismatch(
                f"safety.workspace needs observation '{config.ee_pose_key}' with 7 values per arm, which robot "
                f"'{spec.name}' does not provide"
            )
        if part.frame == "tool":
            raise ConfigError(
                f"safety.workspace needs actions in frame base or reset, but part '{part.name}' of robot '{spec.name}' "
                "is in frame tool"
            )
