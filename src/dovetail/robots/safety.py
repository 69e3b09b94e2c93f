"""The filter that every action passes on its way to a robot, simulated ones included.

    robot = SafeRobot(SimRobot(...), SafetyConfig(), clock)
    task.reset(...)
    robot.reset()                      # the next observation is the reset pose
    observation = robot.observe()
    executed = robot.send(action)      # clipped, held or refused
    robot.last_report.extras()         # what the filter did, for the record

Limits are taken against what the robot *measured*, never against what it was last told. Holding still is a
command of its own: the measured joints, or a zero delta with the gripper as it was.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock, Robot
from dovetail.core.errors import ConfigError, RobotFault, SpecMismatch, StaleObservation
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation

__all__ = ["Reason", "SafeRobot", "SafetyConfig", "SafetyReport", "Workspace"]

_Vector = npt.NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)
_DEFAULT_JOINT_VELOCITY = 1.75  # rad/s: 5 degrees a tick at 20 Hz
_STALE_TICKS, _STOP_TICKS = 3, 10


class Workspace(Config):
    """A box in the robot's base frame, in metres."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError(f"workspace is empty: low {self.low} is not below high {self.high}")
        return self


class SafetyConfig(Config):
    workspace: Workspace | None = None
    """Where the end effector may go; needs `ee_delta` actions. None: anywhere."""
    max_step: float | tuple[float, ...] | None = None
    """Furthest from the measured state in one tick: one number, or one per axis. Grippers are exempt."""
    max_velocity: float | tuple[float, ...] | None = None
    """The same per second. Joint targets with neither get 1.75 rad/s."""
    max_bad_actions: int = Field(default=5, ge=1)
    """Consecutive actions with NaN or infinity that are held before a fault is latched."""
    stale_after_s: float | None = Field(default=None, gt=0)
    """Older observations make the robot hold. None: three control ticks."""
    stop_after_s: float | None = Field(default=None, gt=0)
    """Older observations stop the robot and latch a fault. None: ten control ticks."""
    hold_action: tuple[float, ...] | None = None
    """What holds still where the kind of action is unknown. None: zeros, brought within limits."""
    ee_pose_key: str = "ee_pose"
    """Measured [x, y, z, qw, qx, qy, qz], once per arm."""
    joint_key: str = "joint_pos"
    gripper_key: str = "gripper"
    reference_key: str = "ee_error"
    """Servo reference minus measured pose, in the reset frame. Where given, both stay in the workspace."""


class Reason(enum.IntFlag):
    """Why an action was changed."""

    NONE = 0
    NON_FINITE = 1
    LIMIT = 2  # of the action, or of a joint
    STEP = 4  # too far from the measured state for one tick
    WORKSPACE = 8
    STALE = 16
    BAD_OBSERVATION = 32
    NO_OBSERVATION = 64
    FAULT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyReport:
    """What the filter did to the last action."""

    clipped: npt.NDArray[np.bool_]  # [A]
    reasons: Reason
    held: bool

    def extras(self) -> dict[str, Array]:
        """As columns of a Step's extras, the same ones in every step."""
        return {
            "safety_clipped": self.clipped,
            "safety_held": np.array(self.held),
            "safety_reasons": np.array(int(self.reasons), np.uint8),
        }


