"""Limits for connections that have not shown a token yet. Used by every server that listens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

__all__ = ["UnprovenConnections"]


class UnprovenConnections:
    """Connections of unknown clients. A new one always gets in: above a limit, an older one is closed instead.

    The server calls `add` when it has accepted a connection, and `remove` when the client has shown the token or the
    connection has ended. Proven clients do not count. Above `max_total`, the oldest connection of the address with the
    most connections is closed, so one address cannot displace the others. Any thread may call.
    """

    def __init__(self, *, max_total: int, max_per_address: int) -> None:
        self._max_total, self._max_per_address = max_total, max_per_address
        self._by_address: dict[str, dict[Hashable, Callable[[], None]]] = {}  # oldest first
        self._addresses: dict[Hashable, str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, key: Hashable, address: str, close: Callable[[], None]) -> None:
        """Count a connection. `close` is called at most once, from any thread, and must not wait."""
        to_close: list[Callable[[], None]] = []
        with self._lock:
            self._drop(key)  # a port may be used again before the end of its last connection was noticed
            self._addresses[key] = address
            self._by_address.setdefault(address, {})[key] = close
            if len(self._by_address[address]) > self._max_per_address:
                to_close.append(self._drop_oldest(address))
            if len(self._addresses) > self._max_total:
                to_close.append(
                    self._drop_oldest(max(self._by_address, key=lambda one: len(self._by_address[one])))
                )
        for close_one in to_close:
            close_one()

    def remove(self, key: Hashable) -> bool:
        """Stop counting a connection. False if it was not counted, or was closed by a limit."""
        with self._lock:
            return self._drop(key) is not None

    def _drop_oldest(self, address: str) -> Callable[[], None]:
        close = self._drop(next(iter(self._by_address[address])))
        assert close is not None
        return close

    def _drop(self, key: Hashable) -> Callable[[], None] | None:
        address = self._addresses.pop(key, None)
        if address is None:
            return None
        connections = self._by_address[address]
        close = connections.pop(key)
        if not connections:
            del self._by_address[address]
        return close
