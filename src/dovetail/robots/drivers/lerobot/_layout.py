"""How the arrays of a robot are made of LeRobot's named numbers. Computed from the settings, without the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.config.action_parts import action_parts
from dovetail.core.errors import ConfigError, shown
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.robots.drivers.lerobot.settings import SO_ARMS, LeRobotConfig, so_action, so_observation, so_units
from dovetail.robots.drivers.lerobot.units import Conversion, LinearUnit, conversion, si_unit

__all__ = ["Layout", "layout"]

_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Spec and conversions: ours = scale * theirs + offset."""

    spec: RobotSpec
    action_keys: tuple[str, ...]
    action_scale: _Vector
    action_offset: _Vector
    value_keys: tuple[str, ...]  # of all observations that are no images, in order
    value_scale: _Vector
    value_offset: _Vector
    slices: Mapping[str, slice]  # of each observation in these values
    cameras: Mapping[str, tuple[int, int, int]]
    holds: Mapping[str, list[Any]]  # for the bridge: how each action key stands still

    def check(self, features: Mapping[str, Any], robot: str) -> str | None:
        """Compare with the features of the device. Returns what does not fit, or None."""
        action, observation = features.get("action"), features.get("observation")
        if not isinstance(action, dict) or not isinstance(observation, dict):
            return f"the bridge of '{robot}' sent no features"
        if missing := sorted(set(self.action_keys) - set(action)):
            return f"'{robot}' has no action {', '.join(missing)}. It has {_listed(action)}"
        if missing := sorted(set(action) - set(self.action_keys)):
            return f"'{robot}' needs the actions {_listed(missing)} too. Add them to robot.action"
        if missing := sorted(set(self.value_keys) - set(observation)):
            return f"'{robot}' has no observation {', '.join(missing)}. It has {_listed(observation)}"
        for name, shape in self.cameras.items():
            if observation.get(name) != list(shape):
                return f"camera '{name}' of '{robot}' is {shown(observation.get(name))}, but the config says {list(shape)}"
        unused = [name for name, kind in observation.items() if kind != "float" and name not in self.cameras]
        return f"'{robot}' has cameras {_listed(unused)} that config.cameras does not name" if unused else None


def _listed(names: Iterable[str]) -> str:
    """Names that the bridge sent, as a short text."""
    return shown(", ".join(names), max_chars=500)


def layout(config: LeRobotConfig) -> Layout:
    """Raises ConfigError if the settings are incomplete."""
    is_so = config.robot in SO_ARMS and not config.action
    if is_so and config.config.get("use_degrees", True) is not True:
        raise ConfigError(
            f"robot.config.use_degrees is off: '{config.robot}' then reports -100..100 without a unit. Set it to true, "
            "or give robot.action, robot.observation and robot.units with {scale, offset}"
        )
    if not is_so and not (config.action and config.observation):
        raise ConfigError(
            f"robot '{config.robot}' needs `action`, `observation` and `units`: see docs/robots/lerobot.md"
        )
    parts = action_parts(so_action() if is_so else config.action)
    names = so_observation() | dict(config.observation) if is_so else dict(config.observation)
    units = so_units() | dict(config.units) if is_so else dict(config.units)
    axes = [axis for part in parts for axis in part.names]
    keys = {axis: config.keys.get(axis, f"{axis}.pos") for axis in axes}
    if unknown := sorted(set(config.keys) - set(axes)):
        raise ConfigError(f"robot.keys names the axis '{unknown[0]}', which no action part has")
    moves = [_conversion(units, keys[axis], part.unit) for part in parts for axis in part.names]
    slices, value_keys, values = _observations(names, parts, units)
    cameras = _cameras(config)
    spec = RobotSpec(
        name=config.robot,
        embodiment=config.robot,
        observation={
            **{key: ArraySpec(shape=(len(names[key]),), names=names[key]) for key in names},
            **{
                key: ArraySpec(shape=shape, dtype="uint8" if shape[2] == 3 else "uint16")
                for key, shape in cameras.items()
            },
        },
        parts=parts,
        control_hz=config.control_hz,
    )
    action_scale, action_offset = _arrays(moves)
    value_scale, value_offset = _arrays(values)
    return Layout(
        spec=spec,
        action_keys=tuple(keys[axis] for axis in axes),
        action_scale=action_scale,
        action_offset=action_offset,
        value_keys=value_keys,
        value_scale=value_scale,
        value_offset=value_offset,
        slices=slices,
        cameras=cameras,
        holds={
            keys[axis]: _hold(part, column, names, moves[axes.index(axis)], units=units, key=keys[axis])
            for part in parts
            for column, axis in enumerate(part.names)
        },
    )


