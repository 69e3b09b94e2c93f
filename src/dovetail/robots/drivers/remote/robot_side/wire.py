"""Messages between a robot's computer and Dovetail: a few plain values and named arrays, in frames over TCP.

    "DVRB" | header bytes u32 | body bytes u32 | header: JSON | body: the arrays' bytes, one after another | tag 16 bytes

All numbers are little-endian. Received data is never executed (no pickle). Sizes are checked before memory is allocated.
After the handshake each frame ends with a tag, a keyed BLAKE2b of its direction, number and content: a frame that was
changed, repeated, left out or made by a third party ends the connection. Frames are not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["MAX_BODY", "MAX_HEADER", "PROTOCOL", "Link", "Message", "WireError", "decode", "encode"]

PROTOCOL = 1
MAX_HEADER = 1 << 16
MAX_BODY = 1 << 28
MAX_ARRAYS = 64
TAG_BYTES = 16
_MAGIC = b"DVRB"
_PREFIX = struct.Struct("<4sII")
_NUMBER = struct.Struct("<cQ")
_JOIN_BYTES = 1 << 16  # larger arrays are sent without a copy
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "uint8", "uint16")}


class WireError(Exception):
    """A message is malformed, incomplete, unexpected or late, or the connection is lost. Close the connection."""


@dataclass(frozen=True)
class Message:
    """The kind of the message, its plain values and its arrays by name."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)

    def integer(self, name: str, low: int = 0, high: int = 1 << 62) -> int:
        """A whole number among the fields."""
        value = self.fields.get(name)
        if type(value) is not int or not low <= value <= high:
            raise WireError(f"message '{self.kind[:20]}' has no valid '{name}'")
        return value

    def text(self, name: str, max_length: int = 500) -> str:
        """A printable text among the fields."""
        value = self.fields.get(name)
        if not isinstance(value, str) or len(value) > max_length:
            raise WireError(f"message '{self.kind[:20]}' has no valid '{name}'")
        return " ".join("".join(c if c.isprintable() else " " for c in value).split())


def encode(message: Message) -> list[Any]:
    """The parts of a frame without its tag: prefix and header, then the bytes of each array."""
    descriptions, blobs = [], []
    for name, array in message.arrays.items():
        if array.dtype.name not in _DTYPES:
            raise WireError(f"array '{name}' is {array.dtype}; only {', '.join(_DTYPES)} can be sent")
        descriptions.append([name, array.dtype.name, list(array.shape)])
        blobs.append(np.ascontiguousarray(array, _DTYPES[array.dtype.name]).reshape(-1).view(np.uint8).data)
    content = {"kind": message.kind, "fields": message.fields, "arrays": descriptions}
    header = json.dumps(content, allow_nan=False).encode()
    size = sum(len(blob) for blob in blobs)
    if len(header) > MAX_HEADER or size > MAX_BODY or len(blobs) > MAX_ARRAYS:
        raise WireError(f"a message of {len(header)} + {size} bytes is larger than the maximum")
    return [_PREFIX.pack(_MAGIC, len(header), size) + header, *blobs]


