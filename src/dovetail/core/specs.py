"""Specs of robots, policies and tasks, and the check that they fit each other.

A robot's action is one vector. Its parts say what the axes mean: see `dovetail.core.action_parts`. A spec is built from
`parts`, or in the form of 0.6 from `action` and `action_kind`, from which the parts follow.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dovetail.core.action_parts import ActionPart, derived_parts
from dovetail.core.errors import SpecMismatch, did_you_mean
from dovetail.core.image_sizes import SCALINGS, Scaling, is_fitted

__all__ = ["ActionPart", "ArraySpec", "BaseSpec", "PolicySpec", "RobotSpec", "TaskSpec", "match"]

_Spec = TypeVar("_Spec")
_MAX_SIZE = 2**28  # values of one array; a larger shape in a file is an error


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """Shape and dtype of one array; names and limits if known. `scaling` says how larger color images become this size."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    names: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    scaling: Scaling = "averaged"

    def __post_init__(self) -> None:
        size = self.shape[0] if self.shape else 1
        for what, values in (("names", self.names), ("low", self.low), ("high", self.high)):
            if values and len(values) != size:
                raise SpecMismatch(f"{what} has {len(values)} entries for an array of shape {self.shape}")
        if bool(self.low) != bool(self.high):
            given, missing = ("low", "high") if self.low else ("high", "low")
            raise SpecMismatch(
                f"an array of shape {self.shape} has `{given}` but not `{missing}`: give both limits"
            )
        if any(math.isnan(x) for x in (*self.low, *self.high)):
            raise SpecMismatch(f"a limit is NaN: low {self.low}, high {self.high}")
        if any(low > high for low, high in zip(self.low, self.high, strict=True)):
            raise SpecMismatch(f"low {self.low} is above high {self.high}: order the limits of each axis")
        np.dtype(self.dtype)

    @property
    def is_image(self) -> bool:
        """Color or gray, uint8 [H, W, C]."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def is_depth(self) -> bool:
        """Distances in millimeters, uint16 [H, W, 1]; 0: no measurement."""
        return self.dtype == "uint16" and len(self.shape) == 3 and self.shape[2] == 1

    @property
    def is_picture(self) -> bool:
        return self.is_image or self.is_depth

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
            **({} if self.scaling == "averaged" else {"scaling": self.scaling}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ArraySpec:
        """Raises SpecMismatch if the data is no valid spec."""
        return _checked(_array_from_json, data, "array")


def _array_from_json(data: Mapping[str, Any]) -> ArraySpec:
    shape, numbers = tuple(data["shape"]), (*data["low"], *data["high"])
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) > _MAX_SIZE:
        raise ValueError(f"invalid shape {str(list(shape))[:80]}")
    if not all(isinstance(value, int | float) for value in numbers):
        raise TypeError("limits that are not numbers")
    if not isinstance(data["dtype"], str) or not all(isinstance(name, str) for name in data["names"]):
        raise TypeError("a dtype or axis name that is not text")
    if data.get("scaling", "averaged") not in SCALINGS:
        raise ValueError("an unknown scaling")
    return ArraySpec(
        shape=shape,
        dtype=data["dtype"],
        names=tuple(data["names"]),
        low=tuple(data["low"]),
        high=tuple(data["high"]),
        scaling=data.get("scaling", "averaged"),
    )


def _checked(read: Callable[[Mapping[str, Any]], _Spec], data: Mapping[str, Any], what: str) -> _Spec:
    """Read a spec from JSON of any origin."""
    try:
        _check_texts(data)
        return read(data)
    except SpecMismatch:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise SpecMismatch(f"invalid {what} spec: {line}") from error


def _check_texts(data: Any) -> None:
    """Errors quote names of specs, so they have a largest length."""
    if isinstance(data, str) and len(data) > _MAX_TEXT:
        raise ValueError(f"a name of {len(data)} characters, at most {_MAX_TEXT} are allowed")
    if isinstance(data, Mapping):
        for key, value in data.items():
            _check_texts(key)
            _check_texts(value)
    elif isinstance(data, list):
        for value in data:
            _check_texts(value)


_MAX_TEXT = 500
_FROM_PARTS = ArraySpec(shape=(0,))  # an action spec that follows from the parts


def _resolve(
    action: ArraySpec,
    action_kind: str,
    parts: tuple[ActionPart, ...],
    observation: Mapping[str, ArraySpec] | None,
    *,
    name: str,
) -> tuple[ArraySpec, str, tuple[ActionPart, ...]]:
    """Complete an action spec from its parts, or the parts from the action spec and the robot's observations."""
    given = tuple(part for part in parts if not part.derived_from)
    if given and len(given) < len(parts):
        raise SpecMismatch(f"'{name}' mixes parts of its own with parts of a spec in the form of 0.6")
    if given:
        labels = [part.name for part in parts]
        axes = tuple(axis for part in parts for axis in part.names)
        for what, values in (("part", labels), ("axis", axes)):
            if twice := [value for value in values if values.count(value) > 1]:
                raise SpecMismatch(f"'{name}' has two action {what} names '{twice[0]}': rename one")
        joined = ArraySpec(
            shape=(len(axes),),
            names=axes,
            low=tuple(x for part in parts for x in part.low),
            high=tuple(x for part in parts for x in part.high),
        )
        kind = parts[0].kind if len(parts) == 1 else "parts"
        if action not in (_FROM_PARTS, joined) or action_kind not in ("", kind):
            raise SpecMismatch(f"'{name}' has an action spec that differs from its parts: give only `parts`")
        return joined, kind, parts
    if action is _FROM_PARTS or not action_kind:
        raise SpecMismatch(f"'{name}' has no action: give `parts`")
    if observation is None and parts and _follow_from(parts, action, action_kind):
        return action, action_kind, parts
    observation = observation or {}
    if len(action.shape) != 1 or not action.shape[0]:
        return action, action_kind, ()
    derived = derived_parts(
        action_kind,
        names=action.names,
        low=action.low,
        high=action.high,
        num_axes=action.shape[0],
        sizes={key: spec.shape[0] for key, spec in observation.items() if len(spec.shape) == 1},
        gripper_columns=observation["gripper"].names if "gripper" in observation else (),
    )
    return action, action_kind, derived


