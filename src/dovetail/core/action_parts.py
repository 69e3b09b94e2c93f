"""Action parts: what each group of axes in a robot's action vector means.

A robot with joints, a gripper and a mobile base has three parts, and so on. Each part states its kind, unit, limits, speed
limit and how it stands still:

    ActionPart(
        name="arm", kind="joint_target", unit="rad", names=("j1", "j2"), low=(-2.0, -2.0), high=(2.0, 2.0),
        max_speed=(1.0, 1.0), hold="measured", measured="joint_pos[0:2]",
    )

`KINDS` has the known kinds. A part with an unknown kind, a wrong unit or a missing fact raises SpecMismatch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.core.errors import SpecMismatch, did_you_mean

__all__ = ["FRAMES", "KINDS", "ActionPart", "PartKind", "derived_parts", "drives_in_parts"]

_MEASURED = re.compile(r"^([^\[\]]+)(?:\[(\d+):(\d+)\])?$")
_LARGEST = float(np.finfo(np.float32).max)
FRAMES = ("base", "reset", "tool")
"""Frames of Cartesian parts: the robot's base, the pose at the last reset, the current pose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartKind:
    """The units of a kind of action part and the ways in which it stands still."""

    units: tuple[str, ...]
    holds: tuple[str, ...]
    is_cartesian: bool = False  # needs a frame; x, y, z, then a rotation vector
    is_velocity: bool = False  # low and high are its speed limits