class SafeRobot:
    """See GuardedRobot: a robot around a robot. The clock, not this, advances a simulated one."""

    Config: ClassVar[type[SafetyConfig]] = SafetyConfig

    def __init__(self, robot: Robot, config: SafetyConfig, clock: Clock) -> None:
        self.__robot = robot
        self.__clock = clock
        self._spec = robot.spec
        self._limiter = _limiter(self._spec, config)
        tick_s = 1.0 / self._spec.control_hz
        stale_s = _STALE_TICKS * tick_s if config.stale_after_s is None else config.stale_after_s
        stop_s = max(_STOP_TICKS * tick_s, stale_s) if config.stop_after_s is None else config.stop_after_s
        if stop_s < stale_s:
            raise ConfigError(f"safety.stop_after_s ({stop_s}) is below safety.stale_after_s ({stale_s})")
        self._stale_ns, self._stop_ns = int(stale_s * NS_PER_S), int(stop_s * NS_PER_S)
        self._max_bad_actions = config.max_bad_actions
        self._checked = tuple(
            (key, spec.shape, spec.dtype.startswith("float")) for key, spec in self._spec.observation.items()
        )
        # rotating there and back is not clipping
        self._slack = 1e-6 * np.minimum(self._limiter.high - self._limiter.low, 1.0)
        self._untouched = np.zeros(self._spec.action.shape, np.bool_)
        self._untouched.setflags(write=False)
        self._fault: str | None = None
        self._problem: str | None = None  # of the last observation
        self._time_ns: int | None = None  # of the last good observation, by the robot
        self._fresh_ns = 0  # the same, but never later than it came
        self._num_bad_actions = 0
        self._bad_in_a_row = 0
        self._report = SafetyReport(clipped=self._untouched, reasons=Reason.NONE, held=False)
        self.reset()

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def last_report(self) -> SafetyReport:
        return self._report

    @property
    def clipped(self) -> Array:
        return self._report.clipped

    @property
    def fault(self) -> str | None:
        """Why nothing moves; None while all is well."""
        return self._fault

    @property
    def num_bad_actions(self) -> int:
        """Actions with NaN or infinity so far."""
        return self._num_bad_actions

    def reset(self) -> None:
        """Call when the task has been reset: the next observation tells the reset pose. Clears no fault."""
        self._forget()
        self._limiter.reset()

    def acknowledge(self) -> None:
        """A person has seen the fault and wants to go on, from a new observation."""
        self._fault = None
        self._bad_in_a_row = 0
        self._forget()

    def stop(self) -> None:
        self.__robot.stop()

    def observe(self) -> Observation:
        try:
            observation = self.__robot.observe()
        except Exception as error:
            raise self._trip(f"observe() failed: {error!r}") from error
        self._problem = self._find_problem(observation)
        if self._problem is None and (self._time_ns is None or observation.time_ns > self._time_ns):
            # anything else leaves the last good observation to grow old
            self._time_ns = observation.time_ns
            self._fresh_ns = min(observation.time_ns, self.__clock.now_ns())
            self._limiter.measure(observation.values)
        return observation

    def hold(self) -> Array:
        self._checked_age_ns()
        executed = self._forward(self._limiter.hold())
        self._report = SafetyReport(clipped=self._untouched, reasons=Reason.NONE, held=True)
        return executed

    def send(self, action: Array) -> Array:
        asked = self._vector(action)
        age_ns = self._checked_age_ns()
        if not np.isfinite(asked).all():
            self._num_bad_actions += 1
            self._bad_in_a_row += 1
            if self._bad_in_a_row >= self._max_bad_actions:
                raise self._trip(
                    f"{self._bad_in_a_row} actions in a row were not finite, the last {asked.tolist()}",
                    reason=Reason.NON_FINITE,
                )
            return self._hold_instead(Reason.NON_FINITE)
        self._bad_in_a_row = 0
        if self._problem is not None:
            return self._hold_instead(Reason.BAD_OBSERVATION)
        if age_ns > self._stale_ns:
            return self._hold_instead(Reason.STALE)
        wanted = asked.copy()
        reasons = self._limiter.limit(wanted)
        executed = self._forward(wanted)
        if reasons:
            clipped = np.abs(wanted - asked) > self._slack
            self._report = SafetyReport(clipped=clipped, reasons=Reason(reasons), held=False)
        else:
            self._report = SafetyReport(clipped=self._untouched, reasons=Reason.NONE, held=False)
        return executed

    def _checked_age_ns(self) -> int:
        """How old the last good observation is; raises where nothing may be commanded at all."""
        name = self._spec.name
        if self._fault is not None:
            self._note(Reason.FAULT)
            raise RobotFault(
                f"robot '{name}' stands still after a fault: {self._fault}. Acknowledge it first"
            )
        if self._time_ns is None:
            self._note(Reason.BAD_OBSERVATION if self._problem else Reason.NO_OBSERVATION)
            self.__robot.stop()
            why = (
                self._problem or "nothing was observed since a reset or acknowledgement: call observe() first"
            )
            raise StaleObservation(f"robot '{name}' does not move: {why}")
        age_ns = self.__clock.now_ns() - self._fresh_ns
        if age_ns > self._stop_ns:
            why = f" ({self._problem})" if self._problem else ""
            age = f"the last good observation is {age_ns / NS_PER_S:.2f} s old{why}"
            raise self._trip(age, reason=Reason.STALE)
        return age_ns

    def _forget(self) -> None:
        self._time_ns, self._problem = None, None

    def _vector(self, action: Array) -> _Vector:
        try:
            narrow = np.asarray(action)
            if narrow.dtype != np.float32:
                with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is held
                    narrow = narrow.astype(np.float32)
            asked = narrow.astype(np.float64) + 0.0  # -0.0 becomes 0.0: limits compare bytes
        except (TypeError, ValueError) as error:
            raise SpecMismatch(
                f"robot '{self._spec.name}' was sent an action that is not numbers: {error}"
            ) from error
        if asked.shape != self._spec.action.shape:
            raise SpecMismatch(
                f"robot '{self._spec.name}' was sent an action of shape {list(asked.shape)}, "
                f"but takes {self._spec.action.describe()}"
            )
        return asked

    def _find_problem(self, observation: Observation) -> str | None:
        """A sensor that is missing or says nonsense. It must never be read as zeros."""
        for key, shape, is_float in self._checked:
            value = observation.values.get(key)
            if value is None:
                return f"observation '{key}' is missing"
            if value.shape != shape:
                return f"observation '{key}' has shape {list(value.shape)} instead of {list(shape)}"
            if is_float and not np.isfinite(value).all():
                return f"observation '{key}' is not finite"
        return self._limiter.find_problem(observation.values)

    def _hold_instead(self, reason: Reason) -> Array:
        executed = self._forward(self._limiter.hold())
        self._note(reason)
        return executed

    def _note(self, reason: Reason) -> None:
        self._report = SafetyReport(clipped=np.ones_like(self._untouched), reasons=reason, held=True)

    def _forward(self, wanted: _Vector) -> Array:
        try:
            executed = np.array(self.__robot.send(wanted.astype(np.float32)), np.float32)
        except Exception as error:
            raise self._trip(f"send() failed: {error!r}") from error
        if executed.shape != wanted.shape or not np.isfinite(executed).all():
            raise self._trip(f"send() returned {executed.tolist()} as the executed action")
        self._limiter.remember(executed)
        return executed

    def _trip(self, why: str, *, reason: Reason = Reason.NONE) -> RobotFault:
        """Stop, latch, and give the exception to raise. A fault already latched keeps its own reason."""
        try:
            self.__robot.stop()
        except Exception as error:  # the fault is raised all the same, and says so
            why = f"{why}; stop() failed too: {error!r}"
        if self._fault is None:
            self._fault = why
        self._note(Reason.FAULT | reason)
        return RobotFault(f"robot '{self._spec.name}' was stopped: {why}")


