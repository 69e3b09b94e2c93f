"""HTTP POST with keep-alive. Every failure is a RobotError with one line, and no call takes longer than its timeout."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from dovetail.core.errors import RobotError, shown

__all__ = ["Connection", "ServerError"]

_MAX_BYTES = 1 << 20  # of a body
_MAX_HEAD_BYTES = 1 << 16


class ServerError(RobotError):
    """The server answered with a status other than 200."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class _DeadlineSocket(socket.socket):
    """Reads one answer: until a deadline, and up to its largest size. The timeout of a plain socket starts again with every
    byte, and `http.client` reads interim answers, trailers and chunks of a negative size without an end."""

    deadline_s = 0.0
    num_left = 0  # bytes

    def recv_into(self, *arguments: Any) -> int:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0.0:
            raise TimeoutError("timed out")
        if self.num_left <= 0:
            raise ValueError(f"answered more than {_MAX_BYTES} bytes")
        self.settimeout(left_s)
        num_bytes = super().recv_into(*arguments)
        self.num_left -= num_bytes
        return num_bytes


class _Http(http.client.HTTPConnection):
    deadline_s = 0.0

    def connect(self) -> None:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        self.sock = _DeadlineSocket(family, kind, protocol)
        self.set_deadline(self.deadline_s)
        self.sock.connect(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a request is one small write

    def set_deadline(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        if isinstance(self.sock, _DeadlineSocket):
            self.sock.deadline_s, self.sock.num_left = deadline_s, _MAX_BYTES + _MAX_HEAD_BYTES
            self.sock.settimeout(max(deadline_s - time.monotonic(), 1e-3))


class Connection:
    """A connection to one server, for one thread at a time. It opens with the first request and again after an error."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        self.address, self._timeout_s = address, timeout_s
        host, _, port = address.rpartition(":")
        self._http = _Http(host.strip("[]"), int(port))

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send one request and return the body of the answer. A connection that the server has closed since the last
        request is opened again, once."""
        limit_s = timeout_s or self._timeout_s
        deadline_s = time.monotonic() + limit_s
        was_open = self._http.sock is not None
        data = b"" if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            return self._exchange(path, data, deadline_s, headers or {})
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            if not was_open:
                raise self._failed(path, "closed the connection without an answer") from error
        except TimeoutError as error:
            self.close()
            raise self._failed(path, f"did not answer within {limit_s:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise self._failed(path, _reason(error)) from error
        except BaseException:
            self.close()
            raise
        return self.post(path, body, timeout_s=max(deadline_s - time.monotonic(), 1e-3), headers=headers)

    def post_once(self, path: str, *, timeout_s: float) -> None:
        """As `post`, over a new connection and never twice: for a request that must not be repeated, such as a motion."""
        self.close()
        self.post(path, timeout_s=timeout_s)

    def post_json(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """As `post`, for an answer that is a JSON object."""
        answer = self.post(path, body, timeout_s=timeout_s, headers=headers)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise self._failed(path, f"answered something else than JSON ({answer[:40]!r})") from error
        if not isinstance(found, dict):
            raise self._failed(path, f"answered {shown(found, max_chars=40)} instead of a JSON object")
        return found

    def close(self) -> None:
        self._http.close()

    def _exchange(self, path: str, data: bytes, deadline_s: float, headers: Mapping[str, str]) -> bytes:
        self._http.set_deadline(deadline_s)
        kind = {"Content-Type": "application/json"} if data else {}
        self._http.request("POST", path, body=data, headers={**kind, **headers})
        response = self._http.getresponse()
        answer = response.read(_MAX_BYTES + 1)
        if len(answer) > _MAX_BYTES:
            raise ValueError(f"answered more than {_MAX_BYTES} bytes")
        if response.length:
            raise ValueError(f"answered {len(answer)} of {len(answer) + response.length} bytes")
        if response.status != 200:
            raise self._refused(path, response.status)
        return answer

    def _refused(self, path: str, status: int) -> ServerError:
        hint = {
            404: "It has no such endpoint: check its version",
            403: "Its token is wrong",
            500: "See its terminal. A server without a gripper answers so too: set robot.gripper=none",
        }.get(status, "See its terminal")
        return ServerError(
            f"the Franka server at {self.address} answered {status} to {path}. {hint}", status=status
        )

    def _failed(self, path: str, what: str) -> RobotError:
        return RobotError(f"the Franka server at {self.address} {what} ({path}). Check the server and the network")


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection: it does not run"
    if isinstance(error, http.client.IncompleteRead):
        return "answered only a part"
    text = shown(error, max_chars=120)
    return text if text.startswith("answered") else f"failed: {text or type(error).__name__}"