KINDS: Mapping[str, PartKind] = {
    "joint_target": PartKind(units=("rad", "deg", "m"), holds=("measured",)),
    "joint_velocity": PartKind(units=("rad/s", "deg/s", "m/s"), holds=("zero",), is_velocity=True),
    "ee_delta": PartKind(units=("m+rad", "m"), holds=("zero",), is_cartesian=True),
    "ee_target": PartKind(units=("m+rad", "m"), holds=("measured",), is_cartesian=True),
    "ee_velocity": PartKind(units=("m/s+rad/s", "m/s"), holds=("zero",), is_cartesian=True, is_velocity=True),
    "velocity": PartKind(units=("m/s+rad/s", "m/s", "rad/s"), holds=("zero",), is_velocity=True),
    "gripper": PartKind(units=("1", "m", "rad", "deg"), holds=("last", "measured", "values")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPart:
    """Consecutive axes of an action vector that have one meaning, such as the joints of an arm."""

    name: str
    kind: str
    unit: str
    names: tuple[str, ...] = ()  # of the axes
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    max_speed: tuple[
        float, ...
    ] = ()  # unit per second and axis; empty: from low and high, or from the safety settings
    hold: str | tuple[float, ...] = "measured"  # how to stand still: "measured", "zero", "last", or values to send
    frame: str = ""  # of a Cartesian part, see FRAMES
    measured: str = ""  # the observation that measures it: "joint_pos" or, for a part of it, "joint_pos[0:7]"
    num_axes: int = 0  # 0: the number of names
    derived_from: str = field(
        default="", repr=False
    )  # action_kind of a spec in the form of 0.6, which has no parts

    def __post_init__(self) -> None:
        if not self.num_axes:
            object.__setattr__(self, "num_axes", max(len(self.names), len(self.low)))
        if not self.derived_from:
            self._check()
            if self.is_velocity and not self.max_speed:
                speeds = tuple(max(abs(a), abs(b)) for a, b in zip(self.low, self.high, strict=True))
                object.__setattr__(self, "max_speed", speeds)

    @property
    def is_velocity(self) -> bool:
        return self.kind in KINDS and KINDS[self.kind].is_velocity

    @property
    def is_delta(self) -> bool:
        """Whether values are relative motions, not absolute targets or velocities."""
        return self.kind.endswith("_delta")

    @property
    def measured_key(self) -> str:
        """The observation that measures this part; empty if none does."""
        return self.measured.split("[")[0]

    @property
    def measured_slice(self) -> slice:
        """The entries of that observation."""
        found = _MEASURED.match(self.measured)
        return slice(int(found[2]), int(found[3])) if found and found[2] else slice(None)

    def missing(self) -> str | None:
        """What to add before this part may move; None if nothing is missing. Only parts of 0.6's form lack anything."""
        if self.derived_from and self.kind not in KINDS:
            return f"a known kind ({', '.join(KINDS)}): give the robot's spec `parts`"
        if not self.low or not all(math.isfinite(x) for x in (*self.low, *self.high)):
            return "finite `low` and `high` in the action's spec"
        if any(a >= b for a, b in zip(self.low, self.high, strict=True)):
            return f"limits with low below high, got {self.low} and {self.high}"
        return None

    def describe(self) -> str:
        frame = f" in frame {self.frame}" if self.frame else ""
        return f"{self.name}: {self.num_axes} x {self.kind} [{self.unit}]{frame}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "unit": self.unit,
            "names": list(self.names),
            "low": list(self.low),
            "high": list(self.high),
            "max_speed": list(self.max_speed),
            "hold": self.hold if isinstance(self.hold, str) else list(self.hold),
            "frame": self.frame,
            "measured": self.measured,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ActionPart:
        hold = data["hold"]
        return ActionPart(
            name=str(data["name"]),
            kind=str(data["kind"]),
            unit=str(data["unit"]),
            names=tuple(map(str, data["names"])),
            low=_numbers(data["low"]),
            high=_numbers(data["high"]),
            max_speed=_numbers(data["max_speed"]),
            hold=hold if isinstance(hold, str) else _numbers(hold),
            frame=str(data["frame"]),
            measured=str(data["measured"]),
        )

    def _check(self) -> None:
        if not self.name:
            raise SpecMismatch(f"an action part of kind '{self.kind}' has no name. Add `name`")
        kind = KINDS.get(self.kind)
        if kind is None:
            raise self._wrong(
                f"unknown kind '{self.kind}'", f"use {', '.join(KINDS)}", did_you_mean(self.kind, KINDS)
            )
        if self.unit not in kind.units:
            raise self._wrong(
                f"unit '{self.unit}' does not fit {self.kind}", f"set `unit` to {' or '.join(kind.units)}"
            )
        if not self.names or len(set(self.names)) != len(self.names):
            raise self._wrong(f"its axis names are {self.names}", "add `names`, a different one for each axis")
        if kind.is_cartesian and self.num_axes != (6 if "+" in self.unit else 3):
            raise self._wrong(
                f"{self.num_axes} axes for {self.kind} in {self.unit}", "x y z in m, x y z rx ry rz in m+rad"
            )
        if kind.is_cartesian and self.frame not in FRAMES:
            raise self._wrong(f"its frame is '{self.frame}'", f"set `frame` to {', '.join(FRAMES)}")
        self._check_limits(kind)
        self._check_hold(kind)

    def _check_limits(self, kind: PartKind) -> None:
        for what, values in (("low", self.low), ("high", self.high), ("max_speed", self.max_speed)):
            if what == "max_speed" and kind.is_velocity and not values:
                continue
            if len(values) != len(self.names):
                raise self._wrong(
                    f"{len(values)} values of {what} for {len(self.names)} axes", f"add `{what}` for each axis"
                )
            if not all(math.isfinite(x) and abs(x) <= _LARGEST for x in values):
                raise self._wrong(f"{what} is {values}", "give finite numbers")
        if not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise self._wrong(f"low {self.low} is not below high {self.high}", "order the limits of each axis")
        if not all(x > 0 for x in self.max_speed):
            raise self._wrong(f"max_speed is {self.max_speed}", "give numbers above zero")

    def _check_hold(self, kind: PartKind) -> None:
        how = self.hold if isinstance(self.hold, str) else "values"
        if how not in kind.holds:
            raise self._wrong(f"it cannot hold by '{how}'", f"set `hold` to {' or '.join(kind.holds)}")
        if how == "measured" and not self.measured:
            raise self._wrong(
                "it holds where it is measured", "set `measured` to the observation that measures it"
            )
        if self.measured and not _MEASURED.match(self.measured):
            raise self._wrong(
                f"measured is '{self.measured}'", "write an observation, or `observation[first:end]`"
            )
        if how == "zero" and not all(a <= 0 <= b for a, b in zip(self.low, self.high, strict=True)):
            raise self._wrong("it holds by sending zero, which is outside its limits", "include zero in low..high")
        if isinstance(self.hold, tuple) and (
            len(self.hold) != len(self.names)
            or not all(a <= x <= b for a, x, b in zip(self.low, self.hold, self.high, strict=True))
        ):
            raise self._wrong(f"hold is {self.hold}", "give one value within the limits for each axis")

    def _wrong(self, what: str, advice: str, hint: str = "") -> SpecMismatch:
        return SpecMismatch(f"action part '{self.name}': {what}: {advice}{'.' + hint if hint else ''}")


def drives_in_parts(parts: Sequence[ActionPart]) -> bool:
    """Whether a person may take over one of several moving parts, such as one of two arms, while the policy drives the
    others."""
    return sum(part.kind != "gripper" for part in parts) > 1


def derived_parts(
    action_kind: str,
    *,
    names: Sequence[str],
    low: Sequence[float],
    high: Sequence[float],
    num_axes: int,
    sizes: Mapping[str, int],
    gripper_columns: Sequence[str] = (),
    joint_key: str = "joint_pos",
    pose_key: str = "ee_pose",
    gripper_key: str = "gripper",
) -> tuple[ActionPart, ...]:
    """The parts of a spec in the form of 0.6, which has one kind for all axes. `sizes` are those of the observations.

    Gripper axes have names with `gripper`. Without such names, they follow the six axes of an end effector or the joints.
    """
    is_gripper = _grippers(
        action_kind,
        names=names,
        num_axes=num_axes,
        num_joints=sizes.get(joint_key, num_axes),
        num_arms=sizes.get(pose_key, 0) // 7,
    )
    starts = [axis for axis in range(num_axes) if axis == 0 or is_gripper[axis] != is_gripper[axis - 1]]
    spans: list[tuple[int, int]] = []
    for first, end in zip(starts, [*starts[1:], num_axes], strict=True):
        size = 6 if action_kind == "ee_delta" and not is_gripper[first] and (end - first) % 6 == 0 else end - first
        size = 1 if is_gripper[first] else size
        spans += [(at, at + size) for at in range(first, end, size)]
    arms = [span for span in spans if not is_gripper[span[0]]]
    grippers = [span for span in spans if is_gripper[span[0]]]
    parts = []
    for first, end in spans:
        gripper = bool(is_gripper[first])
        group = grippers if gripper else arms
        number = group.index((first, end))
        label = "gripper" if gripper else "arm"
        kind = "gripper" if gripper else action_kind
        if gripper:
            measured = _gripper_column(gripper_key, number, len(group), sizes, gripper_columns)
        elif action_kind == "joint_target" and joint_key in sizes:
            measured = _joint_columns(joint_key, first, end, arms, sizes[joint_key] == num_axes)
        elif action_kind == "ee_delta" and sizes.get(pose_key) == 7 * len(arms):
            measured = pose_key if len(arms) == 1 else f"{pose_key}[{7 * number}:{7 * number + 7}]"
        else:
            measured = ""
        units = KINDS[kind].units if kind in KINDS else ("",)
        parts.append(
            ActionPart(
                name=label if len(group) == 1 else f"{label}_{number + 1}",
                kind=kind,
                unit=units[0],
                names=tuple(names[first:end]),
                low=tuple(low[first:end]),
                high=tuple(high[first:end]),
                hold="last" if gripper else "measured" if action_kind == "joint_target" else "zero",
                frame="reset" if kind == "ee_delta" else "",
                measured=measured,
                num_axes=end - first,
                derived_from=action_kind,
            )
        )
    return tuple(parts)


def _grippers(
    action_kind: str, *, names: Sequence[str], num_axes: int, num_joints: int, num_arms: int
) -> npt.NDArray[np.bool_]:
    axes = np.arange(num_axes)
    named = np.array(["gripper" in name for name in names], np.bool_)
    if named.any() or (names and action_kind != "ee_delta"):
        return named
    if action_kind == "joint_target":
        return np.asarray(axes >= num_joints)
    if action_kind == "ee_delta" and num_arms and num_axes % num_arms == 0:
        return np.asarray(axes % (num_axes // num_arms) >= 6)
    if action_kind == "ee_delta":
        return np.asarray(axes % 7 == 6 if num_axes % 7 == 0 else axes >= 6)
    return np.zeros(num_axes, np.bool_)


def _gripper_column(
    key: str, number: int, num_grippers: int, sizes: Mapping[str, int], columns: Sequence[str]
) -> str:
    if key not in sizes:
        return ""
    if "command" in columns:
        at = list(columns).index("command")
        return f"{key}[{at}:{at + 1}]" if num_grippers == 1 else ""
    if sizes[key] != num_grippers:
        return ""
    return key if num_grippers == 1 else f"{key}[{number}:{number + 1}]"


def _joint_columns(key: str, first: int, end: int, arms: list[tuple[int, int]], is_whole: bool) -> str:
    """The measured joints of the axes `first` to `end`; the observation may leave out the grippers."""
    if len(arms) == 1 and not is_whole:
        return key
    at = first if is_whole else sum(b - a for a, b in arms if b <= first)
    return f"{key}[{at}:{at + end - first}]"


def _numbers(values: Any) -> tuple[float, ...]:
    if not all(isinstance(value, int | float) for value in values):
        raise TypeError(f"expected numbers, got {values}")
    return tuple(float(value) for value in values)
