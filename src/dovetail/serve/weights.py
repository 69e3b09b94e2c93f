"""New weights for a served policy, at the request of a run that trains it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, Protocol

from dovetail.core.errors import UsageError
from dovetail.core.types import Array, WeightSnapshot
from dovetail.policies.remote.weights import IncomingWeights, component_hashes, read_run, read_use
from dovetail.policies.remote.wire import Message

__all__ = ["ServedWeights", "TakesWeights"]


class TakesWeights(Protocol):
    def use(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights from the next chunk on. Raise StoreError if they do not fit."""

    def stored(self, version: int) -> WeightSnapshot | None:
        """A version of the run's folder, if this machine has it."""

    def weights(self) -> Mapping[str, Mapping[str, Array]] | None:
        """The weights with which it acts, if it can tell them."""


class _Used(NamedTuple):
    run: str
    version: int
    hashes: Mapping[str, str]


class ServedWeights:
    """Which weights a server uses. They come from the run's folder if this machine has it. Otherwise, with `max_bytes`, the
    robots send them, and the server does not act before.

    A server has the weights of one run at a time. As long as a robot of that run is connected, other runs are refused.
    Then another run takes over, and what the server has of the first one no longer acts.
    """

    def __init__(
        self, policy: TakesWeights, *, max_bytes: int = 0, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._policy, self._log = policy, log
        self.max_bytes = max_bytes
        self._lock = threading.Lock()  # one change at a time
        self._run: str | None = None
        self._clients: set[Hashable] = set()  # of that run
        self._used: _Used | None = None
        self._initial: Mapping[str, str] | None = None  # hashes of the weights since the start
        self._changed = False  # since the start

    def incoming(self) -> IncomingWeights:
        """For one connection."""
        return IncomingWeights(max_bytes=self.max_bytes)

    @property
    def have_arrived(self) -> bool:
        """False: the policy is untrained, or has the weights of a run that has gone."""
        return not self.max_bytes or self._used is not None

    def are_of(self, run: str) -> bool:
        used = self._used
        return used is not None and used.run == run

    def forget(self, client: Hashable) -> None:
        """The client has left."""
        with self._lock:
            self._clients.discard(client)

    def respond(self, request: Message, incoming: IncomingWeights, *, client: Hashable) -> Message:
        if request.kind == "weights":
            if not self.max_bytes:
                raise UsageError("this server takes no weights. Start it with --receive")
            if client not in self._clients:
                raise UsageError("the weights should follow a request to use them")
            incoming.add(request)
            return Message(kind="done")
        version, hashes = read_use(request)
        run = read_run(request)
        if run is None:
            raise UsageError("the request names no run. Install the same Dovetail version on both")
        wanted = _Used(run, version, hashes)
        with self._lock:
            self._claim(run, client)
            if self._used == wanted:
                incoming.clear()  # another arm of the run has sent the same meanwhile
                return Message(kind="using")
            if self._use(wanted, incoming):
                return Message(kind="using")
        if not self.max_bytes:
            raise UsageError(
                f"the server does not have weights version {version} of this run. Start it with --receive, or on a disk "
                "that has the run's folder"
            )
        return Message(kind="send")

    def _claim(self, run: str, client: Hashable) -> None:
        """The weights of this run are used from now on. Raise UsageError while another run is connected."""
        if run != self._run:
            if self._clients:
                raise UsageError(
                    "another run is connected to this server, and a server has the weights of one run at a time. Wait for "
                    "the end of that run, or start another server (--port) and set policy_server.address"
                )
            if self._run is not None:
                self._log("another run takes over")
            self._run, self._used = run, None
        self._clients.add(client)

    def _use(self, wanted: _Used, incoming: IncomingWeights) -> bool:
        """False: they must be sent."""
        snapshot = incoming.take(wanted.version, wanted.hashes) or self._stored(wanted)
        if snapshot is not None:
            self._changed = True
            self._policy.use(snapshot)
        elif not self._are_initial(wanted):
            return False
        self._used = wanted
        self._log(f"weights version {wanted.version}")
        return True

    def _are_initial(self, wanted: _Used) -> bool:
        """Whether a run asks for the untrained weights that the server has made itself, from the same config and seed."""
        if wanted.version != 0 or self._changed or not self.max_bytes:
            return False
        if self._initial is None:
            self._initial = component_hashes(self._policy.weights() or {})
        return self._initial == wanted.hashes

    def _stored(self, wanted: _Used) -> WeightSnapshot | None:
        snapshot = self._policy.stored(wanted.version)
        return snapshot if snapshot is not None and dict(snapshot.hashes) == wanted.hashes else None
