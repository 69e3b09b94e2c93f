"""Messages between two machines: named arrays and a few plain values, in length-prefixed frames over TCP.

    "DVTL" | header bytes u32 | body bytes u64 | header: JSON | body: the arrays' bytes, one after another

Nothing that comes in is ever executed (no pickle), and nothing is reserved before its size was checked: the header
must be small, the body must be exactly what the header's shapes come to, and no more than the reader allows.
All numbers are little-endian. A frame that breaks a rule is refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from dovetail.core.errors import PolicyError
from dovetail.core.types import Array

__all__ = [
    "MAX_BODY",
    "MAX_HEADER",
    "PREFIX",
    "Header",
    "Message",
    "WireError",
    "checked_int",
    "decode",
    "encode",
    "read_sizes",
]

MAX_HEADER = 1 << 16
MAX_BODY = 1 << 28
MAX_ARRAYS = 256
_MAGIC = b"DVTL"
PREFIX = struct.Struct("<4sIQ")
_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}


class WireError(PolicyError):
    """What came is not a message, or not a checked_int one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is said (`kind`), the plain values that belong to it, and arrays by name."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def expect(self, kind: str) -> Message:
        """Itself, if it is what should have come; a WireError with what the other side says, if that is an error."""
        if self.kind == "error":
            said = "".join(c if c.isprintable() else " " for c in str(self.fields.get("message"))[:500])
            raise WireError(" ".join(said.split()))
        if self.kind != kind:
            raise WireError(f"said {self.kind[:20]!r} where '{kind}' was expected")
        return self


def encode(message: Message) -> bytes:
    """A message as a frame. Arrays may lie in memory as they like; they arrive in C order."""
    described, blobs = [], []
    for name, array in message.arrays.items():
        if array.dtype.name not in _DTYPES:
            raise WireError(f"array '{name}' is {array.dtype}: only plain numbers are sent")
        described.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        blobs.append(array.astype(_DTYPES[array.dtype.name], copy=False).tobytes())
    content = {"kind": message.kind, "fields": dict(message.fields), "arrays": described}
    header = json.dumps(content, allow_nan=False).encode()
    size = sum(map(len, blobs))
    if len(header) > MAX_HEADER or size > MAX_BODY or len(described) > MAX_ARRAYS:
        raise WireError(f"a message of {len(header)} + {size} bytes is more than may be sent at once")
    return b"".join((PREFIX.pack(_MAGIC, len(header), size), header, *blobs))


def decode(frame: bytes) -> Message:
    """What `encode` made, or a WireError."""
    view = memoryview(frame)
    header_size, body_size = read_sizes(bytes(view[: PREFIX.size]), MAX_BODY)
    start = PREFIX.size + header_size
    if len(view) != start + body_size:
        raise WireError(f"a frame of {start + body_size} bytes came with {len(view)}")
    header = Header.parse(bytes(view[PREFIX.size : start]), body_size)
    return header.message(bytearray(view[start:]))


@dataclass(frozen=True, slots=True)
class Header:
    """The JSON part of a frame, checked."""

    kind: str
    fields: dict[str, Any]
    arrays: list[tuple[str, np.dtype[Any], tuple[int, ...]]]

    @staticmethod
    def parse(data: bytes, body_size: int) -> Header:
        """A header whose arrays come to exactly the body's size."""
        try:
            content = json.loads(data, parse_constant=_no_constant)
            kind, fields, described = content["kind"], content["fields"], content["arrays"]
            arrays = [(_text(a["name"]), _DTYPES[_text(a["dtype"])], _shape(a["shape"])) for a in described]
            well_formed = isinstance(fields, dict) and len(arrays) <= MAX_ARRAYS
            well_formed = well_formed and len({name for name, _, _ in arrays}) == len(arrays)
            kind = _text(kind)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WireError("what came is not a message of ours") from error
        if not well_formed:
            raise WireError("what came is not a message of ours")
        if sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in arrays) != body_size:
            raise WireError("a message's arrays do not come to the size of its body")
        return Header(kind, fields, arrays)

    def message(self, body: bytearray) -> Message:
        arrays: dict[str, Array] = {}
        start = 0
        for name, dtype, shape in self.arrays:
            count = math.prod(shape)
            data = np.frombuffer(body, dtype, count, offset=start) if count else np.empty(0, dtype)
            if dtype == np.bool_ and count and data.view(np.uint8).max() > 1:
                raise WireError(f"array '{name}' holds what is neither true nor false")
            data = np.require(data, dtype.newbyteorder("="), "A")  # the array before it may end at an odd byte
            arrays[name] = data.reshape(shape)
            start += count * dtype.itemsize
        return Message(kind=self.kind, fields=self.fields, arrays=arrays)


def read_sizes(prefix: bytes, max_body: int) -> tuple[int, int]:
    """Bytes of header and body, if they are within bounds."""
    if len(prefix) != PREFIX.size:
        raise WireError("a frame is cut off")
    magic, header_size, body_size = PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise WireError("what came is not a message of ours")
    if header_size > MAX_HEADER or body_size > max_body:
        raise WireError(f"a message of {header_size} + {body_size} bytes is more than is taken at once")
    return header_size, body_size


def _shape(shape: Any) -> tuple[int, ...]:
    """At most eight checked_int numbers, none negative, and no product of them that is out of all proportion."""
    if not (isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)):
        raise TypeError
    if math.prod(max(n, 1) for n in shape) > MAX_BODY:
        raise ValueError
    return tuple(shape)


def checked_int(value: Any, *, low: int, high: int = 1 << 20) -> int:
    """A number out of a message, if it is one; a ValueError otherwise."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!s:.20} is not a checked_int number from {low} to {high}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