class _Limiter:
    """Limits for actions of any kind: the spec's own. Others know more of what the numbers mean."""

    def __init__(self, spec: RobotSpec, config: SafetyConfig) -> None:
        low, high = spec.action.bounds
        # float32 knows no number beyond: without it, a huge float64 would become infinity on its way out
        self.low = np.maximum(low.astype(np.float64), -_LARGEST)
        self.high = np.minimum(high.astype(np.float64), _LARGEST)
        still = np.zeros(self.low.shape) if config.hold_action is None else np.array(config.hold_action)
        if still.shape != self.low.shape:
            raise ConfigError(f"safety.hold_action has {still.size} numbers for {self.low.size} axes")
        self.still = np.clip(still, self.low, self.high)
        if config.workspace is not None and spec.action_kind != "ee_delta":
            raise ConfigError(
                f"safety.workspace needs ee_delta actions, but robot '{spec.name}' takes {spec.action_kind}"
            )
        self.grip = np.zeros(self.low.shape, np.bool_)  # axes that are grippers
        self._grip_key = config.gripper_key
        self._grip_from: slice | None = None
        if (gripper := spec.observation.get(config.gripper_key)) is not None and len(gripper.shape) == 1:
            at = gripper.names.index("command") if "command" in gripper.names else None
            self._grip_from = slice(None) if at is None else slice(at, at + 1)

    def reset(self) -> None:
        """Forget the reset pose."""

    def find_problem(self, values: Mapping[str, Array]) -> str | None:
        return None

    def measure(self, values: Mapping[str, Array]) -> None:
        """Take over a good observation."""

    def remember(self, executed: Array) -> None:
        """Take over what the robot says it did."""

    def hold(self) -> _Vector:
        return self.still.copy()

    def limit(self, action: _Vector) -> int:
        """Bring an action within limits, in place; returns the reasons that applied."""
        return int(Reason.LIMIT) if _clip(action, self.low, self.high) else 0

    def _steps(self, spec: RobotSpec, config: SafetyConfig, *, default_velocity: float) -> _Vector:
        """The longest step per axis; gripper axes have no limit."""
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
                raise ConfigError(f"safety.{name} has {values.size} numbers for {steps.size} axes")
            if not (values > 0).all():
                raise ConfigError(f"safety.{name} has to be above zero, got {value}")
            axes = slice(None) if values.shape == steps.shape else ~self.grip
            steps[axes] = np.minimum(steps[axes], values)
        steps[self.grip] = np.inf
        return steps

    def _first_grip(self, values: Mapping[str, Array]) -> None:
        """Until a gripper was commanded, holding keeps it as measured, or open where nobody measures it."""
        low, high = self.low[self.grip], self.high[self.grip]
        measured = values[self._grip_key][self._grip_from] if self._grip_from is not None else high
        self.still[self.grip] = np.clip(measured, low, high) if np.size(measured) == low.size else high


