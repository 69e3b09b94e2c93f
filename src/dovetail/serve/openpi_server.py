"""The policy server for openpi's protocol: any client of openpi gets chunks of any of our policies."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from dovetail.core.errors import DovetailError, UsageError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext
from dovetail.core.unproven_connections import UnprovenConnections
from dovetail.policies.inputs import History
from dovetail.policies.openpi.context import context_from_wire
from dovetail.policies.openpi.keys import KeyMap, own_keys
from dovetail.policies.openpi.packing import MAX_MESSAGE, pack, unpack
from dovetail.policies.remote.handshake import check_token
from dovetail.serve import listener as limits
from dovetail.serve.batching import DEFAULT_ROWS, Batcher, Computed, ServedPolicy, ServerCloses

__all__ = ["OpenpiServer"]

PATHS = ("/", "/openpi/policy", "/v1/realtime/robot/openpi")  # of openpi, SGLang and vLLM-Omni
_POLL_S = 0.1
_CLOSE_S = 0.3
_INTERNAL_ERROR = 1011  # the code of openpi's server
_SHOWN = 500  # characters of an error

_library_log = logging.getLogger("dovetail.openpi.server")  # strangers decide how much the library would log
_library_log.addHandler(logging.NullHandler())
_library_log.propagate = False


class OpenpiServer:
    """Call `listen`, then `run`. The event loop only moves messages; a thread computes (`Batcher`).

    The key is checked at the upgrade, because the stock client has no other place to learn of a refusal. Connections before
    that have their own limit, as in `PolicyServer`. A connection is an episode: the protocol does not mark its start.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        *,
        token: bytes,
        keys: KeyMap | None = None,
        max_rows: int = DEFAULT_ROWS,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._policy, self._log = policy, log
        self._expected = b"Api-Key " + check_token(token, where="the server's token")
        self._keys = keys or own_keys(policy.spec)
        self._keys.check_covers(policy.spec)
        self._batcher = Batcher(policy, max_rows=max_rows)
        self._listener: socket.socket | None = None
        self._clients: set[ServerConnection] = set()
        self._unproven = UnprovenConnections(
            max_total=limits.MAX_UNPROVEN, max_per_address=limits.MAX_UNPROVEN_PER_ADDRESS
        )

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Open the port (0: a free one) and return the address for clients."""
        self._listener, address = limits.open_listener(host, port)
        return address

    def run(self, should_stop: Callable[[], bool]) -> None:
        assert self._listener is not None, "call listen() first"
        self._batcher.warmup()
        self._batcher.start()
        try:
            asyncio.run(self._serve(self._listener, should_stop))
        finally:
            self.close()

    def close(self) -> None:
        self._batcher.close()
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, listener: socket.socket, should_stop: Callable[[], bool]) -> None:
        listener.setblocking(False)
        server = await serve(
            self._serve_client,
            sock=listener,
            create_connection=self._new_connection,  # type: ignore[arg-type]  # called, never inspected
            process_request=self._admit,
            open_timeout=limits.HANDSHAKE_S,
            close_timeout=_CLOSE_S,
            compression=None,
            max_size=MAX_MESSAGE,
            max_queue=1,
            server_header=None,
            logger=_library_log,
        )
        while not should_stop():
            await asyncio.sleep(_POLL_S)
        self._batcher.close()  # ends the requests, so that no client's handler waits
        server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 2 * _CLOSE_S)

    # ---- before the key was shown

    def _new_connection(self, *arguments: Any, **options: Any) -> ServerConnection:
        return _Connection(*arguments, unproven=self._unproven, on_end=self._forget, **options)

    def _forget(self, connection: ServerConnection) -> None:
        self._unproven.remove(connection)
        self._clients.discard(connection)
        self._batcher.forget(connection)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer the upgrade request; None accepts it."""
        path = request.path.partition("?")[0]
        if path == "/healthz":
            return connection.respond(200, "OK\n")
        if path not in PATHS:
            return connection.respond(404, f"no such path. Use {', '.join(PATHS)}\n")
        given = request.headers.get_all("Authorization")
        shown = given[0].encode(errors="replace") if len(given) == 1 else b""
        if not hmac.compare_digest(shown, self._expected):  # the same time for every wrong key
            return connection.respond(
                401, "wrong API key. Use the token file that the server prints at its start\n"
            )
        if len(self._clients) >= limits.MAX_CLIENTS:
            return connection.respond(503, f"{limits.MAX_CLIENTS} clients are connected, which is the maximum\n")
        if not self._unproven.remove(connection):
            return connection.respond(503, "closed, because many newer connections wait\n")
        self._clients.add(connection)
        return None

    # ---- a client

    async def _serve_client(self, connection: ServerConnection) -> None:
        name = "{}:{}".format(*connection.remote_address[:2])
        self._log(f"{name} connected")
        try:
            await connection.send(pack(self._metadata()))
            await self._answer_requests(connection)
        except (ConnectionClosed, ServerCloses, asyncio.CancelledError):  # also a request dropped with its client
            self._log(f"{name} disconnected")
        except TimeoutError:
            self._log(f"{name} closed: it did not read its answer")
            connection.transport.abort()
        except Exception as error:  # a bad request must not end the server
            line = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
            self._log(
                f"{name} closed: {line if isinstance(error, DovetailError) else f'{type(error).__name__}: {line}'}"
            )
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(limits.TRANSFER_S):
                    await connection.send(f"the request failed: {line}")
                    await connection.close(_INTERNAL_ERROR, "the request failed")

    async def _answer_requests(self, connection: ServerConnection) -> None:
        spec = self._policy.spec
        history, prev_total_s = History(spec), None
        while True:
            data = await connection.recv()
            began_s = time.monotonic()
            if isinstance(data, str):
                raise UsageError("an observation should be a binary message, got text")
            observation = unpack(data)
            inputs = history.add(self._keys.from_wire(observation, spec))
            computed = await self._compute(connection, inputs, _context(observation, spec))
            answer = _answer(computed, server_s=time.monotonic() - began_s, prev_total_s=prev_total_s)
            async with asyncio.timeout(limits.TRANSFER_S):
                await connection.send(pack(answer))
            prev_total_s = time.monotonic() - began_s

    async def _compute(
        self, connection: ServerConnection, inputs: dict[str, Any], context: ActContext
    ) -> Computed:
        """Wait for the policy. The request is dropped if its client leaves."""
        result = self._batcher.submit(connection, inputs, context)
        assert isinstance(connection, _Connection)
        connection.on_lost = result.cancel
        try:
            return await asyncio.wrap_future(result)
        finally:
            connection.on_lost = None

    def _metadata(self) -> dict[str, Any]:
        spec = self._policy.spec
        return {
            "policy": spec.name,
            "horizon": spec.horizon,
            "action_axes": list(spec.action.names) or [f"axis{i}" for i in range(spec.action.shape[0])],
            "history": bool(spec.history),  # an episode needs a new connection
            "context": True,  # observations may have a context: see policies/openpi/context.py
            "guidable": spec.guidable,
        }


class _Connection(ServerConnection):
    """Counts itself among the unproven connections from the beginning, and tells when it is lost: `on_lost` for its request,
    `on_end` for the server. A client may show the key and yet not become a WebSocket, so its handler may never run."""

    on_lost: Callable[[], object] | None = None

    def __init__(
        self,
        *arguments: Any,
        unproven: UnprovenConnections,
        on_end: Callable[[ServerConnection], None],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._unproven, self._on_end = unproven, on_end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._unproven.add(self, str(peer[0]) if peer else "", self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()
        self._on_end(self)


def _context(observation: Mapping[str, Any], spec: PolicySpec) -> ActContext:
    return context_from_wire(observation, spec) or ActContext(deterministic=True)  # stock clients send none


def _answer(computed: Computed, *, server_s: float, prev_total_s: float | None) -> dict[str, Any]:
    timing = {"infer_ms": 1e3 * server_s}
    if prev_total_s is not None:
        timing["prev_total_ms"] = 1e3 * prev_total_s  # of the request before, as openpi's server says it
    return {
        "actions": computed.chunk.actions[0],
        "policy_timing": {"infer_ms": 1e3 * computed.infer_s},
        "server_timing": timing,
        "policy_version": int(computed.chunk.policy_version),
    }
