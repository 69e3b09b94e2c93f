"""The configured topics: what is read of each state message, and how an action becomes command messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.config.action_parts import action_parts
from dovetail.core.errors import ConfigError, did_you_mean, shown
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Array
from dovetail.robots.drivers.ros2.messages import MessageError, read_numbers, read_value, write_value
from dovetail.robots.drivers.ros2.settings import (
    VALUE_SIZES,
    CommandTopic,
    FieldConfig,
    Ros2Config,
    StateTopic,
    texts_of,
)

__all__ = ["CommandBuilder", "StateReader", "robot_spec"]


def robot_spec(config: Ros2Config) -> RobotSpec:
    """The spec, from the config alone. Raises ConfigError if topics and parts do not fit each other."""
    observation: dict[str, ArraySpec] = {}
    for topic in config.state:
        for key, size in StateReader(topic).sizes.items():
            if key in observation:
                raise ConfigError(f"two state topics have a field '{key}': rename one")
            observation[key] = ArraySpec(shape=(size,))
    if not observation:
        raise ConfigError("no state topic has fields: list the robot's observations under `state`")
    return RobotSpec(
        name=config.name,
        embodiment=config.embodiment or config.name,
        observation=observation,
        parts=action_parts(config.action),
        control_hz=config.control_hz,
    )


class StateReader:
    """Reads the observations in the messages of one topic."""

    def __init__(self, config: StateTopic) -> None:
        self.config = config
        self.sizes: dict[str, int] = {}  # of each observation
        self._indices: dict[str, Array] = {}
        self._lengths: dict[str, int] = {}  # of each list
        for key in config.fields:
            self._add(key, config.field(key))
        for attr, length in config.sizes.items():
            if attr not in self._lengths:
                raise ConfigError(f"topic {config.topic}: `sizes` names '{attr}', which no field reads as a list")
            if length < self._lengths[attr]:
                raise ConfigError(f"topic {config.topic}: a slice of '{attr}' ends after its size {length}")
            self._lengths[attr] = length
        for attr in config.expect:
            _check_constant(config.topic, config.type_name, attr)

    def read(self, message: Any) -> dict[str, Array]:
        """Observations, float32 [N] each. Raises MessageError: a missing or invalid value is never replaced."""
        for attr, expected in self.config.expect.items():
            found = _plain(read_value(message, attr))
            if found != expected:
                raise MessageError(f"'{attr}' is {shown(repr(found))} instead of {expected!r}")
        if self.config.type_name == "std_msgs/msg/Float32MultiArray" and message.layout.data_offset:
            raise MessageError(f"its data starts at {message.layout.data_offset} instead of 0")
        values: dict[str, Array] = {}
        for key, indices in self._indices.items():
            attr = self.config.field(key).attr
            numbers = read_numbers(message, attr)
            length = self._lengths.get(attr, len(numbers))
            if numbers.shape != (length,):
                raise MessageError(f"'{attr}' has {numbers.size} numbers instead of {length}")
            with np.errstate(over="ignore"):
                chosen = numbers[indices].astype(np.float32)
            if not np.isfinite(chosen).all():
                raise MessageError(f"'{attr}' has a number that is not finite: {numbers.tolist()}")
            values[key] = chosen
        return values

    def _add(self, key: str, field: FieldConfig) -> None:
        where = f"field '{key}' of topic {self.config.topic}"
        total = _num_values(where, self.config.type_name, field.attr)
        if total:
            spans = field.spans or ((0, total),)
            if max(end for _, end in spans) > total or field.size not in (None, total):
                raise ConfigError(f"{where}: '{field.attr}' has {total} numbers")
        else:
            spans = field.spans or (((0, field.size),) if field.size else ())
            if not spans:
                raise ConfigError(f"{where}: '{field.attr}' is a list. Add `slice: [first, end]` or `size`")
            end = max(end for _, end in spans)
            self._lengths[field.attr] = max(end, self._lengths.get(field.attr, 0))
        self._indices[key] = np.concatenate([np.arange(*span) for span in spans])
        self.sizes[key] = len(self._indices[key])


class CommandBuilder:
    """Fills the messages of one command topic from an action vector."""

    def __init__(self, config: CommandTopic, spec: RobotSpec) -> None:
        self.config = config
        self.parts: list[ActionPart] = []
        self._targets: list[tuple[str, Array, slice]] = []  # attribute, indices in it, axes of the action
        covered: dict[str, list[int]] = {}
        for name in config.fields:
            part, field = _part(config, spec, name), config.field(name)
            where = f"field '{name}' of topic {config.topic}"
            total = _num_values(where, config.type_name, field.attr)
            spans = field.spans or ((0, total or field.size or part.num_axes),)
            indices = np.concatenate([np.arange(*span) for span in spans])
            expected = _message_size(where, part, field.attr)
            if len(indices) != expected or (total and indices.max() >= total):
                raise ConfigError(
                    f"{where}: part '{name}' gives {expected} numbers, but the field has {len(indices)}"
                )
            covered.setdefault(field.attr, []).extend(indices.tolist())
            self.parts.append(part)
            self._targets.append((field.attr, indices, spec.slice_of(name)))
        for attr, used in covered.items():
            if sorted(used) != list(range(len(used))):
                raise ConfigError(
                    f"topic {config.topic}: the slices of '{attr}' must cover 0 to {max(used) + 1} once each, "
                    f"but they are {sorted(used)}"
                )
        for attr in config.constants:
            _check_constant(config.topic, config.type_name, attr)
        self._lengths = {attr: len(used) for attr, used in covered.items()}

    def fill(self, message: Any, action: Array) -> Any:
        """Write constants and targets into a blank message. `action` float32 [A]."""
        for attr, value in self.config.constants.items():
            write_value(message, attr, value)
        arrays = {attr: np.zeros(length) for attr, length in self._lengths.items()}
        for attr, indices, axes in self._targets:
            values = action[axes].astype(np.float64)
            arrays[attr][indices] = _with_quaternion(values) if attr == "pose" else values
        for attr, array in arrays.items():
            _write_numbers(message, attr, array, self.config.type_name)
        return message

    def read(self, message: Any) -> dict[str, Array]:
        """The targets of each part in a command message: the reverse of `fill`. Raises MessageError."""
        targets: dict[str, Array] = {}
        for part, (attr, indices, _) in zip(self.parts, self._targets, strict=True):
            numbers = read_numbers(message, attr)
            if len(numbers) != self._lengths[attr] or not np.isfinite(numbers).all():
                raise MessageError(f"'{attr}' has invalid numbers: {numbers.tolist()}")
            targets[part.name] = numbers[indices].astype(np.float32)
        return targets


def check_commands(builders: Sequence[CommandBuilder], spec: RobotSpec) -> None:
    """Each part must be commanded by one topic."""
    names = [part.name for builder in builders for part in builder.parts]
    for part in spec.parts:
        if names.count(part.name) != 1:
            raise ConfigError(
                f"action part '{part.name}' is in {names.count(part.name)} command topics: put it into exactly one"
            )


def _part(config: CommandTopic, spec: RobotSpec, name: str) -> ActionPart:
    names = [part.name for part in spec.parts]
    if name not in names:
        raise ConfigError(f"topic {config.topic}: there is no action part '{name}'.{did_you_mean(name, names)}")
    return spec.part(name)


def _num_values(where: str, type_name: str, attr: str) -> int:
    known: Mapping[str, int] = VALUE_SIZES[type_name]
    if not known:
        advice = "read it with a camera of type ros_image" if "Image" in type_name else "name it under `expect`"
        raise ConfigError(f"{where}: a {type_name} has no numbers: {advice}")
    if attr not in known:
        raise ConfigError(f"{where}: a {type_name} has no numbers '{attr}'.{did_you_mean(attr, known)}")
    return known[attr]


def _check_constant(topic: str, type_name: str, attr: str) -> None:
    known = [*texts_of(type_name), *(name for name, size in VALUE_SIZES[type_name].items() if size == 1)]
    if attr not in known:
        raise ConfigError(f"topic {topic}: '{attr}' cannot be compared or set.{did_you_mean(attr, known)}")


def _message_size(where: str, part: ActionPart, attr: str) -> int:
    """The numbers that a part has in a message."""
    if part.kind not in ("ee_target", "joint_target", "gripper") and not part.is_velocity:
        raise ConfigError(f"{where}: parts of kind {part.kind} cannot be sent on a topic")
    if part.kind == "ee_target" and part.frame != "base":
        raise ConfigError(f"{where}: a pose in frame '{part.frame}' cannot be sent. Use frame: base")
    if attr == "pose":
        if part.kind != "ee_target" or part.num_axes != 6:
            raise ConfigError(f"{where}: 'pose' needs a part of kind ee_target with unit m+rad")
        return 7
    if part.kind == "ee_target" and part.num_axes == 6:
        raise ConfigError(f"{where}: send an ee_target with unit m+rad as attr 'pose'")
    return part.num_axes


def _write_numbers(message: Any, attr: str, array: Array, type_name: str) -> None:
    if attr == "pose":
        _write_numbers(message, "pose.position", array[:3], type_name)
        _write_numbers(message, "pose.orientation", array[3:], type_name)
    elif attr == "pose.position":
        for axis, value in zip("xyz", array.tolist(), strict=True):
            write_value(message, f"{attr}.{axis}", value)
    elif attr == "pose.orientation":
        for axis, value in zip("wxyz", array.tolist(), strict=True):
            write_value(message, f"{attr}.{axis}", value)
    elif VALUE_SIZES[type_name][attr] == 0:
        write_value(message, attr, array.astype(np.float32 if "Float32" in type_name else np.float64))
    else:
        write_value(message, attr, _scalar(float(array[0]), type_name))


def _scalar(value: float, type_name: str) -> bool | int | float:
    if type_name.endswith("/Bool"):
        return value >= 0.5
    return round(value) if "/Int" in type_name else value


def _with_quaternion(target: Array) -> Array:
    """x y z and a rotation vector, to x y z qw qx qy qz."""
    vector = target[3:]
    angle = float(np.linalg.norm(vector))
    scale = 0.5 if angle < 1e-9 else np.sin(angle / 2) / angle
    return np.concatenate((target[:3], [np.cos(angle / 2)], scale * vector))


def _plain(value: Any) -> Any:
    """Lists of text as tuples, numpy scalars as numbers: as in a config."""
    if isinstance(value, list):
        return tuple(value)
    return value.item() if isinstance(value, np.generic) else value
