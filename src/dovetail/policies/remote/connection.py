"""A TCP connection that carries the messages of `wire`, each before a deadline."""

from __future__ import annotations

import contextlib
import socket
import time

from dovetail.policies.remote.wire import MAX_BODY, PREFIX, Header, Message, WireError, encode, read_sizes

__all__ = ["Connection", "ConnectionLost", "DeadlineExceeded"]

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # a pulled cable shows within a minute


class DeadlineExceeded(WireError):
    """The time was over first."""


class ConnectionLost(WireError):
    """The other side is gone."""


class Connection:
    """A socket that speaks in messages. Whatever goes wrong raises WireError; then it is of no more use.

    Deadlines are in seconds of `time.monotonic()`.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # Linux has all of them
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sock = sock

    def send(self, message: Message, *, deadline_s: float) -> None:
        frame = encode(message)
        try:
            self._sock.settimeout(_left_s(deadline_s))  # of all of it together
            self._sock.sendall(frame)
        except OSError as error:
            raise _broken(error) from error

    def receive(self, *, deadline_s: float, max_body: int = MAX_BODY) -> Message:
        """The next message, all of it before the deadline, however slowly it trickles in."""
        header_size, body_size = read_sizes(bytes(self._read(PREFIX.size, deadline_s)), max_body)
        header = Header.parse(bytes(self._read(header_size, deadline_s)), body_size)
        return header.message(self._read(body_size, deadline_s))

    def wait(self) -> bool:
        """Wait, however long, for the other side to say something; false if it hung up instead."""
        try:
            self._sock.settimeout(None)
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def is_idle(self) -> bool:
        """Whether the line stands and nothing lies on it: what it should be before a question is asked."""
        try:
            self._sock.settimeout(0.0)
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Hang up; whoever waits on this connection, in any thread, stops waiting."""
        with contextlib.suppress(OSError):  # the other side may have been first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int, deadline_s: float) -> bytearray:
        buffer = bytearray(size)
        view, done = memoryview(buffer), 0
        try:
            while done < size:
                self._sock.settimeout(_left_s(deadline_s))
                count = self._sock.recv_into(view[done:])
                if not count:
                    raise ConnectionLost("hung up")
                done += count
        except OSError as error:
            raise _broken(error) from error
        return buffer


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0.0:
        raise TimeoutError
    return left_s


def _broken(error: OSError) -> WireError:
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("did not answer in time")
    return ConnectionLost(f"hung up ({(error.strerror or str(error)).lower()})")
