"""Specs of robots, policies and tasks, and the check that they fit each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.core.errors import SpecMismatch, did_you_mean

__all__ = ["ArraySpec", "PolicySpec", "RobotSpec", "TaskSpec", "match"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """Shape and dtype of one array; names and limits if known."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    names: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        size = self.shape[0] if self.shape else 1
        for what, values in (("names", self.names), ("low", self.low), ("high", self.high)):
            if values and len(values) != size:
                raise SpecMismatch(f"{what} has {len(values)} entries for an array of shape {self.shape}")
        np.dtype(self.dtype)

    @property
    def is_image(self) -> bool:
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def bounds(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Limits as arrays; infinite if unknown."""
        if not self.low:
            full = np.full(self.shape, np.inf, np.float32)
            return -full, full
        return np.array(self.low, np.float32), np.array(self.high, np.float32)

    def at_limits(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Mask of the values, [..., *shape], within 1 % of the range of a limit, or beyond it."""
        low, high = self.bounds
        width = high - low
        near = np.where(np.isfinite(width), 0.01 * width, 0.0)
        return np.asarray((values <= low + near) | (values >= high - near))

    def describe(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "names": list(self.names),
            "low": list(self.low),
            "high": list(self.high),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ArraySpec:
        return ArraySpec(
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            names=tuple(data["names"]),
            low=tuple(data["low"]),
            high=tuple(data["high"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSpec:
    """Observations, actions and embodiment of a robot."""

    name: str
    embodiment: str
    observation: Mapping[str, ArraySpec]
    action: ArraySpec
    action_kind: str  # meaning of an action: "ee_delta", "joint_target", ...
    control_hz: float

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "embodiment": self.embodiment,
            "observation": {key: spec.to_json() for key, spec in self.observation.items()},
            "action": self.action.to_json(),
            "action_kind": self.action_kind,
            "control_hz": self.control_hz,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RobotSpec:
        return RobotSpec(
            name=data["name"],
            embodiment=data["embodiment"],
            observation={key: ArraySpec.from_json(spec) for key, spec in data["observation"].items()},
            action=ArraySpec.from_json(data["action"]),
            action_kind=data["action_kind"],
            control_hz=data["control_hz"],
        )

    def hash(self) -> str:
        """Equal for robots whose steps may be mixed in one batch. Names the files of a replay."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Inputs of a policy, and its output: chunks of `horizon` actions.

    `history` counts control ticks per key. Other keys are given at the current tick only.
    """

    name: str
    observation: Mapping[str, ArraySpec]
    action: ArraySpec
    action_kind: str
    horizon: int = 1
    history: Mapping[str, int] = field(default_factory=dict)
    guidable: bool = False
    prompted: bool = False  # also reads the task's text as `prompt` (core.prompts)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "observation": {key: spec.to_json() for key, spec in self.observation.items()},
            "action": self.action.to_json(),
            "action_kind": self.action_kind,
            "horizon": self.horizon,
            "history": dict(self.history),
            "guidable": self.guidable,
            "prompted": self.prompted,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PolicySpec:
        return PolicySpec(
            name=data["name"],
            observation={key: ArraySpec.from_json(spec) for key, spec in data["observation"].items()},
            action=ArraySpec.from_json(data["action"]),
            action_kind=data["action_kind"],
            horizon=data["horizon"],
            history=data["history"],
            guidable=data["guidable"],
            prompted=data["prompted"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a task needs of a robot: observation keys and embodiment."""

    name: str
    observation_keys: tuple[str, ...] = ()
    embodiments: tuple[str, ...] = ()  # empty: any


def match(
    robot: RobotSpec,
    *,
    policy: PolicySpec | None = None,
    task: TaskSpec | None = None,
    stored: RobotSpec | None = None,
) -> None:
    """Raise SpecMismatch, naming both sides, unless all given specs fit the robot."""
    here = f"robot '{robot.name}'"
    if task is not None:
        there = f"task '{task.name}'"
        if task.embodiments and robot.embodiment not in task.embodiments:
            raise SpecMismatch(f"{there} is for {', '.join(task.embodiments)}, but {here} is a {robot.embodiment}")
        for key in task.observation_keys:
            _present(key, robot, there=there)
    if policy is not None:
        there = f"policy '{policy.name}'"
        for key, spec in policy.observation.items():
            _present(key, robot, there=there)
            _fits(spec, robot.observation[key], what=f"observation '{key}'", there=there, here=here)
        _fits(policy.action, robot.action, what="action", there=there, here=here)
        if policy.action_kind != robot.action_kind:
            raise SpecMismatch(f"{there} gives {policy.action_kind} actions, but {here} takes {robot.action_kind}")
    if stored is not None:
        there = f"stored data of robot '{stored.name}'"
        for key in stored.observation:
            _present(key, robot, there=there)
        for key, spec in robot.observation.items():
            if key not in stored.observation:
                raise SpecMismatch(f"{there} has no observation '{key}', but {here} gives it")
            _fits(stored.observation[key], spec, what=f"observation '{key}'", there=there, here=here)
        _fits(stored.action, robot.action, what="action", there=there, here=here)
        if stored.action_kind != robot.action_kind:
            raise SpecMismatch(f"{there} has {stored.action_kind} actions, but {here} takes {robot.action_kind}")


def _present(key: str, robot: RobotSpec, *, there: str) -> None:
    if key not in robot.observation:
        raise SpecMismatch(
            f"{there} needs observation '{key}', but robot '{robot.name}' does not provide it."
            + did_you_mean(key, robot.observation)
        )


def _fits(theirs: ArraySpec, ours: ArraySpec, *, what: str, there: str, here: str) -> None:
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        raise SpecMismatch(f"{what}: {there} has {theirs.describe()}, but {here} has {ours.describe()}")
    if theirs.names and ours.names and theirs.names != ours.names:
        pairs = [f"{a} != {b}" for a, b in zip(theirs.names, ours.names, strict=True) if a != b]
        raise SpecMismatch(f"{what}: names of {there} and {here} differ: {', '.join(pairs[:3])}")
    if theirs.low and ours.low and (theirs.low != ours.low or theirs.high != ours.high):
        raise SpecMismatch(
            f"{what}: limits of {there} and {here} differ: "
            f"{theirs.low}..{theirs.high} against {ours.low}..{ours.high}"
        )