def _follow_from(parts: tuple[ActionPart, ...], action: ArraySpec, action_kind: str) -> bool:
    """Whether derived parts belong to the action."""
    return (
        all(part.derived_from == action_kind for part in parts)
        and action.shape == (sum(part.num_axes for part in parts),)
        and action.names == tuple(axis for part in parts for axis in part.names)
        and action.low == tuple(x for part in parts for x in part.low)
        and action.high == tuple(x for part in parts for x in part.high)
    )


def _parts_from_json(data: Mapping[str, Any]) -> tuple[ActionPart, ...]:
    return tuple(ActionPart.from_json(part) for part in data.get("parts", ()))


def _slices(parts: tuple[ActionPart, ...]) -> dict[str, slice]:
    found, first = {}, 0
    for part in parts:
        found[part.name] = slice(first, first + part.num_axes)
        first += part.num_axes
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSpec:
    """Observations, actions and embodiment of a robot."""

    name: str
    embodiment: str
    observation: Mapping[str, ArraySpec]
    action: ArraySpec = _FROM_PARTS  # the whole vector
    action_kind: str = ""  # the kind of the only part, or "parts"; form of 0.6: "ee_delta" or "joint_target"
    control_hz: float
    parts: tuple[ActionPart, ...] = ()  # in the order of the vector

    def __post_init__(self) -> None:
        if not (math.isfinite(self.control_hz) and self.control_hz > 0):
            raise SpecMismatch(
                f"robot '{self.name}' has control_hz {self.control_hz}, expected a number above zero"
            )
        action, kind, parts = _resolve(
            self.action, self.action_kind, tuple(self.parts), self.observation, name=self.name
        )
        for field_name, value in (("action", action), ("action_kind", kind), ("parts", parts)):
            object.__setattr__(self, field_name, value)
        for part in self.parts:
            if not part.derived_from and part.measured:
                self._check_measured(part)

    def part(self, name: str) -> ActionPart:
        for part in self.parts:
            if part.name == name:
                return part
        names = [part.name for part in self.parts]
        raise SpecMismatch(
            f"robot '{self.name}' has no action part '{name}', only {', '.join(names)}.{did_you_mean(name, names)}"
        )

    def slice_of(self, name: str) -> slice:
        """The axes of a part in the action vector."""
        return _slices(self.parts)[self.part(name).name]

    def axes_of(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """Mask [A] of the axes whose part has one of these kinds."""
        return _axes_of(self.parts, kinds)

    def with_only(self, keys: Collection[str]) -> RobotSpec:
        """This robot with only these observations, for a comparison. Others may still measure its parts."""
        narrowed = copy.copy(self)
        observation = {key: spec for key, spec in self.observation.items() if key in keys}
        object.__setattr__(narrowed, "observation", observation)
        return narrowed

    def to_json(self) -> dict[str, Any]:
        data = {
            "name": self.name,
            "embodiment": self.embodiment,
            "observation": {key: spec.to_json() for key, spec in self.observation.items()},
            "action": self.action.to_json(),
            "action_kind": self.action_kind,
            "control_hz": self.control_hz,
        }
        return data | _parts_to_json(self.parts)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RobotSpec:
        """Raises SpecMismatch if the data is no valid spec."""
        return _checked(_robot_from_json, data, "robot")

    def hash(self) -> str:
        """Equal for robots whose steps may be mixed in one batch. Names the files of a replay.

        A robot with one part has the hash of 0.6. How a part holds, how fast it may move and what measures it do not count.
        """
        data = self.to_json()
        if parts := data.pop("parts", None):
            counted = [{key: part[key] for key in ("name", "kind", "unit", "names", "frame")} for part in parts]
            data |= {"parts": counted} if len(counted) > 1 else {}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]

    def _check_measured(self, part: ActionPart) -> None:
        key, here = part.measured_key, f"action part '{part.name}' of robot '{self.name}'"
        if key not in self.observation:
            raise SpecMismatch(
                f"{here} is measured by observation '{key}', which does not exist.{did_you_mean(key, self.observation)}"
            )
        shape = self.observation[key].shape
        size = len(range(*part.measured_slice.indices(shape[0]))) if len(shape) == 1 else 0
        expected = 7 if part.frame else part.num_axes  # a pose, or one value per axis
        if size != expected:
            raise SpecMismatch(f"{here} needs {expected} measured values, but '{part.measured}' has {size}")


