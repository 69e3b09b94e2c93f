"""Classes that describe ROS 2 message types to Cyclone DDS, made from rosbags' definitions.

The IDL compiler in the wheel of cyclonedds 11.0.1 crashes, so the classes are made at run time. Their samples hold
serialized bytes: Cyclone DDS' own serializer in Python is not used, which takes 20 times as long for an image.
"""

from __future__ import annotations

import threading
from typing import Any

from dovetail.robots.drivers.ros2.messages import Codec

__all__ = ["idl_class", "new_sample"]

_lock = threading.Lock()
_classes: dict[str, Any] = {}
_raw_classes: dict[str, Any] = {}


def idl_class(type_name: str, codec: Codec) -> Any:
    """The class of a type whose samples hold bytes."""
    with _lock:
        if type_name not in _raw_classes:
            made = _make(type_name, codec)
            made.serialize = _serialize
            made.deserialize = made.deserialize_key = classmethod(new_sample)
            _raw_classes[type_name] = made
        return _raw_classes[type_name]


def new_sample(kind: Any, payload: bytes, /, **_: Any) -> Any:
    """A sample of such a class."""
    sample = kind.__new__(kind)
    sample.payload = payload
    return sample


def _serialize(sample: Any, buffer: Any = None, endianness: Any = None, use_version_2: Any = None) -> bytes:
    payload: bytes = sample.payload
    return payload


def _make(type_name: str, codec: Codec) -> Any:
    from cyclonedds.idl import make_idl_struct

    package, _, name = type_name.split("/")
    fields = {field: _idl_type(*kind, codec) for field, kind in codec.fields(type_name)}
    return make_idl_struct(f"{name}_", f"{package}::msg::dds_::{name}_", fields)


def _idl_type(kind: int, what: Any, codec: Codec) -> Any:
    from cyclonedds.idl import types
    from rosbags.interfaces import Nodetype

    if kind == Nodetype.NAME:
        if what not in _classes:
            _classes[what] = _make(what, codec)
        return _classes[what]
    if kind == Nodetype.SEQUENCE:
        element: Any = what[0]
        sequence: Any = types.sequence
        return sequence[_idl_type(element[0], element[1], codec)]
    if kind == Nodetype.BASE:
        base = {
            "bool": bool, "string": str, "uint8": types.uint8, "int32": types.int32, "uint32": types.uint32,
            "int64": types.int64, "float32": types.float32, "float64": types.float64,
        }  # fmt: skip
        return base[what[0]]
    raise NotImplementedError(f"field kind {kind} of ROS 2 messages")
