"""The policy server. Its clients are `RemotePolicy` objects (policies/remote)."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait

from dovetail.core.errors import DovetailError, UsageError
from dovetail.core.unproven_connections import UnprovenConnections
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.handshake import check_token, server_handshake
from dovetail.policies.remote.requests import (
    NO_WEIGHTS,
    chunk_message,
    max_request_bytes,
    read_act,
    read_min_version,
)
from dovetail.policies.remote.weights import IncomingWeights, read_run
from dovetail.policies.remote.wire import MAX_BODY, Message, WireError
from dovetail.serve.batching import DEFAULT_ROWS, Batcher, Computed, ServedPolicy, ServerCloses
from dovetail.serve.listener import (
    HANDSHAKE_S,
    MAX_CLIENTS,
    MAX_UNPROVEN,
    MAX_UNPROVEN_PER_ADDRESS,
    TRANSFER_S,
    open_listener,
)
from dovetail.serve.weights import ServedWeights

__all__ = ["PolicyServer"]

_POLL_S = 0.1
_CROWD_LOG_S = 10.0
_LEFT_S = 0.2  # how often a waiting request is checked for a client that has left


class PolicyServer:
    """Call `listen`, then `run`. Each client has a thread, so that a silent client does not block the others. Another thread
    computes (`Batcher`).

    Clients without the token are refused. A server cannot be created without a token. Connections before the end of
    their handshake have their own limit: above it the oldest one is closed, so that strangers never keep a robot out.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        *,
        token: bytes,
        weights: ServedWeights | None = None,
        max_rows: int = DEFAULT_ROWS,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._policy, self._weights, self._log = policy, weights, log
        self._batcher = Batcher(policy, max_rows=max_rows)
        self._token = check_token(token, where="the server's token")
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._unproven = UnprovenConnections(max_total=MAX_UNPROVEN, max_per_address=MAX_UNPROVEN_PER_ADDRESS)
        self._clients: set[Connection] = set()
        self._crowd_logged_s = -math.inf

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Open the port (0: a free one) and return the address for clients."""
        self._listener, address = open_listener(host, port)
        self._listener.settimeout(_POLL_S)
        return address

    def run(self, should_stop: Callable[[], bool]) -> None:
        assert self._listener is not None, "call listen() first"
        self._batcher.warmup()
        self._batcher.start()
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
                self._start_client(sock, peer[0], f"{peer[0]}:{peer[1]}")
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections, without waiting for inference that is still running."""
        self._batcher.close()
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.disconnect()
        deadline_s = time.monotonic() + 0.3
        for thread in connections.values():
            thread.join(max(deadline_s - time.monotonic(), 0.0))

    # ---- one client

    def _start_client(self, sock: socket.socket, address: str, name: str) -> None:
        try:
            connection = Connection(sock)
        except OSError:  # closed again already
            sock.close()
            return
        thread = threading.Thread(target=self._serve_client, args=(connection, name), name=name, daemon=True)
        with self._lock:
            self._connections[connection] = thread
        self._unproven.add(connection, address, connection.disconnect)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads; connected clients continue
            self._log(f"{name} refused: {error}")
            self._forget(connection)

    def _serve_client(self, connection: Connection, name: str) -> None:
        try:
            deadline_s = time.monotonic() + HANDSHAKE_S
            spec = self._policy.spec
            server_handshake(
                connection, self._token, spec, deadline_s=deadline_s, admit=lambda: self._admit(connection)
            )
            self._log(f"{name} connected")
            self._answer_requests(connection)
            self._log(f"{name} disconnected")
        except WireError as error:
            if connection in self._clients or self._unproven.remove(connection):
                self._log(f"{name} closed: {error}")
            else:
                self._log_crowd()
        finally:
            self._forget(connection)

    def _admit(self, connection: Connection) -> None:
        """The client has proven that it has the token. Raise WireError if there is no room for it."""
        with self._lock:
            if len(self._clients) >= MAX_CLIENTS:
                raise WireError(f"{MAX_CLIENTS} robots are connected, which is the maximum of this server")
            if not self._unproven.remove(connection):
                raise WireError("closed, because many newer connections wait")
            self._clients.add(connection)

    def _log_crowd(self) -> None:
        """Not one line for each connection that a limit closes: strangers decide how many there are."""
        now_s = time.monotonic()
        if now_s > self._crowd_logged_s + _CROWD_LOG_S:
            self._crowd_logged_s = now_s
            self._log("many connections without the token: the oldest ones are closed. Robots are still served")

    def _answer_requests(self, connection: Connection) -> None:
        incoming = self._weights.incoming() if self._weights is not None else None
        max_weights = self._weights.max_bytes if self._weights is not None else 0
        max_body = max(max_request_bytes(self._policy.spec), min(max_weights, MAX_BODY))
        while connection.wait_for_data():
            request = connection.receive(deadline_s=time.monotonic() + TRANSFER_S, max_body=max_body)
            response = self._respond(connection, request, incoming)
            connection.send(response, deadline_s=time.monotonic() + TRANSFER_S)

    def _forget(self, connection: Connection) -> None:
        self._unproven.remove(connection)
        self._batcher.forget(connection)
        if self._weights is not None:
            self._weights.forget(connection)
        connection.close()
        with self._lock:
            self._clients.discard(connection)
            del self._connections[connection]

    def _respond(self, connection: Connection, request: Message, incoming: IncomingWeights | None) -> Message:
        started_s = time.monotonic()
        try:
            if request.kind == "reset":
                self._policy.reset()
                return Message(kind="done")
            if request.kind in ("use", "weights"):
                if self._weights is None or incoming is None:
                    raise UsageError("the weights of this server do not change. Start it with --receive")
                return self._weights.respond(request, incoming, client=connection)
            if request.kind != "act":
                raise UsageError(f"unknown request {request.kind[:20]!r}")
            min_version, run = read_min_version(request), read_run(request)
            if run is not None and (self._weights is None or not self._weights.are_of(run)):
                return Message(kind="outdated")
            if self._weights is not None and not self._weights.have_arrived:
                return Message(kind=NO_WEIGHTS)
            chunk = self._compute(connection, request).chunk
            if chunk.policy_version < min_version:
                return Message(kind="outdated", fields={"policy_version": int(chunk.policy_version)})
            return chunk_message(request.fields.get("number"), chunk, server_s=time.monotonic() - started_s)
        except ServerCloses as error:
            raise WireError(str(error)) from error
        except Exception as error:  # a bad request must not end the server
            if not isinstance(error, DovetailError):
                self._log(f"a request failed: {type(error).__name__}: {error}")
            return Message(kind="error", fields={"message": f"the request failed: {error}"})

    def _compute(self, connection: Connection, request: Message) -> Computed:
        """Wait for the policy. The request is dropped if its client leaves."""
        result = self._batcher.submit(connection, *read_act(request, self._policy.spec))
        while not result.done():
            wait([result], _LEFT_S)  # never counts a canceled one, which nothing computes, as done
            if not (result.done() or connection.is_idle()):
                result.cancel()
        if result.cancelled():
            raise ServerCloses("the client has left, or the server closes")
        return result.result()
