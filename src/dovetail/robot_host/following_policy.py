"""A policy that follows published weights while it acts, and never lets a question wait for a load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

import numpy as np

from dovetail.core.contracts import Policy, WeightStore
from dovetail.core.errors import StoreError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot

__all__ = ["FollowingPolicy"]

POLL_S = 0.5


class FollowingPolicy:
    """Two policies of one make: one acts, newer weights are loaded into the other, then they change places.

    Any thread may ask; questions are answered one after another. `with` it, a thread looks for new versions in
    `store`, and tells of them; without a store it stays with the weights it was given. Weights that cannot be loaded,
    or that hold NaN, are complained of once, and the old ones go on.
    """

    def __init__(
        self,
        make: Callable[[], Policy],
        snapshot: WeightSnapshot | None = None,
        *,
        store: WeightStore | None = None,
        tell: Callable[[str], None] = lambda line: None,
        complain: Callable[[str], None] | None = None,
    ) -> None:
        self._acting = make()
        self._spare = make() if store is not None else None
        self._store, self._tell, self._complain = store, tell, complain or tell
        if snapshot is not None:
            _load(self._acting, snapshot)
        self.warmup()
        self._seen = snapshot.version if snapshot is not None else 0
        self._problem = ""
        self._num_swaps, self._load_s, self._swap_s = 0, 0.0, 0.0
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self.following = True  # while false, what it was given last stays, whatever is published
        self._follower = threading.Thread(target=self._follow, name="weights", daemon=True)

    @property
    def spec(self) -> PolicySpec:
        return self._acting.spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with self._turn:
            return self._acting.act(observations, context)

    def reset(self) -> None:
        with self._turn:
            self._acting.reset()

    def warmup(self) -> None:
        self._acting.warmup()
        if self._spare is not None:
            self._spare.warmup()

    def load(self, snapshot: WeightSnapshot) -> None:
        """Act with these, whatever the store has; it is followed on from there."""
        with self._turn:
            _load(self._acting, snapshot)
            self._seen = max(self._seen, snapshot.version)

    def refresh(self) -> bool:
        """Take up the newest weights, if there are newer ones; for one thread only."""
        if self._store is None or self._spare is None:
            return False
        began_s = time.perf_counter()
        snapshot = self._store.latest(newer_than=self._seen)
        if snapshot is None:
            return False
        self._seen = snapshot.version  # also of weights that are refused: they will not get better
        with self._turn:
            pass  # whoever was still acting with what is now the spare has finished
        _load(self._spare, snapshot)
        loaded_s = time.perf_counter()
        with self._turn:
            taken_s = time.perf_counter()
            self._acting, self._spare = self._spare, self._acting
            self._swap_s = max(self._swap_s, time.perf_counter() - taken_s)
        self._load_s = max(self._load_s, loaded_s - began_s)
        self._num_swaps += 1
        return True

    def report(self) -> dict[str, float]:
        """How often weights were taken up, how long that took at most, and how long it kept a question waiting."""
        return {
            "weights_swaps": float(self._num_swaps),
            "weights_load_max_ms": 1e3 * self._load_s,
            "weights_swap_max_ms": 1e3 * self._swap_s,
        }

    def __enter__(self) -> FollowingPolicy:
        if self._store is not None:
            self._follower.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._follower.is_alive():
            self._follower.join(POLL_S)

    def _follow(self) -> None:
        while not self._ended.wait(POLL_S):
            if not self.following:
                continue
            try:
                if self.refresh():
                    self._tell(f"weights version {self._seen}")
                self._problem = ""
            except Exception as error:  # whatever is wrong with new weights, the old ones go on
                problem = " ".join(f"{error}".split()) or type(error).__name__
                if problem != self._problem:
                    self._complain(f"kept the weights it has: {problem}")
                self._problem = problem


def _load(policy: Policy, snapshot: WeightSnapshot) -> None:
    for component, arrays in snapshot.components.items():
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise StoreError(
                    f"weights version {snapshot.version}: {component}/{name} is not finite; not loaded"
                )
    policy.load(snapshot)