def _conversion(units: Mapping[str, str | LinearUnit], key: str, ours: str | None) -> Conversion:
    if key not in units:
        raise ConfigError(f"robot.units has no unit of '{key}'. Say in what unit LeRobot gives it, such as deg")
    theirs = units[key]
    if ours is None:
        ours = "1" if isinstance(theirs, LinearUnit) else si_unit(theirs, key=key)
    if "+" in ours:
        raise ConfigError(f"the part of '{key}' has the unit {ours}: give each of its axes a part of its own")
    return conversion(theirs, ours, key=key)


def _observations(
    names: Mapping[str, tuple[str, ...]], parts: tuple[ActionPart, ...], units: Mapping[str, str | LinearUnit]
) -> tuple[dict[str, slice], tuple[str, ...], list[Conversion]]:
    """Columns that measure a part have its unit; others the SI unit."""
    slices: dict[str, slice] = {}
    keys: list[str] = []
    found: list[Conversion] = []
    for name, columns in names.items():
        ours: list[str | None] = [None] * len(columns)
        for part in parts:
            if part.measured_key == name:
                for at in range(*part.measured_slice.indices(len(columns))):
                    ours[at] = part.unit
        slices[name] = slice(len(keys), len(keys) + len(columns))
        keys += columns
        found += [_conversion(units, key, unit) for key, unit in zip(columns, ours, strict=True)]
    return slices, tuple(keys), found


def _cameras(config: LeRobotConfig) -> dict[str, tuple[int, int, int]]:
    cameras = config.config.get("cameras") or {}
    if not isinstance(cameras, dict):
        raise ConfigError("robot.config.cameras should map names to cameras")
    found = {}
    for name, camera in cameras.items():
        size = config.images.get(name)
        if size is None and isinstance(camera, dict) and {"height", "width"} <= set(camera):
            size = (int(camera["height"]), int(camera["width"]))
        if size is None:
            raise ConfigError(f"robot.config.cameras.{name} needs height and width, or set robot.images.{name}")
        if camera.get("use_rgb", True):
            found[name] = (*size, 3)
        if camera.get("use_depth", False):
            found[f"{name}_depth"] = (*size, 1)
    if unknown := sorted(set(config.images) - set(cameras)):
        raise ConfigError(f"robot.images names '{unknown[0]}', which is no camera of robot.config.cameras")
    return found


def _hold(
    part: ActionPart,
    column: int,
    names: Mapping[str, tuple[str, ...]],
    unit: Conversion,
    *,
    units: Mapping[str, str | LinearUnit],
    key: str,
) -> list[Any]:
    """For the bridge, in LeRobot's units. It sends a measured number back as a target."""
    if isinstance(part.hold, tuple):
        return ["value", (part.hold[column] - unit.offset) / unit.scale]
    if part.hold == "zero":
        return ["value", (0.0 - unit.offset) / unit.scale]
    measured = names[part.measured_key][part.measured_slice][column] if part.measured else None
    if measured is not None and units[measured] != units[key]:
        raise ConfigError(f"robot.units: '{key}' and '{measured}', which measures it, need the same unit")
    return [part.hold, measured]


def _arrays(conversions: list[Conversion]) -> tuple[_Vector, _Vector]:
    return np.array([one.scale for one in conversions]), np.array([one.offset for one in conversions])
