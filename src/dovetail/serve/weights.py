"""New weights for a served policy, at the request of a run that trains it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from dovetail.core.errors import UsageError
from dovetail.core.types import WeightSnapshot
from dovetail.policies.remote.weights import IncomingWeights, read_use
from dovetail.policies.remote.wire import Message

__all__ = ["ServedWeights", "TakesWeights"]


class TakesWeights(Protocol):
    def use(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights from the next chunk on. Raise StoreError if they do not fit."""

    def stored(self, version: int) -> WeightSnapshot | None:
        """A version of the run's folder, if this machine has it."""


class ServedWeights:
    """Which weights a server uses. They come from the run's folder if this machine has it. Otherwise, with `max_bytes`, the
    robots send them."""

    def __init__(
        self, policy: TakesWeights, *, max_bytes: int = 0, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._policy, self._log = policy, log
        self.max_bytes = max_bytes
        self._lock = threading.Lock()  # one change at a time
        self._used: tuple[int, Mapping[str, str]] | None = None

    def incoming(self) -> IncomingWeights:
        """For one connection."""
        return IncomingWeights(max_bytes=self.max_bytes)

    def respond(self, request: Message, incoming: IncomingWeights) -> Message:
        if request.kind == "weights":
            if not self.max_bytes:
                raise UsageError("this server takes no weights. Start it with --receive")
            incoming.add(request)
            return Message(kind="done")
        version, hashes = read_use(request)
        with self._lock:
            if self._used == (version, hashes):
                return Message(kind="using")
            snapshot = incoming.take(version, hashes) or self._stored(version, hashes)
            if snapshot is not None:
                self._policy.use(snapshot)
                self._used = (version, hashes)
                self._log(f"weights version {version}")
                return Message(kind="using")
        if not self.max_bytes:
            raise UsageError(
                f"the server does not have weights version {version} of this run. Start it with --receive, or on a disk "
                "that has the run's folder"
            )
        return Message(kind="send")

    def _stored(self, version: int, hashes: Mapping[str, str]) -> WeightSnapshot | None:
        snapshot = self._policy.stored(version)
        return snapshot if snapshot is not None and dict(snapshot.hashes) == hashes else None
