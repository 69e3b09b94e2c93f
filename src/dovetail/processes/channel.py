"""Messages between two processes: JSON over a socket pair. A channel closes when the process at its other end ends."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Self

from dovetail.processes.wakeup import wait_for

__all__ = ["Channel", "ChannelClosed", "SocketEnd", "parse_message"]

_LENGTH = struct.Struct("!I")
_MAX_BYTES = 64 << 20


class ChannelClosed(Exception):  # an end for a child, an error for its parent
    """The process at the other end has ended."""


def parse_message(text: bytes | bytearray) -> dict[str, Any]:
    """Decode a JSON object. Raises ChannelClosed for anything else: the other end is not ours, or out of step."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChannelClosed from error
    if not isinstance(message, dict):
        raise ChannelClosed
    return message


class SocketEnd:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Self:
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def shutdown(self) -> None:
        """Close the connection for both processes. A thread that is blocked in `receive` gets ChannelClosed."""
        with contextlib.suppress(OSError):  # the other end is closed already
            self._socket.shutdown(socket.SHUT_RDWR)


class Channel(SocketEnd):
    """Messages are JSON objects."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        self._received = bytearray()  # of an incomplete message; never of the one after it

    def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode()
        if len(data) > _MAX_BYTES:
            raise ValueError(f"a message has {len(data)} bytes, but the limit is {_MAX_BYTES}. Send it as a file")
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, *, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None if it is not complete in time. Raises ChannelClosed when no message will come."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while num_missing := self._num_missing():
            if self.fileno() < 0:
                raise ChannelClosed
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if not wait_for(self.fileno(), timeout_s=left_s):
                return None
            try:
                part = self._socket.recv(min(num_missing, 1 << 20))
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            self._received += part
        message = parse_message(self._received[_LENGTH.size :])
        self._received.clear()
        return message

    def is_open(self) -> bool:
        """Whether the other process is alive, or has left a message. Does not block and removes no message."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _num_missing(self) -> int:
        """Bytes until the message is complete, or until its length is known."""
        if len(self._received) < _LENGTH.size:
            return _LENGTH.size - len(self._received)
        (length,) = _LENGTH.unpack_from(self._received)
        if length > _MAX_BYTES:
            raise ChannelClosed  # not a message of ours
        return int(length) + _LENGTH.size - len(self._received)
