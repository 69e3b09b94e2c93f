"""Messages between a supervisor and its processes: JSON over a socket pair, and an end of file when one has died."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from typing import Any

__all__ = ["Channel", "Gone"]

_LENGTH = struct.Struct("!I")
_MAX_BYTES = 64 << 20


class Gone(Exception):  # what it means depends on who is gone
    """The process at the other end has ended."""


class Channel:
    """One end. Messages are objects with plain values."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

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
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise Gone from error

    def receive(self, *, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None if none came in time. Raises Gone once there will be none."""
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        if not ready:
            return None
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > _MAX_BYTES:
            raise Gone
        message: dict[str, Any] = json.loads(self._exactly(length))
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

    def _exactly(self, num_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < num_bytes:
            try:
                part = self._socket.recv(num_bytes - len(parts))
            except OSError as error:
                raise Gone from error
            if not part:
                raise Gone
            parts += part
        return bytes(parts)
