"""Finds measured motions that are not possible: a wrong measurement, or an arm that something else has moved.

The filter holds and limits relative to the measured state. A wrong measurement would therefore become a real motion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.config.safety import SafetyConfig
from dovetail.core.action_parts import ActionPart
from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array
from dovetail.robots.limits.axes import Axes, Vector
from dovetail.robots.limits.settings import checked_parts, largest_steps, pose_speeds

__all__ = ["MeasuredJumps"]


class MeasuredJumps:
    """Compares each measurement with the last accepted one.

    In T ticks the filter commands at most T + 1.5 steps. One more tick than has passed, and the margin of the settings,
    include that, and the jitter of a driver's time stamps.
    """

    def __init__(self, spec: RobotSpec, config: SafetyConfig, *, simulated: bool) -> None:
        self.is_on = not simulated if config.check_jumps is None else config.check_jumps
        self._measured = _measured(spec, config, simulated=simulated) if self.is_on else []
        self._margin, self._tick_s = 1.0 + config.jump_speed_margin, 1.0 / spec.control_hz
        self._stop_ns = int(config.jump_stop_after_s * NS_PER_S)
        self._place: list[Vector] | None = None  # as accepted last
        self._place_ns = 0
        self._refused_ns: int | None = None  # of the first refused measurement in a row
        self._since_ns = 0  # when it was refused, by the filter's clock

    @property
    def is_refusing(self) -> bool:
        """Whether the last measurement was refused. Then only a return to the last accepted one ends it."""
        return self._refused_ns is not None

    def restart(self) -> None:
        """A reset or acknowledgement: the robot may be anywhere."""
        self._refused_ns = None

    def is_near(self, values: Mapping[str, Array]) -> bool:
        """Whether a measurement is close to the last accepted one, however long ago that was."""
        return self._place is not None and self._compare(self._place, values, 0.0) is None

    def accept(self, values: Mapping[str, Array], measured_ns: int) -> None:
        self._place, self._place_ns, self._refused_ns = self._read(values), measured_ns, None

    def between(self, before: Mapping[str, Array], values: Mapping[str, Array], seconds: float) -> str | None:
        """What has moved too far in this time, or None."""
        return self._compare(self._read(before), values, seconds)

    def find(self, values: Mapping[str, Array], measured_ns: int, now_ns: int) -> tuple[str | None, bool]:
        """What has moved too far since the last accepted measurement, and whether that has lasted too long."""
        if self._place is None:
            return None, False
        # A wrong value that stays must not become possible with time. The robot holds meanwhile.
        until_ns = measured_ns if self._refused_ns is None else min(measured_ns, self._refused_ns)
        found = self._compare(self._place, values, (until_ns - self._place_ns) / NS_PER_S)
        if found is None:
            return None, False
        if self._refused_ns is None:
            self._refused_ns, self._since_ns = measured_ns, now_ns
        return found, now_ns - self._since_ns >= self._stop_ns

    def _read(self, values: Mapping[str, Array]) -> list[Vector]:
        return [one.read(values) for one in self._measured]

    def _compare(self, place: list[Vector], values: Mapping[str, Array], seconds: float) -> str | None:
        for one, there in zip(self._measured, place, strict=True):
            here = one.read(values)
            moved = one.moved(there, here)
            possible = one.speed * (self._margin * (max(seconds, 0.0) + self._tick_s)) + one.allowance
            if (moved > possible).any():
                index = int(np.argmax(moved - possible))
                return (
                    f"{one.names[index]} of part '{one.part.name}' was measured at {one.show(here, index)}, "
                    f"{seconds:.3f} s after {one.show(there, index)}: at most {possible[index]:.3f} "
                    f"{one.units[index]} of motion is possible"
                )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Measured values of one part. Their motion counts per axis; that of a pose as a distance and an angle."""

    part: ActionPart
    names: tuple[str, ...]
    units: tuple[str, ...]
    speed: Vector  # the limit; infinite: not checked
    allowance: Vector
    is_pose: bool = False

    def read(self, values: Mapping[str, Array]) -> Vector:
        return values[self.part.measured_key].reshape(-1)[self.part.measured_slice].astype(np.float64)

    def moved(self, before: Vector, here: Vector) -> Vector:
        if not self.is_pose:
            return np.abs(here - before)
        return np.array((np.linalg.norm(here[:3] - before[:3]), _angle(before[3:7], here[3:7])))[: len(self.names)]

    def show(self, values: Vector, index: int) -> str:
        if not self.is_pose:
            return f"{values[index]:.3f} {self.units[index]}"
        shown = values[3:7] if index else values[:3]
        numbers = ", ".join(f"{value:.3f}" for value in shown)
        return f"({numbers})" if index else f"({numbers}) {self.units[0]}"


def _measured(spec: RobotSpec, config: SafetyConfig, *, simulated: bool) -> list[_Measured]:
    parts = checked_parts(spec, config, simulated=simulated)
    axes = Axes(spec, parts)
    speeds = largest_steps(spec, config, axes) * spec.control_hz
    found = [
        _of_part(part, speeds[at], spec, config.jump_allowance)
        for part, at in axes.parts
        if part.measured_key in spec.observation
    ]
    return [one for one in found if one is not None]


def _of_part(part: ActionPart, speed: Vector, spec: RobotSpec, allowance: float) -> _Measured | None:
    """None for a part whose measurement is no position, or that nothing ever commands to its measured position."""
    num_measured = len(range(math.prod(spec.observation[part.measured_key].shape))[part.measured_slice])
    in_degrees = math.degrees(allowance) if part.unit == "deg" else allowance
    if num_measured == part.num_axes and (
        part.kind == "joint_target" or (part.kind == "gripper" and part.hold == "measured")
    ):
        names = part.names or tuple(f"axis {axis}" for axis in range(part.num_axes))
        fastest = np.array(part.max_speed) if part.kind == "gripper" and part.max_speed else speed
        return _Measured(
            part=part,
            names=tuple(f"'{name}'" for name in names),
            units=(part.unit,) * part.num_axes,
            speed=fastest,
            allowance=np.full(part.num_axes, in_degrees),
        )
    if part.kind in ("ee_delta", "ee_target") and num_measured == 7:
        speeds = pose_speeds(part, speed, control_hz=spec.control_hz)
        num = 2 if part.num_axes == 6 else 1
        return _Measured(
            part=part,
            names=("the position", "the rotation")[:num],
            units=("m", "rad")[:num],
            speed=np.array(speeds[:num]),
            allowance=np.full(num, allowance),
            is_pose=True,
        )
    return None


def _angle(before: Vector, here: Vector) -> float:
    """Angle in rad between two quaternions. A length of zero is no rotation; the filter refuses it where it matters."""
    length = float(np.linalg.norm(before) * np.linalg.norm(here))
    return 2.0 * math.acos(min(1.0, abs(float(before @ here)) / length)) if length > 0 else 0.0
