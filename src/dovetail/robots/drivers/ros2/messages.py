"""Encode and decode ROS 2 messages: rosbags' CDR. Its bytes equal those that ROS 2 nodes exchange over DDS.

    codec = Codec("humble")
    message = codec.blank("sensor_msgs/msg/JointState")
    message.position = np.zeros(12)
    payload = codec.encode(message, "sensor_msgs/msg/JointState")
    codec.decode(payload, "sensor_msgs/msg/JointState").position

A received payload may have any content: `decode` raises MessageError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from dovetail.core.errors import RobotError, UsageError, one_line
from dovetail.core.types import Array

__all__ = ["Codec", "MessageError", "read_numbers", "read_value", "write_value"]

_HEADERS = (b"\x00\x00", b"\x00\x01")  # plain CDR, big and little endian
_DEFAULTS: dict[str, Any] = {"string": "", "bool": False, "float32": 0.0, "float64": 0.0}


class MessageError(RobotError):
    """A message that cannot be read."""


class Codec:
    """The message types of one ROS distribution."""

    def __init__(self, distro: str = "humble") -> None:
        """Loads rosbags."""
        try:
            from rosbags.serde import SerdeError
            from rosbags.typesys import Stores, get_typestore
        except ImportError as error:
            raise UsageError("ROS 2 needs rosbags and cyclonedds: pip install 'dovetail[ros2]'") from error
        self._types = get_typestore(Stores(f"ros2_{distro}"))
        self._refusals = (
            SerdeError,
            ValueError,
            IndexError,
            AssertionError,
            struct.error,
            OverflowError,
            MemoryError,
        )

    def decode(self, payload: bytes, type_name: str) -> Any:
        """Raises MessageError for bytes that are no such message."""
        if payload[:2] not in _HEADERS:
            raise MessageError(f"no {type_name}: it starts with {payload[:4].hex(' ') or 'nothing'}, not with CDR")
        try:
            return self._types.deserialize_cdr(payload, type_name)
        except self._refusals as error:
            raise MessageError(f"no {type_name} in {len(payload)} bytes: {one_line(error)}") from error

    def encode(self, message: Any, type_name: str) -> bytes:
        return bytes(self._types.serialize_cdr(message, type_name))

    def blank(self, type_name: str) -> Any:
        """A message of zeros, empty lists and empty texts."""
        values = {name: self._blank_field(*kind) for name, kind in self._types.fielddefs[type_name][1]}
        return self._types.types[type_name](**values)

    def fields(self, type_name: str) -> list[tuple[str, tuple[int, Any]]]:
        """Names and kinds of the fields, as rosbags describes them."""
        return [(name, (int(kind[0]), kind[1])) for name, kind in self._types.fielddefs[type_name][1]]

    def _blank_field(self, kind: int, what: Any) -> Any:
        from rosbags.interfaces import Nodetype

        if kind == Nodetype.NAME:
            return self.blank(what)
        if kind == Nodetype.BASE:
            return _DEFAULTS.get(what[0], 0)
        element_kind, element = what[0]
        if element_kind == Nodetype.BASE and element[0] != "string":
            return np.zeros(0, element[0])
        return []


def read_value(message: Any, path: str) -> Any:
    """An attribute by its dotted path. The path was checked against the type."""
    return attrgetter(path)(message)


def write_value(message: Any, path: str, value: Any) -> None:
    parent, _, name = path.rpartition(".")
    target = attrgetter(parent)(message) if parent else message
    setattr(target, name, list(value) if isinstance(value, tuple) else value)


def _pose(pose: Any) -> Sequence[float]:
    return (*_position(pose.position), *_orientation(pose.orientation))


def _position(position: Any) -> Sequence[float]:
    return position.x, position.y, position.z


def _orientation(orientation: Any) -> Sequence[float]:
    return orientation.w, orientation.x, orientation.y, orientation.z


_STRUCTURES: dict[str, Callable[[Any], Sequence[float]]] = {
    "pose": _pose,
    "pose.position": _position,
    "pose.orientation": _orientation,
}


def read_numbers(message: Any, path: str) -> Array:
    """The numbers of an attribute, float64 [N]. Poses are x y z qw qx qy qz."""
    value = read_value(message, path)
    if path in _STRUCTURES:
        value = _STRUCTURES[path](value)
    return np.atleast_1d(np.asarray(value, np.float64))
