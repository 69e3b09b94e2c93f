"""Listening. One line of output, no access log: an address may hold the token."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn

from dovetail.console.guard import Guard
from dovetail.core.errors import UsageError

__all__ = ["listen", "serve"]

_LOOK_S = 0.1


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound before anything is promised; port 0 takes any that is free."""
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


def serve(app: Guard, bound: socket.socket, *, ready: Callable[[], None], should_stop: Callable[[], bool]) -> None:
    """Until `should_stop`; calls `ready` once requests are answered."""
    logging.getLogger("nicegui").setLevel(logging.ERROR)  # an address that is not there is no news
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
    serving = asyncio.create_task(server._serve([bound]))  # `serve` would take our signals
    said = False
    while not serving.done():
        if server.started and not said:
            said = True
            ready()
        if should_stop():
            server.should_exit = True
        await asyncio.wait([serving], timeout=_LOOK_S)
    await serving
