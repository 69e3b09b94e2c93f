"""The HTTP server. It writes no access log, because an address may contain the token."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn

from dovetail.console.access_guard import AccessGuard
from dovetail.core.errors import UsageError

__all__ = ["listen", "serve"]

_POLL_S = 0.1


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
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
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
            ready()
        if should_stop():
            server.should_exit = True
        await asyncio.wait([serving], timeout=_POLL_S)
    await serving
