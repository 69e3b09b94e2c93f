"""Moves one axis of a robot a little, slowly and behind the safety filter. For `dovetail robot move`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock
from dovetail.core.errors import RobotError, UsageError, did_you_mean
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.safety import SafeRobot

__all__ = ["Jog", "plan_jog", "run_jog"]

SPEED = 0.1  # share of the axis' speed limit
_UNKNOWN_SPEED = 0.5  # unit per second, for a part without a speed limit
_SETTLE_S = 1.0
_ARRIVED = 0.02  # of the motion


@dataclass(frozen=True, slots=True, kw_only=True)
class Jog:
    """A checked motion of one axis."""

    part: ActionPart
    axis: int  # of the action vector
    number: int  # within the part
    name: str  # of the axis
    by: float  # in `unit`
    speed: float  # `unit` per second, above zero
    start: float | None  # measured, None if nothing measures it
    unit: str

    @property
    def duration_s(self) -> float:
        return abs(self.by) / self.speed

    def measured(self, observation: Observation) -> float | None:
        """Where the axis is; None if nothing measures it."""
        return _measured(self.part, self.number, observation)

    def __str__(self) -> str:
        way = "" if self.start is None else f", from {self.start:.4f} to {self.start + self.by:.4f}"
        return (
            f"part '{self.part.name}', axis '{self.name}': {self.by:+g} {self.unit}{way}, at {self.speed:.3g} {self.unit}/s "
            f"in {self.duration_s:.1f} s"
        )


def plan_jog(
    spec: RobotSpec, observation: Observation, *, part: str, axis: str, by: float, speed_share: float = SPEED
) -> Jog:
    """Check a motion against spec and measured state. `axis` is a name, or a number counted from 1. Raises UsageError."""
    if not math.isfinite(by) or by == 0.0:
        raise UsageError(f"--by is {by}: give a distance other than zero")
    if not 0.0 < speed_share <= 1.0:
        raise UsageError(f"--speed is {speed_share}: give a share of the speed limit, above 0 and at most 1")
    found = spec.part(part)
    number = _axis_number(found, axis)
    name = found.names[number] if found.names else f"{found.name}_{number + 1}"
    unit = _unit(found, number)
    limit = found.max_speed[number] if found.max_speed else _UNKNOWN_SPEED
    start = _measured(found, number, observation)
    needs_start = not found.is_delta and not found.is_velocity
    if needs_start and start is None:
        why = (
            "it is a rotation, and the measured pose does not give its angle"
            if found.frame and number >= 3
            else "nothing measures it. Let the robot observe it and name the observation in `measured` of the part"
        )
        raise UsageError(f"axis '{name}' of part '{part}' cannot be jogged: {why}")
    low, high = found.low[number], found.high[number]
    if needs_start and start is not None and not low <= start + by <= high:
        raise UsageError(
            f"axis '{name}' is at {start:.4f} {unit}, and {by:+g} is outside its limits {low:g} to {high:g} {unit}"
        )
    speed = speed_share * limit
    if found.is_velocity:
        speed = min(speed, high if by > 0 else -low)
    return Jog(
        part=found,
        axis=spec.slice_of(part).start + number,
        number=number,
        name=name,
        by=by,
        speed=speed,
        start=start,
        unit=unit,
    )


def run_jog(
    robot: SafeRobot, clock: Clock, jog: Jog, *, should_stop: Callable[[], bool] = lambda: False
) -> Observation:
    """Execute a motion and stop the robot. Return the last observation. It ends early if `should_stop()`."""
    tick_s = 1.0 / robot.spec.control_hz
    num_ticks = max(math.ceil(jog.duration_s / tick_s), 1)
    observation = robot.observe()
    try:
        base = np.array(robot.hold(), np.float32)  # all other axes stay
        for tick in range(num_ticks + math.ceil(_SETTLE_S / tick_s)):
            clock.sleep_until(clock.now_ns() + round(tick_s * NS_PER_S))
            observation = robot.observe()
            if should_stop() or (tick >= num_ticks and _has_arrived(jog, observation)):
                break
            robot.send(_action(jog, base, tick=tick, num_ticks=num_ticks, tick_s=tick_s))
    except RobotError:
        with contextlib.suppress(Exception):  # what was raised is the cause
            robot.stop()
        raise
    except BaseException:
        robot.stop()
        raise
    robot.stop()
    return observation


def _action(jog: Jog, base: Array, *, tick: int, num_ticks: int, tick_s: float) -> Array:
    action = base.copy()
    share = min((tick + 1) / num_ticks, 1.0)
    is_over = tick >= num_ticks
    if jog.part.is_delta:
        action[jog.axis] = 0.0 if is_over else jog.by / num_ticks
    elif jog.part.is_velocity:
        action[jog.axis] = 0.0 if is_over else jog.by / (num_ticks * tick_s)
    else:
        assert jog.start is not None
        action[jog.axis] = jog.start + share * jog.by
    return action


def _has_arrived(jog: Jog, observation: Observation) -> bool:
    here = jog.measured(observation)
    if jog.start is None or here is None:
        return True
    return abs(here - jog.start - jog.by) <= _ARRIVED * abs(jog.by)


def _axis_number(part: ActionPart, axis: str) -> int:
    if axis in part.names:
        return part.names.index(axis)
    if axis.isdigit() and 1 <= int(axis) <= part.num_axes:
        return int(axis) - 1
    names = part.names or tuple(str(number + 1) for number in range(part.num_axes))
    raise UsageError(
        f"part '{part.name}' has no axis '{axis}': give 1 to {part.num_axes} or a name.{did_you_mean(axis, names)}"
    )


def _unit(part: ActionPart, number: int) -> str:
    """The unit of one axis, and of its integral for a velocity."""
    first, _, second = part.unit.partition("+")
    num_translations = 2 if part.kind == "velocity" else 3  # of a mobile base, of an end effector
    return (second if second and number >= num_translations else first).removesuffix("/s")


def _measured(part: ActionPart, number: int, observation: Observation) -> float | None:
    value = observation.values.get(part.measured_key) if part.measured else None
    if value is None:
        return None
    values = value.reshape(-1)[part.measured_slice]
    if part.frame and (number >= 3 or part.is_velocity or part.is_delta):
        return None  # a quaternion, or a position in another frame
    if part.is_velocity or number >= values.size:
        return None
    return float(values[number])