class _JointTargets(_Limiter):
    """Absolute joint positions, plus grippers: axes beyond the measured joints, or named so."""

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
        self._joints = np.zeros(size)  # as measured; what stands for grippers is not used
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

    def hold(self) -> _Vector:
        self.still[self._arm] = self._joints[self._arm]
        held = self.still.copy()
        self.limit(held)
        return held

    def limit(self, action: _Vector) -> int:
        # the step comes last: a joint beyond its limit comes back step by step, not in one jump
        reasons = super().limit(action)
        if _clip(action, self._joints - self._step, self._joints + self._step):
            reasons |= int(Reason.STEP)
        return reasons


class _EndEffectorDeltas(_Limiter):
    """[dx, dy, dz, drx, dry, drz, gripper...] per arm, in the frame of the reset pose."""

    def __init__(self, spec: RobotSpec, config: SafetyConfig) -> None:
        super().__init__(spec, config)
        pose = spec.observation.get(config.ee_pose_key)
        num_arms = 1 if pose is None else max(1, pose.shape[0] // 7)
        self._stride = self.low.size // num_arms
        if self._stride < 6 or self._stride * num_arms != self.low.size:
            raise SpecMismatch(
                f"robot '{spec.name}' takes ee_delta actions of {self.low.size} for {num_arms} arm(s): "
                "at least 6 numbers each are expected, x y z and a rotation"
            )
        for start in range(0, self.low.size, self._stride):
            self.grip[start + 6 : start + self._stride] = True
        arm = ~self.grip
        if (self.low[arm] > 0).any() or (self.high[arm] < 0).any():
            raise SpecMismatch(
                f"robot '{spec.name}' takes ee_delta actions, but its limits leave no way to hold still"
            )
        self._step = self._steps(spec, config, default_velocity=np.inf)
        self._box = config.workspace
        self._key, self._reference_key = config.ee_pose_key, ""
        if self._box is not None:
            if pose is None or pose.shape != (7 * num_arms,):
                raise SpecMismatch(
                    f"safety.workspace needs observation '{self._key}' of 7 numbers an arm, which robot "
                    f"'{spec.name}' does not give"
                )
            self._box_low, self._box_high = np.array(self._box.low), np.array(self._box.high)
            reference = spec.observation.get(config.reference_key)
            if reference is not None and reference.shape == (6 * num_arms,):
                self._reference_key = config.reference_key
        self._frames = np.tile(np.eye(3), (num_arms, 1, 1))  # reset frame to base frame
        self._room = np.zeros((num_arms, 2, 3))  # how far each arm may go in the base frame, down and up
        self._new_frame = True

    def reset(self) -> None:
        self._new_frame = True

    def find_problem(self, values: Mapping[str, Array]) -> str | None:
        if self._box is None:
            return None
        for arm in range(len(self._frames)):
            if abs(float(np.linalg.norm(values[self._key][7 * arm + 3 : 7 * arm + 7])) - 1.0) > 0.05:
                return f"observation '{self._key}' holds no unit quaternion (qw, qx, qy, qz)"
        return None

    def measure(self, values: Mapping[str, Array]) -> None:
        if self._new_frame:
            self._first_grip(values)
        if self._box is not None:
            pose = values[self._key].astype(np.float64)
            for arm, room in enumerate(self._room):
                if self._new_frame:
                    self._frames[arm] = _rotation(pose[7 * arm + 3 : 7 * arm + 7])
                here = pose[7 * arm : 7 * arm + 3]
                # from outside the box, zero is as far as one may go outwards
                np.minimum(self._box_low - here, 0.0, out=room[0])
                np.maximum(self._box_high - here, 0.0, out=room[1])
                if self._reference_key:
                    ahead = here + self._frames[arm] @ values[self._reference_key][6 * arm : 6 * arm + 3]
                    np.maximum(room[0], np.minimum(self._box_low - ahead, 0.0), out=room[0])
                    np.minimum(room[1], np.maximum(self._box_high - ahead, 0.0), out=room[1])
        self._new_frame = False

    def remember(self, executed: Array) -> None:
        self.still[self.grip] = executed[self.grip]

    def hold(self) -> _Vector:
        self.still[~self.grip] = 0.0
        return self.still.copy()

    def limit(self, action: _Vector) -> int:
        reasons = super().limit(action)
        if _clip(action, -self._step, self._step):
            reasons |= int(Reason.STEP)
        if self._box is not None:
            for arm in range(len(self._frames)):
                start = arm * self._stride
                if self._keep_inside(action[start : start + 3], arm=arm, axes=slice(start, start + 3)):
                    reasons |= int(Reason.WORKSPACE)
        return reasons

    def _keep_inside(self, delta: _Vector, *, arm: int, axes: slice) -> bool:
        frame, room = self._frames[arm], self._room[arm]
        moved = frame @ delta
        if not _clip(moved, room[0], room[1]):
            return False
        inside = moved @ frame
        # Cutting in the base frame may lengthen an axis of the reset frame beyond its limit. Shrinking all
        # axes keeps both promises, since both regions are convex and hold the origin.
        low = np.maximum(self.low[axes], -self._step[axes])
        high = np.minimum(self.high[axes], self._step[axes])
        scale = 1.0
        for value, least, most in zip(inside.tolist(), low.tolist(), high.tolist(), strict=True):
            if value > most:
                scale = min(scale, most / value)
            elif value < least:
                scale = min(scale, least / value)
        np.multiply(inside, scale, out=delta)
        return True


_LIMITERS: Mapping[str, type[_Limiter]] = {"ee_delta": _EndEffectorDeltas, "joint_target": _JointTargets}


def _limiter(spec: RobotSpec, config: SafetyConfig) -> _Limiter:
    if len(spec.action.shape) != 1:
        raise SpecMismatch(
            f"robot '{spec.name}' takes actions of shape {list(spec.action.shape)}: one axis is expected"
        )
    return _LIMITERS.get(spec.action_kind, _Limiter)(spec, config)


def _clip(values: _Vector, low: _Vector, high: _Vector) -> bool:
    """Clip in place; returns whether anything changed. Comparing bytes costs a tenth of comparing arrays."""
    before = values.tobytes()
    np.maximum(values, low, out=values)
    np.minimum(values, high, out=values)
    return values.tobytes() != before


def _rotation(quat: _Vector) -> _Vector:
    """[3, 3] matrix of a quaternion (w, x, y, z)."""
    w, x, y, z = (quat / np.linalg.norm(quat)).tolist()
    return np.array(
        (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
    )
