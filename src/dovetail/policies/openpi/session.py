"""A WebSocket connection to an openpi policy server: the metadata first, then observations and answers in turn."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from dovetail.policies.openpi.packing import MAX_MESSAGE, pack, unpack
from dovetail.policies.remote.connection import CannotConnect, ConnectionLost, DeadlineExceeded
from dovetail.policies.remote.wire import WireError

__all__ = ["Session"]

_log = logging.getLogger("dovetail.openpi.client")  # errors are raised; the library would print them too
_log.addHandler(logging.NullHandler())
_log.propagate = False
_CLOSE_S = 0.1  # a closing handshake is polite, but a stalled server would delay the arm
_SHOWN = 300  # characters of a server's text


class Session:
    """All failures raise WireError; close the session afterwards, or a late answer would be taken for the next one.

    The server may compute in its event loop and answer no ping meanwhile, so deadlines replace pings.
    """

    def __init__(self, address: str, path: str, *, api_key: str | None, deadline_s: float) -> None:
        host, _, port = address.rpartition(":")
        headers = {"Authorization": f"Api-Key {api_key}"} if api_key else {}
        try:
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout=_left_s(deadline_s))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CannotConnect(
                f"cannot connect ({reason}). Start the server, or correct policy.address"
            ) from error
        try:
            self._socket: ClientConnection = connect(
                f"ws://{address}{path}",
                sock=sock,  # so that no redirect and no proxy gets the key
                proxy=None,
                compression=None,
                additional_headers=headers,
                open_timeout=_left_s(deadline_s),
                close_timeout=_CLOSE_S,
                ping_interval=None,
                max_size=MAX_MESSAGE,
                max_queue=2,
                logger=_log,
            ).__enter__()  # this object is the context: its owner calls `close`
        except (OSError, WebSocketException, EOFError, ValueError) as error:
            sock.close()
            raise _refusal(error, path) from error
        try:
            self.metadata = self._receive(deadline_s)
        except BaseException:
            self.close()
            raise

    def ask(self, observation: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
        """The answer to an observation."""
        message = pack(observation)
        try:
            self._refuse_unasked()
            self._socket.socket.settimeout(_left_s(deadline_s))
            self._socket.send(message)
            self._socket.socket.settimeout(None)  # websockets 15 would end a connection that is silent for so long
        except (OSError, ConnectionClosed) as error:
            raise _failure(error) from error
        return self._receive(deadline_s)

    def _refuse_unasked(self) -> None:
        """Answers have no numbers: with one too many, each later one would belong to the observation before."""
        with contextlib.suppress(TimeoutError):
            self._socket.recv(timeout=0)
            raise WireError("the server sent more than one answer to a request")

    def is_open(self) -> bool:
        return self._socket.protocol.state.name == "OPEN"

    def close(self) -> None:
        self._socket.close()

    def _receive(self, deadline_s: float) -> dict[str, Any]:
        try:
            data = self._socket.recv(timeout=_left_s(deadline_s))
        except (OSError, ConnectionClosed) as error:
            raise _failure(error) from error
        if isinstance(data, str):
            raise WireError(f"the server reports: {_last_line(data)}")
        return unpack(data)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0.0:
        raise TimeoutError
    return left_s


def _last_line(text: str) -> str:
    """The line of a traceback that names the error."""
    lines = [line for line in text[-100_000:].splitlines() if line.strip()] or ["an error without a text"]
    shown = "".join(c if c.isprintable() else " " for c in lines[-1])
    return " ".join(shown.split())[:_SHOWN]


def _failure(error: Exception) -> WireError:
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("no answer in time")
    if isinstance(error, ConnectionClosed) and error.sent is not None and error.sent.code == 1009:
        return WireError(f"the answer is larger than {MAX_MESSAGE} bytes")
    return ConnectionLost("connection lost")


def _refusal(error: Exception, path: str) -> WireError:
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("no connection in time")
    if isinstance(error, OSError | EOFError | ConnectionClosed) or isinstance(error.__cause__, OSError | EOFError):
        return ConnectionLost("connection lost")  # it ended meanwhile, or a tunnel does not reach it
    if not isinstance(error, InvalidStatus):
        return WireError("it does not speak openpi's protocol. Check policy.address and policy.path")
    status = error.response.status_code
    if status in (401, 403):
        return WireError(f"the API key was refused (HTTP {status}). Set policy.api_key_file to the server's key")
    if status == 404:
        return WireError(f"it has no path {path} (HTTP 404). Set policy.path: /, /openpi/policy or another")
    return WireError(f"it refused the connection (HTTP {status})")