def _robot_from_json(data: Mapping[str, Any]) -> RobotSpec:
    for key in ("name", "embodiment", "action_kind"):
        if not isinstance(data[key], str):
            raise TypeError(f"'{key}' is not text")
    return RobotSpec(
        name=data["name"],
        embodiment=data["embodiment"],
        observation={key: ArraySpec.from_json(spec) for key, spec in data["observation"].items()},
        action=ArraySpec.from_json(data["action"]),
        action_kind=data["action_kind"],
        control_hz=data["control_hz"],
        parts=_parts_from_json(data),
    )


def _parts_to_json(parts: tuple[ActionPart, ...]) -> dict[str, Any]:
    given = [part.to_json() for part in parts if not part.derived_from]
    return {"parts": given} if given else {}


def _axes_of(parts: tuple[ActionPart, ...], kinds: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    masks = [np.full(part.num_axes, part.kind in kinds, np.bool_) for part in parts]
    return np.concatenate(masks) if masks else np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSpec:
    """A frozen base policy inside another one: see `dovetail.core.proposals`.

    It proposes chunks of `horizon` actions, a new one after `every` steps. `inputs` are observations that only it reads:
    the replay does not store them. `embedding_size` values of its inner features come with each chunk.
    """

    horizon: int
    every: int
    inputs: tuple[str, ...] = ()
    embedding_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Inputs of a policy, and its output: chunks of `horizon` actions.

    `history` counts steps per key: control ticks, or steps at `actor.policy_hz`. Other keys are given at the current tick
    only.
    """

    name: str
    observation: Mapping[str, ArraySpec]
    action: ArraySpec = _FROM_PARTS
    action_kind: str = ""
    parts: tuple[ActionPart, ...] = ()  # those of its robot
    horizon: int = 1
    history: Mapping[str, int] = field(default_factory=dict)
    guidable: bool = False
    prompted: bool = False  # also reads the task's text as `prompt` (core.prompts)
    base: BaseSpec | None = None

    def __post_init__(self) -> None:
        action, kind, parts = _resolve(self.action, self.action_kind, tuple(self.parts), None, name=self.name)
        for field_name, value in (("action", action), ("action_kind", kind), ("parts", parts)):
            object.__setattr__(self, field_name, value)

    def axes_of(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """Mask [A] of the axes whose part has one of these kinds."""
        return _axes_of(self.parts, kinds)

    def to_json(self) -> dict[str, Any]:
        data = {
            "name": self.name,
            "observation": {key: spec.to_json() for key, spec in self.observation.items()},
            "action": self.action.to_json(),
            "action_kind": self.action_kind,
            "horizon": self.horizon,
            "history": dict(self.history),
            "guidable": self.guidable,
            "prompted": self.prompted,
        }
        if self.base is not None:
            data["base"] = {**asdict(self.base), "inputs": list(self.base.inputs)}
        return data | _parts_to_json(self.parts)

    @property
    def learned_keys(self) -> tuple[str, ...]:
        """The observations that learning needs, and the replay stores."""
        only_base = () if self.base is None else self.base.inputs
        return tuple(key for key in self.observation if key not in only_base)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PolicySpec:
        """Raises SpecMismatch if the data is no valid spec."""
        return _checked(_policy_from_json, data, "policy")


def _policy_from_json(data: Mapping[str, Any]) -> PolicySpec:
    return PolicySpec(
        name=data["name"],
        observation={key: ArraySpec.from_json(spec) for key, spec in data["observation"].items()},
        action=ArraySpec.from_json(data["action"]),
        action_kind=data["action_kind"],
        parts=_parts_from_json(data),
        horizon=data["horizon"],
        history=data["history"],
        guidable=data["guidable"],
        prompted=data["prompted"],
        base=_base_from_json(data["base"]) if data.get("base") else None,
    )


def _base_from_json(data: Mapping[str, Any]) -> BaseSpec:
    return BaseSpec(
        horizon=int(data["horizon"]),
        every=int(data["every"]),
        inputs=tuple(map(str, data["inputs"])),
        embedding_size=int(data.get("embedding_size", 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a task needs of a robot: observation keys and embodiment; and whether it detects success."""

    name: str
    observation_keys: tuple[str, ...] = ()
    embodiments: tuple[str, ...] = ()  # empty: any
    has_success: bool = True  # False: only the return tells how good an episode was


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
            own = robot.observation[key]
            if spec.is_picture and spec.dtype == own.dtype and is_fitted(spec.shape, own.shape):
                continue  # the caller of the policy scales the images down (core.images)
            _fits(spec, own, what=f"observation '{key}'", there=there, here=here)
        _fits(policy.action, robot.action, what="action", there=there, here=here)
        if policy.action_kind != robot.action_kind:
            raise SpecMismatch(f"{there} gives {policy.action_kind} actions, but {here} takes {robot.action_kind}")
        _same_parts(policy.parts, robot.parts, there=there, here=here)
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
        _same_parts(stored.parts, robot.parts, there=there, here=here)


def _same_parts(theirs: tuple[ActionPart, ...], ours: tuple[ActionPart, ...], *, there: str, here: str) -> None:
    """Compare name, kind, unit and frame. Specs in the form of 0.6 state no units and fit any part of their kind."""
    if any(part.derived_from for part in (*theirs, *ours)):
        return
    for a, b in zip(theirs, ours, strict=False):
        if (a.name, a.kind, a.unit, a.frame) != (b.name, b.kind, b.unit, b.frame):
            raise SpecMismatch(f"action parts of {there} and {here} differ: {a.describe()} against {b.describe()}")
    if len(theirs) != len(ours):
        raise SpecMismatch(f"{there} has {len(theirs)} action parts, but {here} has {len(ours)}")


def _present(key: str, robot: RobotSpec, *, there: str) -> None:
    if key not in robot.observation:
        raise SpecMismatch(
            f"{there} needs observation '{key}', but robot '{robot.name}' does not provide it."
            + did_you_mean(key, robot.observation)
        )


def _fits(theirs: ArraySpec, ours: ArraySpec, *, what: str, there: str, here: str) -> None:
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        are_pictures = theirs.is_picture and ours.is_picture and theirs.dtype == ours.dtype
        todo = f". Set this camera to {theirs.shape[1]}x{theirs.shape[0]} pixels" if are_pictures else ""
        raise SpecMismatch(f"{what}: {there} has {theirs.describe()}, but {here} has {ours.describe()}{todo}")
    if theirs.names and ours.names and theirs.names != ours.names:
        pairs = [f"{a} != {b}" for a, b in zip(theirs.names, ours.names, strict=True) if a != b]
        raise SpecMismatch(f"{what}: names of {there} and {here} differ: {', '.join(pairs[:3])}")
    if theirs.low and ours.low and (theirs.low != ours.low or theirs.high != ours.high):
        raise SpecMismatch(
            f"{what}: limits of {there} and {here} differ: "
            f"{theirs.low}..{theirs.high} against {ours.low}..{ours.high}"
        )
