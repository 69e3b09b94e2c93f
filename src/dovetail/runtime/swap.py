"""New weights without a pause: loaded and checked in a spare policy, which then takes the other's place."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dovetail.core.contracts import Policy, WeightStore
from dovetail.core.errors import StoreError
from dovetail.core.types import WeightSnapshot

__all__ = ["Swapper"]


class Swapper:
    """`policy()` between two thoughts gives the one to think with.

    Where it is to `follow` a store, a thread looks for new versions there, so that reading and checking them never
    keeps a thought waiting. Weights that do not fit, or are not finite, are refused, and `problem` says so.
    """

    def __init__(
        self, make: Callable[[], Policy], *, follow: WeightStore | None = None, look_s: float = 0.1
    ) -> None:
        self._make = make
        self._active = make()
        self._active.warmup()
        self._version = 0
        self._ready: tuple[Policy, int] | None = None  # loaded, waiting to be taken
        self._spare: Policy | None = None
        self._lock = threading.Lock()  # around references, never around work
        self._ended = threading.Event()
        self.problem: str | None = None
        self.num_swaps = 0
        self._thread: threading.Thread | None = None
        if follow is not None:
            self._thread = threading.Thread(
                target=self._follow, args=(follow, look_s), name="weights", daemon=True
            )
            self._thread.start()

    def policy(self) -> Policy:
        with self._lock:
            if self._ready is not None:
                self._spare, (self._active, self._version) = self._active, self._ready
                self._ready = None
                self.num_swaps += 1
            return self._active

    @property
    def version(self) -> int:
        """Of the weights in use."""
        return self._version

    def load(self, snapshot: WeightSnapshot) -> None:
        """These weights from the next thought on, and nothing in between. Raises StoreError if they do not fit."""
        self.policy().load(snapshot)
        self._version = snapshot.version

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, store: WeightStore, look_s: float) -> None:
        seen = 0
        while not self._ended.wait(look_s):
            try:
                snapshot = store.latest(newer_than=seen)
                if snapshot is None:
                    continue
                seen = snapshot.version
                with self._lock:  # one that was loaded and never taken is old by now
                    spare = self._ready[0] if self._ready else self._spare
                    self._ready = self._spare = None
                spare = spare or self._make()
                self._prepare(spare, snapshot)
                self.problem = None
            except StoreError as error:
                self.problem = str(error)

    def _prepare(self, spare: Policy, snapshot: WeightSnapshot) -> None:
        try:
            spare.load(snapshot)
            spare.warmup()
        finally:  # what could not be loaded is as it was: a spare still
            with self._lock:
                self._spare = spare
        with self._lock:
            self._spare, self._ready = None, (spare, snapshot.version)
