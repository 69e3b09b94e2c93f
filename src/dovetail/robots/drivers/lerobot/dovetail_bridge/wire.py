"""Messages between a client and the bridge: a JSON header and raw arrays. Nothing is ever unpickled.

4 bytes   magic
4 bytes   length of the header, big-endian
8 bytes   length of all arrays together
header    JSON: {"type": ..., "arrays": [[name, dtype, shape], ...], ...}
arrays    C-order bytes, one after the other
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_ARRAYS",
    "MAX_HEADER",
    "Array",
    "Message",
    "WireError",
    "decode_header",
    "encode",
    "receive",
    "send",
]

Array = npt.NDArray[Any]
MAGIC = b"DVB1"
_PREFIX = struct.Struct("!4sIQ")
MAX_HEADER = 1 << 20
MAX_ARRAYS = 1 << 28
_MAX_NUM_ARRAYS = 256
_DTYPES = ("|u1", "<u2", "<f4", "<f8")


class WireError(Exception):
    """A message that does not follow the format, or a connection that ended inside a message."""


class Message:
    """One message: `type`, the other entries of its header, and its arrays."""

    __slots__ = ("arrays", "fields", "type")

    def __init__(
        self, type_: str, fields: Mapping[str, Any] | None = None, arrays: Mapping[str, Array] | None = None
    ) -> None:
        self.type = type_
        self.fields: dict[str, Any] = dict(fields or {})
        self.arrays: dict[str, Array] = dict(arrays or {})


def encode(message: Message) -> list[bytes | memoryview]:
    """The message as buffers to write one after the other. Arrays are not copied if they are contiguous."""
    layout, bodies = [], []
    for name, value in message.arrays.items():
        array = np.ascontiguousarray(value)
        if array.dtype.str not in _DTYPES:
            raise WireError(f"array '{name}' has dtype {array.dtype.str}, expected one of {', '.join(_DTYPES)}")
        layout.append([name, array.dtype.str, list(value.shape)])
        if array.size:
            bodies.append(_bytes(array))
    header = json.dumps({**message.fields, "type": message.type, "arrays": layout}, allow_nan=False).encode()
    size = sum(body.nbytes for body in bodies)
    if len(header) > MAX_HEADER or size > MAX_ARRAYS:
        raise WireError(f"a message of {len(header)} + {size} bytes is too large")
    return [_PREFIX.pack(MAGIC, len(header), size) + header, *bodies]


def send(link: socket.socket, message: Message) -> None:
    for part in encode(message):
        link.sendall(part)


def receive(
    link: socket.socket,
    *,
    deadline_s: float | None = None,
    max_header: int = MAX_HEADER,
    max_arrays: int = MAX_ARRAYS,
    buffer_for: Callable[[str, tuple[int, ...], str], Array | None] | None = None,
) -> Message | None:
    """Read one message. None: the other side closed the connection between two messages.

    `deadline_s` is a time of `time.monotonic`. `buffer_for(name, shape, dtype)` may return an array to read into, which
    saves a copy of a camera's frame.
    """
    prefix = bytearray(_PREFIX.size)
    if not _fill(link, memoryview(prefix), deadline_s, may_end=True):
        return None
    magic, header_size, size = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise WireError(f"expected a message of the bridge, got the bytes {bytes(magic)!r}")
    if header_size > max_header or size > max_arrays:
        raise WireError(f"a message announces {header_size} + {size} bytes, more than allowed")
    raw = bytearray(header_size)
    _fill(link, memoryview(raw), deadline_s)
    message, layout = decode_header(bytes(raw), size)
    for name, dtype, shape in layout:
        buffer = buffer_for(name, shape, dtype) if buffer_for is not None else None
        array = np.empty(shape, np.dtype(dtype)) if buffer is None else buffer
        if array.shape != shape or array.dtype != np.dtype(dtype) or not array.flags.c_contiguous:
            raise WireError(f"array '{name}' is {dtype}{list(shape)}, which does not fit its buffer")
        if array.size:
            _fill(link, _bytes(array), deadline_s)
        message.arrays[name] = array
    return message


def decode_header(raw: bytes, size: int) -> tuple[Message, list[tuple[str, str, tuple[int, ...]]]]:
    """The message without its arrays, and their layout: name, dtype, shape."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a header is not JSON: {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise WireError("a header is not a JSON object with a `type`")
    entries = fields.pop("arrays", None)
    if not isinstance(entries, list) or len(entries) > _MAX_NUM_ARRAYS:
        raise WireError("a header has no valid list of arrays")
    layout, total, names = [], 0, set()
    for entry in entries:
        name, dtype, shape = _array_entry(entry)
        if name in names:
            raise WireError(f"a header names array '{name}' twice")
        names.add(name)
        total += math.prod(shape) * np.dtype(dtype).itemsize
        if total > MAX_ARRAYS:
            raise WireError("a header announces too large arrays")
        layout.append((name, dtype, shape))
    if total != size:
        raise WireError(f"a header announces arrays of {total} bytes, but {size} bytes follow")
    return Message(fields.pop("type"), fields), layout


def _bytes(array: Array) -> memoryview:
    return array.data.cast("B")


def _array_entry(entry: Any) -> tuple[str, str, tuple[int, ...]]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise WireError("a header has an array without name, dtype and shape")
    name, dtype, shape = entry
    is_shape = (
        isinstance(shape, list) and len(shape) <= 4 and all(type(n) is int and 0 <= n <= MAX_ARRAYS for n in shape)
    )
    if not isinstance(name, str) or dtype not in _DTYPES or not is_shape:
        raise WireError(f"a header has an invalid array: {str(entry)[:80]}")
    return name, dtype, tuple(shape)


def _fill(link: socket.socket, view: memoryview, deadline_s: float | None, *, may_end: bool = False) -> bool:
    """Fill the view. False: the connection ended before the first byte, and it may."""
    num_read = 0
    while num_read < len(view):
        if deadline_s is not None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            link.settimeout(left_s)
        num_new = link.recv_into(view[num_read:])
        if not num_new:
            if may_end and not num_read:
                return False
            raise WireError(f"the connection ended inside a message, {len(view) - num_read} bytes early")
        num_read += num_new
    return True
