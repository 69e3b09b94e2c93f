"""Messages between two machines: named arrays and a few plain values, in length-prefixed frames over TCP.

    "DVTL" | header bytes u32 | body bytes u64 | header: JSON | body: the arrays' bytes, one after another

Received data is never executed (no pickle), and sizes are checked before memory is allocated: the header must be small,
and the body must have exactly the size of the header's arrays, and at most the size that the reader allows. All numbers
are little-endian.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from dovetail.core.bfloat16 import BFLOAT16, dtype_name
from dovetail.core.errors import PolicyError, shown
from dovetail.core.types import Array

__all__ = [
    "DTYPES",
    "MAX_ARRAYS",
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
_NOT_A_MESSAGE = "the received data is not a Dovetail message"
PREFIX = struct.Struct("<4sIQ")
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
} | {"bfloat16": BFLOAT16}


class WireError(PolicyError):
    """A message is malformed, incomplete or unexpected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The kind of the message, its plain values and its arrays by name."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def expect(self, kind: str) -> Message:
        """Return self if it has this kind. Otherwise raise WireError, with the other side's text if it is an error."""
        if self.kind == "error":
            text = self.fields.get("message")
            shown = text[:500] if isinstance(text, str) else "the other side reports an error without a text"
            raise WireError(" ".join("".join(c if c.isprintable() else " " for c in shown).split()))
        if self.kind != kind:
            raise WireError(f"expected message '{kind}', got {self.kind[:20]!r}")
        return self


def encode(message: Message) -> bytes:
    """A message as a frame. Arrays are sent in C order."""
    descriptions, blobs = [], []
    for name, array in message.arrays.items():
        dtype = dtype_name(array.dtype)
        if dtype not in DTYPES:
            raise WireError(f"array '{name}' is {array.dtype}, but only plain numbers can be sent")
        descriptions.append({"name": name, "dtype": dtype, "shape": list(array.shape)})
        blobs.append(array.astype(DTYPES[dtype], copy=False).tobytes())
    content = {"kind": message.kind, "fields": dict(message.fields), "arrays": descriptions}
    header = json.dumps(content, allow_nan=False).encode()
    size = sum(map(len, blobs))
    if len(header) > MAX_HEADER or size > MAX_BODY or len(descriptions) > MAX_ARRAYS:
        raise WireError(f"a message of {len(header)} + {size} bytes is larger than the maximum")
    return b"".join((PREFIX.pack(_MAGIC, len(header), size), header, *blobs))


def decode(frame: bytes) -> Message:
    """The message of a frame."""
    view = memoryview(frame)
    header_size, body_size = read_sizes(bytes(view[: PREFIX.size]), MAX_BODY)
    start = PREFIX.size + header_size
    if len(view) != start + body_size:
        raise WireError(f"a frame of {start + body_size} bytes has {len(view)} bytes")
    header = Header.parse(bytes(view[PREFIX.size : start]), body_size)
    return header.message(bytearray(view[start:]))


@dataclass(frozen=True, slots=True)
class Header:
    """The checked JSON part of a frame."""

    kind: str
    fields: dict[str, Any]
    arrays: list[tuple[str, np.dtype[Any], tuple[int, ...]]]

    @staticmethod
    def parse(data: bytes, body_size: int) -> Header:
        """Raise WireError unless the arrays have exactly the size of the body."""
        try:
            content = json.loads(data, parse_constant=_no_constant)
            kind, fields, descriptions = _text(content["kind"]), content["fields"], content["arrays"]
            arrays = [(_text(a["name"]), DTYPES[_text(a["dtype"])], _shape(a["shape"])) for a in descriptions]
            if (
                not isinstance(fields, dict)
                or len(arrays) > MAX_ARRAYS
                or len({a[0] for a in arrays}) != len(arrays)
            ):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WireError(_NOT_A_MESSAGE) from error
        if sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in arrays) != body_size:
            raise WireError("the arrays of a message do not have the size of its body")
        return Header(kind, fields, arrays)

    def message(self, body: bytearray) -> Message:
        arrays: dict[str, Array] = {}
        start = 0
        for name, dtype, shape in self.arrays:
            count = math.prod(shape)
            data = np.frombuffer(body, dtype, count, offset=start) if count else np.empty(0, dtype)
            if dtype == np.bool_ and count and data.view(np.uint8).max() > 1:
                raise WireError(f"bool array '{name}' contains other bytes than 0 and 1")
            data = np.require(data, dtype.newbyteorder("="), "A")  # alignment: the array before may have any size
            arrays[name] = data.reshape(shape)
            start += count * dtype.itemsize
        return Message(kind=self.kind, fields=self.fields, arrays=arrays)


def read_sizes(prefix: bytes, max_body: int) -> tuple[int, int]:
    """The sizes of header and body in bytes. Raise WireError if they are too large."""
    if len(prefix) != PREFIX.size:
        raise WireError("incomplete frame")
    magic, header_size, body_size = PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise WireError(_NOT_A_MESSAGE)
    if header_size > MAX_HEADER or body_size > max_body:
        raise WireError(f"a message of {header_size} + {body_size} bytes is larger than allowed")
    return header_size, body_size


def _shape(shape: Any) -> tuple[int, ...]:
    """At most eight non-negative integers with a limited product."""
    if not (isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)):
        raise TypeError
    if math.prod(max(n, 1) for n in shape) > MAX_BODY:
        raise ValueError
    return tuple(shape)


def checked_int(value: Any, *, low: int, high: int = 1 << 20) -> int:
    """An integer of a message. Raise ValueError if it is anything else or out of range."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{shown(value, max_chars=20)} is not an integer from {low} to {high}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
