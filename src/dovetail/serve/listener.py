"""The listening socket of a policy server, and the limits that hold for every protocol."""

from __future__ import annotations

import socket

from dovetail.core.errors import UsageError

__all__ = ["HANDSHAKE_S", "MAX_CLIENTS", "MAX_UNPROVEN", "MAX_UNPROVEN_PER_ADDRESS", "TRANSFER_S", "open_listener"]

MAX_CLIENTS = 64  # that have proven that they have the token
MAX_UNPROVEN = 128  # connections before or in their handshake; each may last up to HANDSHAKE_S
MAX_UNPROVEN_PER_ADDRESS = 64
HANDSHAKE_S = 5.0
TRANSFER_S = 10.0  # for a request to arrive once it has begun, and for a response to be sent
_BACKLOG = 1024


def open_listener(host: str, port: int) -> tuple[socket.socket, str]:
    """Open the port (0: a free one). Return the socket and the address for clients."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()
        raise UsageError(f"cannot listen on {host}:{port} ({reason}). Choose another --host or --port") from error
    port = listener.getsockname()[1]
    return listener, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
