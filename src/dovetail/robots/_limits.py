"""Limits of the safety filter for each kind of action. The filter itself is in safety.py."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dovetail.config.safety import SafetyConfig
from dovetail.core.errors import ConfigError, SpecMismatch
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array

__all__ = ["Limiter", "Reason", "Vector", "limiter_for"]

Vector = npt.NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)
_DEFAULT_JOINT_VELOCITY = 1.75  # rad/s: 5 degrees per tick at 20 Hz


class Reason(enum.IntFlag):
    """Why an action was changed."""

    NONE = 0
    NON_FINITE = 1
    LIMIT = 2  # of an action or joint
    STEP = 4  # too far from the measured state for one tick
    WORKSPACE = 8
    STALE = 16
    BAD_OBSERVATION = 32
    NO_OBSERVATION = 64
    FAULT = 128


class Limiter:
    """Limits from the spec, for an unknown kind of action. Subclasses handle known kinds."""

    def __init__(self, spec: RobotSpec, config: SafetyConfig) -> None:
        low, high = spec.action.bounds
        # a larger float64 would become infinity as float32
        self.low = np.maximum(low.astype(np.float64), -_LARGEST)
        self.high = np.minimum(high.astype(np.float64), _LARGEST)
        still = np.zeros(self.low.shape) if config.hold_action is None else np.array(config.hold_action)
        if still.shape != self.low.shape:
            raise ConfigError(f"safety.hold_action has {still.size} values for {self.low.size} axes")
        self.still = np.clip(still, self.low, self.high)
        if config.workspace is not None and spec.action_kind != "ee_delta":
            raise ConfigError(
                f"safety.workspace needs ee_delta actions, but robot '{spec.name}' takes {spec.action_kind}: "
                "set safety.workspace=null to run without a workspace limit"
            )
        self.grip = np.zeros(self.low.shape, np.bool_)  # mask of gripper axes
        self._grip_key = config.gripper_key
        self._grip_from: slice | None = None
        if (gripper := spec.observation.get(config.gripper_key)) is not None and len(gripper.shape) == 1:
            at = gripper.names.index("command") if "command" in gripper.names else None
            self._grip_from = slice(None) if at is None else slice(at, at + 1)

    def reset(self) -> None:
        """Discard the reset pose."""

    def find_problem(self, values: Mapping[str, Array]) -> str | None:
        return None

    def measure(self, values: Mapping[str, Array]) -> None:
        """Store a valid observation."""

    def remember(self, executed: Array) -> None:
        """Store the executed action."""

    def hold(self) -> Vector:
        return self.still.copy()

    def limit(self, action: Vector) -> int:
        """Clip an action in place. Return the reasons as flags."""
        return int(Reason.LIMIT) if _clip(action, self.low, self.high) else 0

    def _steps(self, spec: RobotSpec, config: SafetyConfig, *, default_velocity: float) -> Vector:
        """Maximum step per axis; infinite for gripper axes."""
        steps = np.full(self.low.shape, default_velocity / spec.control_hz)
        given = [
            (name, value, factor)
            for name, value, factor in (
                ("max_step", config.max_step, 1.0),
                ("max_velocity", config.max_velocity, 1.0 / spec.control_hz),
            )
            if value is not None
        ]
        if given:
            steps[:] = np.inf
        for name, value, factor in given:
            values = np.asarray(value, np.float64) * factor
            if values.shape not in ((), steps.shape, (int((~self.grip).sum()),)):
                raise ConfigError(f"safety.{name} has {values.size} values for {steps.size} axes")
            if not (values > 0).all():
                raise ConfigError(f"safety.{name} must be above zero, got {value}")
            axes = slice(None) if values.shape == steps.shape else ~self.grip
            steps[axes] = np.minimum(steps[axes], values)
        steps[self.grip] = np.inf
        return steps

    def _first_grip(self, values: Mapping[str, Array]) -> None:
        """Before the first gripper command, hold the measured opening, or open if it is not measured."""
        low, high = self.low[self.grip], self.high[self.grip]
        measured = values[self._grip_key][self._grip_from] if self._grip_from is not None else high
        self.still[self.grip] = np.clip(measured, low, high) if np.size(measured) == low.size else high


class _JointTargets(Limiter):
    """Absolute joint positions and grippers. Gripper axes have names with `gripper`, or follow the measured joints."""

    def __init__(self, spec: RobotSpec, config: SafetyConfig) -> None:
        super().__init__(spec, config)
        self._key = config.joint_key
        if self._key not in spec.observation:
            raise SpecMismatch(
                f"the safety filter needs observation '{self._key}' to limit joint targets, "
                f"but robot '{spec.name}' gives {', '.join(spec.observation)}"
            )
        size, num_joints = self.low.size, int(np.prod(spec.observation[self._key].shape))
        for axis, name in enumerate(spec.action.names):
            self.grip[axis] = "gripper" in name
        if not spec.action.names:
            self.grip[num_joints:] = True
        num_arm = size - int(self.grip.sum())
        if num_joints not in (num_arm, size):
            raise SpecMismatch(
                f"robot '{spec.name}' has {num_joints} joints in '{self._key}', but takes {num_arm} targets"
            )
        self._whole = num_joints == size
        self._arm = ~self.grip
        self._joints = np.zeros(size)  # measured; gripper entries are not used
        self._step = self._steps(spec, config, default_velocity=_DEFAULT_JOINT_VELOCITY)
        self._grip_known = False

    def reset(self) -> None:
        self._grip_known = False

    def measure(self, values: Mapping[str, Array]) -> None:
        measured = values[self._key].reshape(-1)
        if self._whole:
            self._joints[:] = measured
        else:
            self._joints[self._arm] = measured
        if not self._grip_known:
            self._first_grip(values)

    def remember(self, executed: Array) -> None:
        self.still[self.grip] = executed[self.grip]
        self._grip_known = True

    def hold(self) -> Vector:
        self.still[self._arm] = self._joints[self._arm]
        held = self.still.copy()
        self.limit(held)
        return held

    def limit(self, action: Vector) -> int:
        # clip the step last: a joint beyond its limit returns in small steps
        reasons = super().limit(action)
        if _clip(action, self._joints - self._step, self._joints + self._step):
            reasons |= int(Reason.STEP)
        return reasons


class _EndEffectorDeltas(Limiter):
    """[dx, dy, dz, drx, dry, drz, gripper...] per arm, in the frame of the reset pose."""

    def __init__(self, spec: RobotSpec, config: SafetyConfig) -> None:
        super().__init__(spec, config)
        pose = spec.observation.get(config.ee_pose_key)
        num_arms = 1 if pose is None else max(1, pose.shape[0] // 7)
        self._stride = self.low.size // num_arms
        if self._stride < 6 or self._stride * num_arms != self.low.size:
            raise SpecMismatch(
                f"robot '{spec.name}' takes ee_delta actions of {self.low.size} for {num_arms} arm(s): "
                "expected at least 6 values per arm, x y z and a rotation"
            )
        for start in range(0, self.low.size, self._stride):
            self.grip[start + 6 : start + self._stride] = True
        arm = ~self.grip
        if (self.low[arm] > 0).any() or (self.high[arm] < 0).any():
            raise SpecMismatch(
                f"robot '{spec.name}' takes ee_delta actions, but its limits exclude zero, so it cannot hold still"
            )
        self._step = self._steps(spec, config, default_velocity=np.inf)
        self._box = config.workspace
        self._key, self._reference_key = config.ee_pose_key, ""
        if self._box is not None:
            if pose is None or pose.shape != (7 * num_arms,):
                raise SpecMismatch(
                    f"safety.workspace needs observation '{self._key}' with 7 values per arm, which robot "
                    f"'{spec.name}' does not provide"
                )
            self._box_low, self._box_high = np.array(self._box.low), np.array(self._box.high)
        reference = spec.observation.get(config.reference_key)
        if reference is not None and reference.shape == (6 * num_arms,):
            self._reference_key = config.reference_key
        self._low, self._high = self.low.copy(), self.high.copy()  # current limits, including the step limit
        self._set_steps(np.zeros(6 * num_arms))
        self._frames = np.tile(np.eye(3), (num_arms, 1, 1))  # reset frame to base frame
        self._room = np.zeros(
            (num_arms, 2, 3)
        )  # largest motion of each arm in the base frame, negative and positive
        self._new_frame = True

    def reset(self) -> None:
        self._new_frame = True

    def find_problem(self, values: Mapping[str, Array]) -> str | None:
        if self._box is None:
            return None
        for arm in range(len(self._frames)):
            if abs(float(np.linalg.norm(values[self._key][7 * arm + 3 : 7 * arm + 7])) - 1.0) > 0.05:
                return f"observation '{self._key}' has no unit quaternion (qw, qx, qy, qz)"
        return None

    def measure(self, values: Mapping[str, Array]) -> None:
        if self._new_frame:
            self._first_grip(values)
        if self._reference_key:
            self._set_steps(values[self._reference_key])
        if self._box is not None:
            pose = values[self._key].astype(np.float64)
            for arm, room in enumerate(self._room):
                if self._new_frame:
                    self._frames[arm] = _rotation(pose[7 * arm + 3 : 7 * arm + 7])
                here = pose[7 * arm : 7 * arm + 3]
                # an arm outside the box may not move further out
                np.minimum(self._box_low - here, 0.0, out=room[0])
                np.maximum(self._box_high - here, 0.0, out=room[1])
                if self._reference_key:
                    ahead = here + self._frames[arm] @ values[self._reference_key][6 * arm : 6 * arm + 3]
                    np.maximum(room[0], np.minimum(self._box_low - ahead, 0.0), out=room[0])
                    np.minimum(room[1], np.maximum(self._box_high - ahead, 0.0), out=room[1])
        self._new_frame = False

    def _set_steps(self, ahead: Array) -> None:
        """Limit the deltas so that the servo reference stays within one step of the measured pose.

        A reference that is already further ahead must not move on, but need not return at once.
        """
        arm = ~self.grip
        self._low[arm] = np.minimum(np.maximum(self.low, -self._step)[arm], 0.0)
        self._low[arm] = np.maximum(self._low[arm], np.minimum(-self._step[arm] - ahead, 0.0))
        self._high[arm] = np.maximum(np.minimum(self.high, self._step)[arm], 0.0)
        self._high[arm] = np.minimum(self._high[arm], np.maximum(self._step[arm] - ahead, 0.0))

    def remember(self, executed: Array) -> None:
        self.still[self.grip] = executed[self.grip]

    def hold(self) -> Vector:
        self.still[~self.grip] = 0.0
        return self.still.copy()

    def limit(self, action: Vector) -> int:
        reasons = super().limit(action)
        if _clip(action, self._low, self._high):
            reasons |= int(Reason.STEP)
        if self._box is not None:
            for arm in range(len(self._frames)):
                start = arm * self._stride
                if self._keep_inside(action[start : start + 3], arm=arm, axes=slice(start, start + 3)):
                    reasons |= int(Reason.WORKSPACE)
        return reasons

    def _keep_inside(self, delta: Vector, *, arm: int, axes: slice) -> bool:
        frame, room = self._frames[arm], self._room[arm]
        moved = frame @ delta
        if not _clip(moved, room[0], room[1]):
            return False
        inside = moved @ frame
        # Clipping in the base frame may exceed a limit in the reset frame. Scaling all axes satisfies both,
        # because both regions are convex and contain the origin.
        low, high = self._low[axes], self._high[axes]
        scale = 1.0
        for value, least, most in zip(inside.tolist(), low.tolist(), high.tolist(), strict=True):
            if value > most:
                scale = min(scale, most / value)
            elif value < least:
                scale = min(scale, least / value)
        np.multiply(inside, scale, out=delta)
        return True


_LIMITERS: Mapping[str, type[Limiter]] = {"ee_delta": _EndEffectorDeltas, "joint_target": _JointTargets}


def limiter_for(spec: RobotSpec, config: SafetyConfig) -> Limiter:
    if len(spec.action.shape) != 1:
        raise SpecMismatch(
            f"robot '{spec.name}' takes actions of shape {list(spec.action.shape)}, expected a vector"
        )
    return _LIMITERS.get(spec.action_kind, Limiter)(spec, config)


def _clip(values: Vector, low: Vector, high: Vector) -> bool:
    """Clip in place and return whether anything changed. Comparing bytes is 10x faster than comparing arrays."""
    before = values.tobytes()
    np.maximum(values, low, out=values)
    np.minimum(values, high, out=values)
    return values.tobytes() != before


def _rotation(quat: Vector) -> Vector:
    """[3, 3] matrix of a quaternion (w, x, y, z)."""
    w, x, y, z = (quat / np.linalg.norm(quat)).tolist()
    return np.array(
        (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
    )
