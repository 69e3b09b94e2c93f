"""The robot's spec as a plain dict, and what the server needs of it: shapes of observations, limits of actions.

    {
        "name": "my_arm",
        "control_hz": 20,
        "observation": {"joint_pos": {"shape": [6]}, "front": {"shape": [480, 640, 3], "dtype": "uint8"}},
        "action": [{"name": "arm", "kind": "joint_target", "unit": "rad", "axes": 6, "low": -2.8, "high": 2.8, ...}],
    }

Dovetail checks the rest of it (kinds, units, what measures a part) when it connects, before anything moves.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .wire import MAX_BODY, MAX_HEADER

__all__ = ["RESERVED", "Description", "InvalidSpec"]

RESERVED = ("time_ns", "captured_ns")
_DTYPES = ("float32", "uint8", "uint16")
_POSE_AXES = {"m+rad": 6, "m/s+rad/s": 6, "m": 3, "m/s": 3}
_SLACK = 1e-3  # of an axis' range: rounding of limits to float32


class InvalidSpec(ValueError):
    """The robot's spec lacks something or contradicts itself."""


@dataclass(frozen=True)
class Description:
    """The checked spec of a robot."""

    spec: dict[str, Any]
    shapes: dict[str, tuple[tuple[int, ...], str]]  # observation: shape and dtype
    low: Any  # [A]
    high: Any  # [A]
    control_hz: float

    @staticmethod
    def of(spec: Any) -> Description:
        """Raises InvalidSpec."""
        try:
            plain = json.loads(json.dumps(spec, allow_nan=False, default=_plain))
            if not 0.0 < float(plain["control_hz"]) <= 2000.0:
                raise InvalidSpec(f"spec: control_hz is {plain['control_hz']}, expected a number above zero")
            if not isinstance(plain["name"], str):
                raise InvalidSpec("spec: name should be a text")
            shapes = {key: _shape(key, one) for key, one in plain["observation"].items()}
            limits = [_limits(part) for part in plain["action"]]
        except KeyError as error:
            raise InvalidSpec(f"spec: {error} is missing") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise error if isinstance(error, InvalidSpec) else InvalidSpec(f"spec: {error}") from error
        if not limits or not shapes:
            raise InvalidSpec("spec: `observation` and `action` need at least one entry")
        if len(json.dumps(plain)) > MAX_HEADER // 2:
            raise InvalidSpec("spec: it is larger than 32 KiB")
        low, high = (np.array([x for part in limits for x in part[side]], np.float32) for side in (0, 1))
        described = Description(plain, shapes, low, high, float(plain["control_hz"]))
        if described.num_bytes > MAX_BODY:
            raise InvalidSpec(
                f"spec: one observation has {described.num_bytes} bytes, but at most {MAX_BODY} are sent"
            )
        return described

    @property
    def num_bytes(self) -> int:
        """Size of one observation."""
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.shapes.values())

    def action_problem(self, action: Any) -> str | None:
        """Why an action must not reach the robot; None if it may."""
        if action.shape != self.low.shape or action.dtype != np.float32:
            return f"the action is {action.dtype}{list(action.shape)}, expected float32{list(self.low.shape)}"
        if not np.isfinite(action).all():
            return "the action is not finite"
        slack = _SLACK * (self.high - self.low)
        if (action < self.low - slack).any() or (action > self.high + slack).any():
            return f"the action {action.tolist()} is outside its limits"
        return None


def _plain(value: Any) -> Any:
    """numpy values as JSON."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be part of a spec")


def _shape(key: str, one: Any) -> tuple[tuple[int, ...], str]:
    shape, dtype = tuple(one["shape"]), one.get("dtype", "float32")
    if key in RESERVED:
        raise InvalidSpec(f"spec: the name '{key}' is reserved. Rename the observation")
    if not all(type(size) is int and size > 0 for size in shape) or not 1 <= len(shape) <= 3:
        raise InvalidSpec(f"spec: observation '{key}' has shape {list(shape)}, expected one to three sizes")
    if dtype not in _DTYPES:
        raise InvalidSpec(f"spec: observation '{key}' has dtype '{dtype}', expected {', '.join(_DTYPES)}")
    return shape, dtype


def _limits(part: Any) -> tuple[list[float], list[float]]:
    """low and high of each axis. One number stands for all axes, as in a config of Dovetail."""
    sides = [part["low"], part["high"]]
    axes = part.get("axes")
    lists = [one for one in (*sides, part.get("max_speed")) if isinstance(one, list)]
    if isinstance(axes, list):
        num_axes = len(axes)
    elif axes is None and part["kind"].startswith("ee_"):
        num_axes = _POSE_AXES.get(part["unit"], 0)
    else:
        num_axes = axes or max((len(one) for one in lists), default=1)
    low, high = ([float(x) for x in (side if isinstance(side, list) else [side] * num_axes)] for side in sides)
    if len(low) != num_axes or len(high) != num_axes or not 0 < num_axes <= 256:
        raise InvalidSpec(
            f"spec: action part '{part['name']}' has {num_axes} axes, {len(low)} low and {len(high)} high limits"
        )
    if not all(math.isfinite(a) and math.isfinite(b) and a < b for a, b in zip(low, high)):  # noqa: B905
        raise InvalidSpec(f"spec: action part '{part['name']}' needs finite limits with low below high")
    return low, high
