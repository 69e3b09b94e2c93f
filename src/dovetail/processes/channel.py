"""Messages between a supervisor and its processes: JSON over a socket pair, and an end of file when one has died."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from dovetail.processes.wakeup import wait_for

__all__ = ["Channel", "Gone"]

_LENGTH = struct.Struct("!I")
_MAX_BYTES = 64 << 20


class Gone(Exception):  # what it means depends on who is gone
    """The process at the other end has ended."""


class Channel:
    """One end. Messages are objects with plain values."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._got = bytearray()  # of the message that is on its way, and never of the one after

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair()
        return Channel(ours), Channel(theirs)

    @staticmethod
    def of(descriptor: int) -> Channel:
        return Channel(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode()
        if len(data) > _MAX_BYTES:
            raise ValueError(f"a message of {len(data)} bytes: {_MAX_BYTES} at most, larger things go by file")
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise Gone from error

    def receive(self, *, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None if it has not come, or not come whole, in time. Raises Gone once none will."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while num_missing := self._num_missing():
            if self.fileno() < 0:
                raise Gone
            if not wait_for(self.fileno(), timeout_s=None if until_s is None else until_s - time.monotonic()):
                return None
            try:
                part = self._socket.recv(min(num_missing, 1 << 20))
            except OSError as error:
                raise Gone from error
            if not part:
                raise Gone
            self._got += part
        message: dict[str, Any] = json.loads(self._got[_LENGTH.size :])
        self._got.clear()
        return message

    def is_open(self) -> bool:
        """Whether the other end lives. Never waits, and takes nothing."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()

    def _num_missing(self) -> int:
        """Bytes to go until the message is whole, or until its length is known."""
        if len(self._got) < _LENGTH.size:
            return _LENGTH.size - len(self._got)
        (length,) = _LENGTH.unpack_from(self._got)
        if length > _MAX_BYTES:
            raise Gone  # nobody of ours says such a thing
        return int(length) + _LENGTH.size - len(self._got)
