"""Connections to a robot's computer: one for observations and commands, and one for stops."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from dovetail.core.errors import RobotError, UsageError
from dovetail.robots.drivers.remote.clock import ClockOffset
from dovetail.robots.drivers.remote.robot_side.handshake import WrongToken, check_token, greet_server, read_token
from dovetail.robots.drivers.remote.robot_side.wire import Link, Message, WireError

__all__ = ["Connection", "StopLink", "read_token_setting", "spec_of"]

_STOP_S = 1.0


def read_token_setting(token_file: str | None, token_env: str) -> bytes:
    """The token of a file, or else of an environment variable."""
    try:
        if token_file is not None:
            return read_token(Path(token_file).expanduser())
        if not (token := os.environ.get(token_env, "").strip().encode()):
            raise UsageError(f"the robot's token is missing. Set robot.token_file, or the variable {token_env}")
        return check_token(token, f"variable {token_env}")
    except WrongToken as error:
        raise UsageError(str(error)) from error


class Connection:
    """An open connection with the token shown. Raises RobotError, and must be closed after that."""

    def __init__(self, address: str, token: bytes, *, role: str, timeout_s: float) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        deadline_s = time.monotonic() + timeout_s
        try:
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        except OSError as error:
            raise self._error(
                f"no connection ({(error.strerror or str(error)).lower()}). Is its server running?"
            ) from error
        self._link = Link(sock, is_server=False)
        self._number = 0
        try:
            self.welcome = greet_server(self._link, token, role, deadline_s)
            self.session = self.welcome.text("session", 100)
        except WireError as error:
            self._link.close()
            raise self._error(str(error)) from error

    def request(
        self,
        message: Message,
        expected: str,
        *,
        timeout_s: float,
        max_body: int = 0,
        clock: ClockOffset | None = None,
    ) -> Message:
        """Send a request and return its answer. `clock` learns from the times of both."""
        self._number += 1
        deadline_s = time.monotonic() + timeout_s
        asked_ns = time.monotonic_ns()
        try:
            self._link.send(
                Message(message.kind, {**message.fields, "id": self._number}, message.arrays), deadline_s
            )
            answer = self._link.receive(deadline_s, max_body)
            answered_ns = time.monotonic_ns()
            if answer.integer("id") != self._number:
                raise WireError("an answer belongs to another request")
            if answer.kind == "error":
                raise self._error(answer.text("message"))
            if answer.kind != expected:
                raise WireError(f"expected message '{expected}', got {answer.kind[:20]!r}")
            received_ns, sent_ns = answer.integer("received_ns"), answer.integer("sent_ns")
        except WireError as error:
            raise self._error(str(error)) from error
        if clock is not None:
            clock.update(asked_ns=asked_ns, received_ns=received_ns, sent_ns=sent_ns, answered_ns=answered_ns)
        return answer

    def close(self) -> None:
        self._link.close()

    def disconnect(self) -> None:
        """End the connection from another thread."""
        self._link.disconnect()

    def _error(self, reason: str) -> RobotError:
        return RobotError(f"robot at {self._address}: {reason}")


class StopLink:
    """A connection that only stops the robot. Connects again by itself, because a stop must not fail after a restart."""

    def __init__(self, address: str, token: bytes, *, connect_timeout_s: float) -> None:
        self._address, self._token, self._connect_timeout_s = address, token, connect_timeout_s
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        with self._lock:
            self._opened()

    def stop(self) -> None:
        self.stop_session("", 0)

    def stop_session(self, session: str, num_stops: int) -> None:
        """Stop the robot. `session` may send later commands; any other controller has to connect again."""
        request = Message("stop", {"session": session, "stops": num_stops})
        with self._lock:
            is_old = self._connection is not None
            try:
                self._opened().request(request, "stopped", timeout_s=_STOP_S)
            except RobotError as error:
                self._close()
                if not is_old:
                    raise RobotError(
                        f"{error}. The robot did not confirm the stop: use its emergency stop"
                    ) from error
                self._again(request)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _again(self, request: Message) -> None:
        try:
            self._opened().request(request, "stopped", timeout_s=_STOP_S)
        except RobotError as error:
            self._close()
            raise RobotError(f"{error}. The robot did not confirm the stop: use its emergency stop") from error

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(
                self._address, self._token, role="stop", timeout_s=self._connect_timeout_s
            )
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def spec_of(address: str, token: bytes, *, timeout_s: float) -> Any:
    """The spec that a robot's computer sends, unchecked."""
    connection = Connection(address, token, role="robot", timeout_s=timeout_s)
    connection.close()
    return connection.welcome.fields.get("spec")
