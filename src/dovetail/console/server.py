"""The HTTP server. It writes no access log, because an address may contain the token.

Connections that have not shown the token have limits of number, time and size, so that a STOP always gets in.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dovetail.console.access_guard import AccessGuard
from dovetail.core.errors import UsageError

__all__ = ["listen", "serve"]

FIRST_REQUEST_S = 5.0  # for a connection to show the token
MAX_UNPROVEN_BYTES = 1 << 16  # of the headers, before the token has been seen
_ACCEPTED_AT_ONCE = 32  # below the limit of unproven connections: a new one is read before it can be displaced
_BACKLOG = 1024  # connections that wait in the kernel
_MAX_OPEN_FILES = 1 << 16
_POLL_S = 0.1
_SWITCH_S = 0.0005  # a STOP takes the interpreter from a busy thread several times, and waits so long for each


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that an error appears before the console is announced. Port 0: any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {host} port {port} ({error.strerror}): choose another --port"
        ) from error
    return bound


def serve(
    app: AccessGuard, bound: socket.socket, *, ready: Callable[[], None], should_stop: Callable[[], bool]
) -> None:
    """Serve until `should_stop`; calls `ready` when requests are answered."""
    logging.getLogger("nicegui").setLevel(logging.ERROR)  # it would log every unknown path
    _allow_open_files()
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()  # a full collection stops all threads; it need not look at what was imported

    class Connection(_Connection):
        guard = app

    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="error",  # a warning for each invalid request would let strangers fill the terminal
        access_log=False,
        server_header=False,
        proxy_headers=False,  # clients are told apart by their real addresses
        backlog=_ACCEPTED_AT_ONCE,
        ws_max_size=1 << 20,
        ws_ping_interval=5.0,
        ws_ping_timeout=5.0,
        timeout_graceful_shutdown=1,
    )
    asyncio.run(_serve(uvicorn.Server(config), bound, ready=ready, should_stop=should_stop))


async def _serve(
    server: uvicorn.Server, bound: socket.socket, *, ready: Callable[[], None], should_stop: Callable[[], bool]
) -> None:
    serving = asyncio.create_task(server._serve([bound]))  # `serve` would install its own signal handlers
    is_ready = False
    while not serving.done():
        if server.started and not is_ready:
            is_ready = True
            bound.listen(_BACKLOG)  # asyncio also accepts `backlog` connections at once; the kernel may queue more
            ready()
        if should_stop():
            server.should_exit = True
        await asyncio.wait([serving], timeout=_POLL_S)
    await serving


class _Connection(HttpToolsProtocol):
    """A connection that is closed unless it shows the token in time and with few bytes. The guard checks the token."""

    guard: AccessGuard

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._num_header_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is None:  # it has been closed already
            transport.abort()
            return
        self.guard.unproven.add(self.client, self.client[0], transport.abort)
        self._deadline = self.loop.call_later(FIRST_REQUEST_S, self._expire)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None:  # no complete headers yet
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_UNPROVEN_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self.client is not None:
            self.guard.unproven.remove(self.client)
        super().connection_lost(exc)

    def _expire(self) -> None:
        """Close the connection. Also called for a websocket, whose connection has another protocol object by now."""
        if not self.transport.is_closing() and self.guard.unproven.remove(self.client):
            self.transport.abort()


def _allow_open_files() -> None:
    """Allow as many open files as the system permits: at the usual limit of 1024 no connection could be accepted."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