def decode(header: bytes, body: bytearray) -> Message:
    """The message of a header and a body. Its arrays share the memory of the body where they are aligned."""
    try:
        content = json.loads(header.decode(), parse_constant=_no_constant)
        kind, fields, descriptions = content["kind"], content["fields"], content["arrays"]
        if not isinstance(kind, str) or not isinstance(fields, dict) or len(descriptions) > MAX_ARRAYS:
            raise ValueError("not a message")
        arrays, start = {}, 0
        for name, dtype_name, shape in descriptions:
            dtype = _DTYPES[dtype_name]
            if not isinstance(name, str) or name in arrays or not _is_shape(shape):
                raise ValueError("not an array")
            end = start + dtype.itemsize * math.prod(shape)
            if end > len(body):
                raise ValueError("the arrays are larger than the body")
            values = np.frombuffer(body, dtype, math.prod(shape), start) if end > start else np.empty(0, dtype)
            arrays[name] = np.require(values, dtype.newbyteorder("="), "A").reshape(shape)
            start = end
        if start != len(body):
            raise ValueError("the arrays are smaller than the body")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise WireError("the received data is not a message of the robot protocol") from error
    return Message(kind, fields, arrays)


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= 4
        and all(type(size) is int and 0 <= size <= MAX_BODY for size in shape)
        and math.prod(max(size, 1) for size in shape) <= MAX_BODY
    )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Link:
    """A socket for whole messages, each before a deadline in seconds of `time.monotonic()`. All failures raise WireError."""

    def __init__(self, sock: socket.socket, *, is_server: bool) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":  # detect a pulled cable within a minute
            for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._sock = sock
        self._key = b""
        self._sent, self._received = 0, 0
        self._to_peer, self._from_peer = (b"s", b"c") if is_server else (b"c", b"s")

    def use_key(self, key: bytes) -> None:
        """Add a tag to each later frame, and require one."""
        self._key = key

    def send(self, message: Message, deadline_s: float) -> None:
        self.write(self.frame(message), deadline_s)

    def frame(self, message: Message) -> list[Any]:
        """The parts of the next frame, with its tag."""
        parts = encode(message)
        if self._key:
            parts.append(self._tag(self._to_peer, self._sent, parts))
            self._sent += 1
        return [b"".join(parts)] if sum(map(len, parts)) <= _JOIN_BYTES else parts

    def write(self, parts: list[Any], deadline_s: float) -> None:
        try:
            for part in parts:
                self._sock.settimeout(_left_s(deadline_s))
                self._sock.sendall(part)
        except OSError as error:  # in Python 3.8 a timeout is an OSError and no TimeoutError
            raise _wire_error(error) from error

    def receive(self, deadline_s: float, max_body: int, max_header: int = MAX_HEADER) -> Message:
        """The next message. All of it must arrive before the deadline."""
        prefix = bytes(self._read(_PREFIX.size, deadline_s))
        magic, header_size, body_size = _PREFIX.unpack(prefix)
        if magic != _MAGIC:
            raise WireError("the received data is not a message of the robot protocol")
        if header_size > max_header or body_size > max_body:
            raise WireError(f"a message of {header_size} + {body_size} bytes is larger than allowed")
        header, body = bytes(self._read(header_size, deadline_s)), self._read(body_size, deadline_s)
        if self._key:
            tag = bytes(self._read(TAG_BYTES, deadline_s))
            expected = self._tag(self._from_peer, self._received, [prefix, header, body])
            if not hmac.compare_digest(tag, expected):
                raise WireError("a message was changed, lost or repeated on its way")
            self._received += 1
        return decode(header, body)

    def wait(self, timeout_s: float) -> bool:
        """Wait until a message, or the end of the connection, can be read. False: not yet."""
        try:
            self._sock.settimeout(timeout_s)
            self._sock.recv(1, socket.MSG_PEEK)
        except socket.timeout:  # noqa: UP041 - in Python 3.8 this is not TimeoutError
            return False
        except OSError:  # the next read raises it again
            return True
        return True

    def disconnect(self) -> None:
        """End the connection: calls that wait on it in other threads return. The thread that uses it calls `close`."""
        with contextlib.suppress(OSError):  # the other side may have closed it already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.disconnect()
        self._sock.close()

    def _tag(self, direction: bytes, number: int, parts: list[Any]) -> bytes:
        digest = hashlib.blake2b(_NUMBER.pack(direction, number), key=self._key, digest_size=TAG_BYTES)
        for part in parts:
            digest.update(part)
        return digest.digest()

    def _read(self, size: int, deadline_s: float) -> bytearray:
        buffer, done = bytearray(size), 0
        try:
            with memoryview(buffer) as view:
                while done < size:
                    self._sock.settimeout(_left_s(deadline_s))
                    count = self._sock.recv_into(view[done:])
                    if not count:
                        raise WireError("the connection was closed")
                    done += count
        except OSError as error:
            raise _wire_error(error) from error
        return buffer


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0.0:
        raise socket.timeout("timed out")  # noqa: UP041 - in Python 3.8 this is not TimeoutError
    return left_s


def _wire_error(error: OSError) -> WireError:
    if isinstance(error, socket.timeout):
        return WireError("no complete message in time")
    return WireError(f"the connection was lost ({(error.strerror or str(error)).lower()})")
