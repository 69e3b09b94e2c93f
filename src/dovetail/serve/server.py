"""The policy server. Its clients are `RemotePolicy` objects (policies/remote)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from dovetail.core.errors import DovetailError, UsageError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.handshake import check_token, server_handshake
from dovetail.policies.remote.requests import chunk_message, max_request_bytes, read_act
from dovetail.policies.remote.wire import Message, WireError

__all__ = ["PolicyServer"]

MAX_CLIENTS = 64
HANDSHAKE_S = 5.0
TRANSFER_S = 10.0  # for a request to arrive once it has begun, and for a response to be sent
_POLL_S = 0.1


class _ServedPolicy(Protocol):
    """A policy that several threads may call at once."""

    @property
    def spec(self) -> PolicySpec: ...

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk: ...

    def reset(self) -> None: ...


class PolicyServer:
    """Call `listen`, then `run`. Each client has a thread, so that a silent client does not block the others.

    Clients without the token are refused. A server cannot be created without a token.
    """

    def __init__(
        self, policy: _ServedPolicy, *, token: bytes, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._policy, self._log = policy, log
        self._token = check_token(token, where="the server's token")
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Open the port (0: a free one) and return the address for clients."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=MAX_CLIENTS)
        except (OSError, OverflowError) as error:
            reason = ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()
            raise UsageError(
                f"cannot listen on {host}:{port} ({reason}). Choose another --host or --port"
            ) from error
        self._listener.settimeout(_POLL_S)
        port = self._listener.getsockname()[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def run(self, should_stop: Callable[[], bool]) -> None:
        assert self._listener is not None, "call listen() first"
        try:
            while not should_stop():
                try:
                    sock, peer = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:  # for example too many open files; connected clients continue
                    self._log(f"cannot accept a connection: {error}")
                    time.sleep(_POLL_S)
                    continue
                self._start_client(sock, f"{peer[0]}:{peer[1]}")
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections, without waiting for inference that is still running."""
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.close()
        deadline_s = time.monotonic() + 0.3
        for thread in connections.values():
            thread.join(max(deadline_s - time.monotonic(), 0.0))

    # ---- one client

    def _start_client(self, sock: socket.socket, name: str) -> None:
        connection = Connection(sock)
        thread = threading.Thread(target=self._serve_client, args=(connection, name), name=name, daemon=True)
        with self._lock:
            is_full = len(self._connections) >= MAX_CLIENTS
            if not is_full:
                self._connections[connection] = thread
        if is_full:
            self._log(f"{name} refused: {MAX_CLIENTS} clients are connected")
            connection.close()
        else:
            thread.start()

    def _serve_client(self, connection: Connection, name: str) -> None:
        try:
            spec = self._policy.spec
            server_handshake(connection, self._token, spec, deadline_s=time.monotonic() + HANDSHAKE_S)
            self._log(f"{name} connected")
            max_body = max_request_bytes(spec)
            while connection.wait_for_data():
                request = connection.receive(deadline_s=time.monotonic() + TRANSFER_S, max_body=max_body)
                response = self._respond(request)
                connection.send(response, deadline_s=time.monotonic() + TRANSFER_S)
            self._log(f"{name} disconnected")
        except WireError as error:
            self._log(f"{name} closed: {error}")
        finally:
            connection.close()
            with self._lock:
                del self._connections[connection]

    def _respond(self, request: Message) -> Message:
        started_s = time.monotonic()
        try:
            if request.kind == "reset":
                self._policy.reset()
                return Message(kind="done")
            if request.kind != "act":
                raise UsageError(f"unknown request {request.kind[:20]!r}")
            chunk = self._policy.act(*read_act(request, self._policy.spec))
            return chunk_message(request.fields.get("number"), chunk, server_s=time.monotonic() - started_s)
        except Exception as error:  # a bad request must not end the server
            if not isinstance(error, DovetailError):
                self._log(f"a request failed: {type(error).__name__}: {error}")
            return Message(kind="error", fields={"message": f"the request failed: {error}"})
