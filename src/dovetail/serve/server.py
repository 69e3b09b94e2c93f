"""A policy server: answers the robots that ask it, as `policies/remote.py` does."""

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
from dovetail.policies.remote.handshake import server_handshake, check_token
from dovetail.policies.remote.requests import chunk_message, max_request, read_act
from dovetail.policies.remote.wire import Message, WireError

__all__ = ["PolicyServer"]

MAX_CLIENTS = 64
HELLO_S = 5.0  # to say hello in
TRANSFER_S = 10.0  # for a question, once it has begun, to be here, and for an answer to be gone
_TICK_S = 0.1


class _Served(Protocol):
    """What a server needs of a policy; asked by several threads at once."""

    @property
    def spec(self) -> PolicySpec: ...

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk: ...

    def reset(self) -> None: ...


class PolicyServer:
    """`listen`, then `run` until asked to stop. A thread for each robot, so that a silent one holds up nobody.

    Whoever does not know the token gets no further than hello, and without a token there is no server.
    """

    def __init__(self, policy: _Served, *, token: bytes, tell: Callable[[str], None] = lambda line: None) -> None:
        self._policy, self._tell = policy, tell
        self._token = check_token(token, where="the server's token")
        self._listener: socket.socket | None = None
        self._guard = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Take the port, a free one if it is 0; returns the address that robots connect to."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=MAX_CLIENTS)
        except (OSError, OverflowError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise UsageError(
                f"cannot listen on {host}:{port} ({reason}): choose another --host or --port"
            ) from error
        self._listener.settimeout(_TICK_S)
        taken = self._listener.getsockname()[1]
        return f"[{host}]:{taken}" if ":" in host else f"{host}:{taken}"

    def run(self, should_stop: Callable[[], bool]) -> None:
        assert self._listener is not None, "listen() first"
        try:
            while not should_stop():
                try:
                    sock, peer = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:  # out of files, say: those who are connected go on
                    self._tell(f"cannot take another connection: {error}")
                    time.sleep(_TICK_S)
                    continue
                self._begin(sock, f"{peer[0]}:{peer[1]}")
        finally:
            self.close()

    def close(self) -> None:
        """Hang up on everybody. An answer that is being thought out is not waited for."""
        if self._listener is not None:
            self._listener.close()
        with self._guard:
            connections = dict(self._connections)
        for connection in connections:
            connection.close()
        deadline_s = time.monotonic() + 0.3
        for thread in connections.values():
            thread.join(max(deadline_s - time.monotonic(), 0.0))

    # ---- one robot

    def _begin(self, sock: socket.socket, name: str) -> None:
        connection = Connection(sock)
        thread = threading.Thread(target=self._attend, args=(connection, name), name=name, daemon=True)
        with self._guard:
            is_full = len(self._connections) >= MAX_CLIENTS
            if not is_full:
                self._connections[connection] = thread
        if is_full:
            self._tell(f"{name} turned away: {MAX_CLIENTS} are connected already")
            connection.close()
        else:
            thread.start()

    def _attend(self, connection: Connection, name: str) -> None:
        try:
            server_handshake(connection, self._token, self._policy.spec, deadline_s=time.monotonic() + HELLO_S)
            self._tell(f"{name} connected")
            limit = max_request(self._policy.spec)
            while connection.wait():
                question = connection.receive(deadline_s=time.monotonic() + TRANSFER_S, max_body=limit)
                answer = self._answer(question)
                connection.send(answer, deadline_s=time.monotonic() + TRANSFER_S)
            self._tell(f"{name} left")
        except WireError as error:
            self._tell(f"{name} cut off: {error}")
        finally:
            connection.close()
            with self._guard:
                del self._connections[connection]

    def _answer(self, question: Message) -> Message:
        started_s = time.monotonic()
        try:
            if question.kind == "reset":
                self._policy.reset()
                return Message(kind="done")
            if question.kind != "act":
                raise UsageError(f"knows no {question.kind[:20]!r}")
            chunk = self._policy.act(*read_act(question, self._policy.spec))
            return chunk_message(question.fields.get("number"), chunk, server_s=time.monotonic() - started_s)
        except Exception as error:  # one bad question must not end the server
            if not isinstance(error, DovetailError):
                self._tell(f"a question failed: {type(error).__name__}: {error}")
            return Message(kind="error", fields={"message": f"cannot answer: {error}"})
