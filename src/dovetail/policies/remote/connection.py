"""A TCP connection that sends and receives whole messages, each before a deadline."""

from __future__ import annotations

import contextlib
import socket
import sys
import time

from dovetail.policies.remote.wire import MAX_BODY, PREFIX, Header, Message, WireError, encode, read_sizes

__all__ = ["CannotConnect", "Connection", "ConnectionLost", "DeadlineExceeded"]

_READ_BYTES = 1 << 18


class DeadlineExceeded(WireError):
    """The deadline passed before a message was complete."""


class ConnectionLost(WireError):
    """The other side closed the connection, or the network failed."""


class CannotConnect(ConnectionLost):
    """Nothing listens at the address, or the network does not lead there."""


class Connection:
    """A socket for messages. All failures raise WireError; close the connection afterwards.

    Deadlines are in seconds of `time.monotonic()`.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":  # detect a pulled cable within a minute
            for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._sock = sock

    def send(self, message: Message, *, deadline_s: float) -> None:
        frame = encode(message)
        try:
            self._sock.settimeout(_left_s(deadline_s))  # for the whole of sendall
            self._sock.sendall(frame)
        except OSError as error:
            raise _wire_error(error) from error

    def receive(self, *, deadline_s: float, max_body: int = MAX_BODY) -> Message:
        """The next message. All of it must arrive before the deadline."""
        header_size, body_size = read_sizes(bytes(self._read(PREFIX.size, deadline_s)), max_body)
        header = Header.parse(bytes(self._read(header_size, deadline_s)), body_size)
        return header.message(self._read(body_size, deadline_s))

    def wait_for_data(self) -> bool:
        """Block until data arrives. Return False if the connection was closed instead."""
        try:
            self._sock.settimeout(None)
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def is_idle(self) -> bool:
        """Whether the connection is open and has no unread data, as it should be before a request."""
        try:
            self._sock.settimeout(0.0)
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def disconnect(self) -> None:
        """End the connection: calls that wait on it in other threads return. The thread that uses it calls `close`.

        The descriptor stays open until then, because the system would give its number to the next connection.
        """
        with contextlib.suppress(OSError):  # the other side may have closed it already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Calls that wait on it in other threads return."""
        self.disconnect()
        self._sock.close()

    def _read(self, size: int, deadline_s: float) -> bytearray:
        """The memory grows with the bytes that arrive, because a size that the other side states costs it nothing."""
        buffer, done = bytearray(min(size, _READ_BYTES)), 0
        try:
            while done < size:
                if done == len(buffer):
                    buffer.extend(bytes(min(size, 2 * done) - done))
                self._sock.settimeout(_left_s(deadline_s))
                with memoryview(buffer) as view:
                    count = self._sock.recv_into(view[done:])
                if not count:
                    raise ConnectionLost("connection closed")
                done += count
        except OSError as error:
            raise _wire_error(error) from error
        return buffer


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0.0:
        raise TimeoutError
    return left_s


def _wire_error(error: OSError) -> WireError:
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("no complete message in time")
    return ConnectionLost(f"connection lost ({(error.strerror or str(error)).lower()})")
