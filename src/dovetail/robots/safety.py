"""The safety filter. Every action passes it before it reaches a robot, real or simulated.

    robot = SafeRobot(SimRobot(...), SafetyConfig(), clock)
    task.reset(...)
    robot.reset()                      # the next observation shows the reset pose
    observation = robot.observe()
    executed = robot.send(action)      # clipped, held or refused
    robot.last_report.extras()         # what the filter did, for the record

Limits are relative to the *measured* state and count per time and per measurement, not per call (`dovetail.robots.limits`).
To hold still, the filter sends the measured targets, zero deltas and velocities, and leaves the grippers unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dovetail.config.safety import SafetyConfig, Workspace
from dovetail.core.abilities import HearsAcknowledgement, PreparesReset, UsesBuffers
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock, Robot, SimulatedRobot
from dovetail.core.errors import (
    ConfigError,
    RobotFault,
    SpecMismatch,
    StaleObservation,
    StopRequested,
    one_line,
    stop_failure,
)
from dovetail.core.proposals import OF_BASE, with_proposal
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.camera_check import CameraCheck
from dovetail.robots.limits import ActionLimits, MeasuredJumps, Reason, Vector

__all__ = ["Reason", "SafeRobot", "SafetyConfig", "SafetyReport", "Workspace"]

_STALE_TICKS, _STOP_TICKS = 3, 10
_MAX_LOOKS = 4  # at a robot after a reset or a gap, until two in a row agree


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
    """See the GuardedRobot contract. The clock advances a simulated robot, not this class."""

    def __init__(
        self,
        robot: Robot,
        config: SafetyConfig,
        clock: Clock,
        *,
        name: str | None = None,
        proposal_steps: int = 0,
        embedding_size: int = 0,
    ) -> None:
        """`name` replaces the robot's name, to tell apart several robots of one type. With `proposal_steps` and
        `embedding_size`, observations have room for a base policy's proposal and embedding (core.proposals): NaN."""
        self.__robot = robot
        self.__clock = clock
        self._spec = robot.spec if name is None else replace(robot.spec, name=name)
        self._shown_spec = self._spec
        if proposal_steps:
            self._shown_spec = with_proposal(self._spec, steps=proposal_steps, embedding_size=embedding_size)
        self._no_proposal = {
            key: np.full(self._shown_spec.observation[key].shape, np.nan, np.float32)
            for key in OF_BASE
            if key in self._shown_spec.observation
        }
        self._simulated = isinstance(robot, SimulatedRobot)
        self._limiter = ActionLimits(self._spec, config, simulated=self._simulated)
        tick_s = 1.0 / self._spec.control_hz
        stale_s = _STALE_TICKS * tick_s if config.stale_after_s is None else config.stale_after_s
        stop_s = max(_STOP_TICKS * tick_s, stale_s) if config.stop_after_s is None else config.stop_after_s
        if stop_s < stale_s:
            raise ConfigError(f"safety.stop_after_s ({stop_s}) is below safety.stale_after_s ({stale_s})")
        self._stale_ns, self._stop_ns = int(stale_s * NS_PER_S), int(stop_s * NS_PER_S)
        self._cameras = CameraCheck(self._spec, config, simulated=self._simulated)
        self._jumps = MeasuredJumps(self._spec, config, simulated=self._simulated)
        self._tick_ns = int(tick_s * NS_PER_S)
        self._max_bad_actions = config.max_bad_actions
        self._checked = tuple(
            (key, spec.shape, spec.dtype.startswith("float")) for key, spec in self._spec.observation.items()
        )
        # rounding of a rotation does not count as clipping
        self._slack = 1e-6 * np.minimum(self._limiter.high - self._limiter.low, 1.0)
        self._untouched = np.zeros(self._spec.action.shape, np.bool_)
        self._untouched.setflags(write=False)
        self._fault: str | None = None
        self._command_times = np.zeros(3, np.int64)
        self._on_measurement: Callable[[Observation], None] = lambda observation: None
        self._is_velocity = np.repeat(
            [part.is_velocity for part in self._spec.parts], [part.num_axes for part in self._spec.parts]
        )
        self._stop_reason: Callable[[], str | None] = lambda: None
        self._problem: str | None = None  # of the last observation
        self._frozen = False  # a camera has stopped
        self._move: Vector | None = None  # last command minus the holding action
        self._time_ns: int | None = None  # of the last valid observation, by the robot's clock
        self._newest_ns: int | None = None  # the same, kept after a reset or acknowledgement
        self._fresh_ns = 0  # the same, but never later than its arrival
        self._now_ns = 0  # of the current command
        self._num_bad_actions = 0
        self._bad_in_a_row = 0
        self._report = SafetyReport(clipped=self._untouched, reasons=Reason.NONE, held=False)
        self.reset()

    @property
    def spec(self) -> RobotSpec:
        return self._shown_spec

    @property
    def last_report(self) -> SafetyReport:
        return self._report

    @property
    def problem(self) -> str | None:
        return self._problem

    def safety_extras(self) -> dict[str, Array]:
        return self._report.extras()

    @property
    def fault(self) -> str | None:
        """Why the robot does not move; None without a fault."""
        return self._fault

    @property
    def num_bad_actions(self) -> int:
        """Number of actions with NaN or infinity so far."""
        return self._num_bad_actions

    def reset(self) -> None:
        """Call after a reset of the task. The next observation shows the reset pose. Does not clear a fault."""
        self._forget()
        self._limiter.reset()

    def prepare_reset(self, *, tick: Callable[[], None]) -> None:
        if not isinstance(self.__robot, PreparesReset):
            return
        if (why := self._fault or self._stop_reason()) is not None:
            raise self._trip(why)
        self._command_times[0] = time.monotonic_ns()
        try:
            self.__robot.prepare_reset(self, tick=tick)
        except StopRequested:  # of the tick
            raise
        except RobotFault as error:  # of the filter or the tick
            self.trip(str(error))
            raise
        except Exception as error:
            raise self._trip(f"prepare_reset() failed: {one_line(error)}") from error
        if (why := self._fault or self._stop_reason()) is not None:  # stopped meanwhile
            raise self._trip(why)
        self._forget()

    def trip(self, why: str) -> None:
        if self._fault is None:
            self._trip(why)

    def refuse_while(self, stop_reason: Callable[[], str | None]) -> None:
        """Latch a fault instead of sending a command while `stop_reason()` is not None, for example during an emergency
        stop. This also covers motions of a task during its reset."""
        self._stop_reason = stop_reason

    def latch(self, why: str) -> None:
        """Refuse every later command with this fault, but do not call `stop()`: for a thread that stops the arm itself."""
        if self._fault is None:
            self._fault = why

    @property
    def command_times(self) -> npt.NDArray[np.int64]:
        """Monotonic times in ns: when the last command was about to be sent; when the last `stop()` returned; and the first
        again if that command lets the robot move until the next one, as a velocity does, else 0.

        The arm is at rest if the second is not earlier than the first.
        """
        return self._command_times

    def write_command_times(self, to: npt.NDArray[np.int64]) -> None:
        """Keep the command times in this memory, which other processes can read."""
        to[:] = self._command_times
        self._command_times = to

    def report_measurements(self, to: Callable[[Observation], None]) -> None:
        """Call this with each new valid observation, also during resets."""
        self._on_measurement = to

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        if isinstance(self.__robot, UsesBuffers):
            self.__robot.use_buffers(next_buffer)

    def acknowledge(self) -> None:
        """Clear the fault after a person has confirmed it. A new observation is needed before the next command.

        The fault stays if the robot cannot clear its own errors.
        """
        if self._fault is not None:
            if isinstance(self.__robot, HearsAcknowledgement):
                try:
                    self.__robot.acknowledged()
                except Exception as error:  # any driver: the next command reports it
                    self._fault = f"the acknowledgement failed: {one_line(error)}"
                    return
            self._limiter.forget_hold()
        self._fault = None
        self._bad_in_a_row = 0
        self._forget()

    def stop(self) -> None:
        """Stop the robot. A failure is latched as a fault, unless there is one already: the robot may move on."""
        try:
            self.__stop()
        except Exception as error:
            self.latch(stop_failure(error))
            raise

    def __stop(self) -> None:
        self.__robot.stop()
        self._command_times[1] = time.monotonic_ns()

    def observe(self) -> Observation:
        observation = self._look()
        if self._jumps.is_on and self._has_gap():  # also during a fault: nothing unconfirmed is accepted
            observation = self._confirmed(observation)
        self._problem = self._find_problem(observation)
        self._frozen = self._find_frozen(observation)
        if self._problem is None and self._is_newer(observation.time_ns):
            now_ns = self.__clock.now_ns()
            fresh_ns = min(observation.time_ns, now_ns)
            self._problem = self._find_jump(observation, fresh_ns, now_ns)
            if self._problem is None:  # otherwise the last valid observation becomes stale
                self._time_ns, self._newest_ns, self._fresh_ns = observation.time_ns, observation.time_ns, fresh_ns
                self._jumps.accept(observation.values, fresh_ns)
                self._limiter.measure(observation.values, fresh_ns)
                self._on_measurement(observation)
        return observation

    def largest_steps(self) -> Array:
        return self._limiter.largest_steps.copy()

    def hold(self) -> Array:
        self._checked_age_ns()
        executed = self._forward(self._limiter.hold())
        self._report = SafetyReport(clipped=self._untouched, reasons=Reason.NONE, held=True)
        return executed

    def holding_action(self) -> Array:
        return self._limiter.hold().astype(np.float32)

    def ease(self) -> Array:
        age_ns = self._checked_age_ns()
        if self._move is None or self._problem is not None or self._frozen or age_ns > self._stale_ns:
            return self.hold()
        wanted = self._limiter.hold() + np.where(self._limiter.is_gripper, 0.0, 0.5 * self._move)
        self._limiter.limit(wanted, self._now_ns)
        executed = self._forward(wanted)
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
        if age_ns > self._stale_ns or self._frozen:
            return self._hold_instead(Reason.STALE)
        self._limiter.unwrap(asked)
        wanted = asked.copy()
        reasons = self._limiter.limit(wanted, self._now_ns)
        executed = self._forward(wanted)
        if reasons:
            clipped = np.abs(wanted - asked) > self._slack
            self._report = SafetyReport(clipped=clipped, reasons=Reason(reasons), held=False)
        else:
            self._report = SafetyReport(clipped=self._untouched, reasons=Reason.NONE, held=False)
        return executed

    def _checked_age_ns(self) -> int:
        """Age of the last valid observation. Raises if no command is allowed."""
        name = self._spec.name
        if self._fault is not None:
            self._note(Reason.FAULT)
            raise RobotFault(
                f"robot '{name}' does not move after a fault: {self._fault}. Acknowledge the fault first"
            )
        if (why := self._stop_reason()) is not None:
            raise self._trip(why)
        if self._time_ns is None:
            why = self._problem or "no observation since the reset or acknowledgement. Call observe() first"
            try:
                self.__stop()
            except Exception as error:  # the arm may move on: only a person can decide that it does not
                raise self._trip(why) from error
            self._note(Reason.BAD_OBSERVATION if self._problem else Reason.NO_OBSERVATION)
            raise StaleObservation(f"robot '{name}' does not move: {why}")
        self._now_ns = self.__clock.now_ns()
        age_ns = self._now_ns - self._fresh_ns
        if age_ns > self._stop_ns:
            why = f" ({self._problem})" if self._problem else ""
            age = f"the last valid observation is {age_ns / NS_PER_S:.2f} s old{why}"
            raise self._trip(age, reason=Reason.STALE)
        return age_ns

    def _is_newer(self, time_ns: int) -> bool:
        """Whether an observation is newer than all before. The time of a simulated robot may start again at a reset."""
        if self._time_ns is not None:
            return time_ns > self._time_ns
        return self._simulated or self._newest_ns is None or time_ns >= self._newest_ns

    def _forget(self) -> None:
        self._time_ns, self._problem, self._move = None, None, None
        self._jumps.restart()

    def _vector(self, action: Array) -> Vector:
        try:
            narrow = np.asarray(action)
            if narrow.dtype != np.float32:
                with np.errstate(over="ignore"):  # too large for float32: becomes infinite, and the robot holds
                    narrow = narrow.astype(np.float32)
            asked = narrow.astype(np.float64) + 0.0  # -0.0 becomes 0.0: limits compare bytes
        except (TypeError, ValueError) as error:
            raise SpecMismatch(
                f"robot '{self._spec.name}' received an action that is not numeric: {error}"
            ) from error
        if asked.shape != self._spec.action.shape:
            raise SpecMismatch(
                f"robot '{self._spec.name}' received an action of shape {list(asked.shape)}, "
                f"expected {self._spec.action.describe()}"
            )
        return asked

    def _find_problem(self, observation: Observation) -> str | None:
        """Describe a missing or invalid sensor value, or return None."""
        for key, shape, is_float in self._checked:
            value = observation.values.get(key)
            if value is None:
                return f"observation '{key}' is missing"
            if value.shape != shape:
                return f"observation '{key}' has shape {list(value.shape)} instead of {list(shape)}"
            if is_float and not np.isfinite(value).all():
                return f"observation '{key}' is not finite"
        return self._limiter.find_problem(observation.values)

    def _look(self) -> Observation:
        try:
            observation = self.__robot.observe()
        except Exception as error:
            raise self._trip(f"observe() failed: {error!r}") from error
        if not self._no_proposal:
            return observation
        return replace(observation, values={**observation.values, **self._no_proposal})

    def _has_gap(self) -> bool:
        """Whether the robot may have moved far since the last accepted observation."""
        is_old = self._time_ns is None or self.__clock.now_ns() - self._fresh_ns > self._stale_ns
        return is_old and not self._jumps.is_refusing

    def _confirmed(self, first: Observation) -> Observation:
        """The first observation after a reset or a gap. If the robot is not where it was last measured, it was moved or the
        measurement is wrong: look again until two in a row agree. Raises RobotFault if they never do."""
        jump: str | None = None
        for _ in range(_MAX_LOOKS):
            if self._find_problem(first) is not None or self._jumps.is_near(first.values):
                return first
            self.__clock.sleep_until(self.__clock.now_ns() + self._tick_ns)
            second = self._look()
            if self._find_problem(second) is not None:
                return second
            seconds = (second.time_ns - first.time_ns) / NS_PER_S
            jump = self._jumps.between(first.values, second.values, min(seconds, self._tick_ns / NS_PER_S))
            if jump is None:
                return second
            first = second
        raise self._trip(f"no two of the first measurements agree: {jump}")

    def _find_jump(self, observation: Observation, fresh_ns: int, now_ns: int) -> str | None:
        """Describe a measured motion that is not possible. Raises RobotFault if that has lasted too long."""
        if not self._jumps.is_on or self._time_ns is None:
            return None
        jump, is_fault = self._jumps.find(observation.values, fresh_ns, now_ns)
        if is_fault and self._fault is None:
            assert jump is not None
            self._problem = jump
            raise self._trip(jump, reason=Reason.BAD_OBSERVATION)
        return jump

    def _find_frozen(self, observation: Observation) -> bool:
        """Whether a camera has stopped. Raises RobotFault if it stopped too long ago."""
        is_frozen, fault = self._cameras.check(observation, self.__clock.now_ns())
        if fault is not None and self._fault is None:
            raise self._trip(fault, reason=Reason.STALE)
        return is_frozen

    def _hold_instead(self, reason: Reason) -> Array:
        executed = self._forward(self._limiter.hold())
        self._note(reason)
        return executed

    def _note(self, reason: Reason) -> None:
        self._report = SafetyReport(clipped=np.ones_like(self._untouched), reasons=reason, held=True)

    def _forward(self, wanted: Vector) -> Array:
        if not np.isfinite(wanted).all():  # whatever the limits are, nothing else reaches a driver
            raise self._trip(f"the filter computed {wanted.tolist()}", reason=Reason.NON_FINITE)
        self._limiter.charge(wanted, self._now_ns)
        now_ns = time.monotonic_ns()
        self._command_times[2] = now_ns if wanted[self._is_velocity].any() else 0
        self._command_times[0] = now_ns
        try:
            executed = np.array(self.__robot.send(wanted.astype(np.float32)), np.float32)
        except Exception as error:
            raise self._trip(f"send() failed: {error!r}") from error
        if executed.shape != wanted.shape or not np.isfinite(executed).all():
            expected = f"the executed action, {self._spec.action.describe()}"
            raise self._trip(f"send() must return {expected}, got {executed.tolist()}")
        if (why := self._fault or self._stop_reason()) is not None:  # stopped while send() was under way
            raise self._trip(why)
        self._move = executed - self._limiter.hold()
        self._limiter.remember(executed)
        return executed

    def _trip(self, why: str, *, reason: Reason = Reason.NONE) -> RobotFault:
        """Latch a fault, stop, and return the exception to raise. An earlier fault keeps its reason."""
        is_first = self._fault is None
        self.latch(why)  # before stop(), which may hang
        try:
            self.__stop()
        except Exception as error:  # reported with the fault
            why = f"{why}; {stop_failure(error)}"
            if is_first:
                self._fault = why
        self._note(Reason.FAULT | reason)
        return RobotFault(f"robot '{self._spec.name}' was stopped: {why}")
