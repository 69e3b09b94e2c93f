"""A policy that loads newly published weights while it acts. Loading never delays an action."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, runtime_checkable

from dovetail.core.abilities import StagesWeights
from dovetail.core.bfloat16 import all_finite
from dovetail.core.contracts import Policy, WeightStore
from dovetail.core.errors import StoreError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot

__all__ = ["FollowingPolicy"]

POLL_S = 0.5
_MAX_WEIGHT_BYTES = 1 << 30  # of a policy that does not report its size


@runtime_checkable
class HasWeights(Protocol):
    def weights(self) -> Mapping[str, Mapping[str, Array]]: ...


@runtime_checkable
class LoadsVersions(Protocol):
    """A store that keeps several versions."""

    def versions(self) -> list[int]: ...

    def load(self, version: int) -> WeightSnapshot: ...


class FollowingPolicy:
    """A policy that stages newer weights while it acts, and then swaps them (`StagesWeights`). A policy without that ability
    is built twice: one acts while newer weights are loaded into the other, then the two are swapped.

    Any thread may call `act`; calls run one after another. Inside `with`, a thread polls `store` for new versions;
    without a store the weights change only by `use`, which needs `takes_weights`. Weights that do not load, or contain NaN,
    are reported once to `on_problem`, and the current weights stay in use.
    """

    def __init__(
        self,
        make: Callable[[], Policy],
        snapshot: WeightSnapshot | None = None,
        *,
        store: WeightStore | None = None,
        takes_weights: bool = False,
        log: Callable[[str], None] = lambda line: None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self._acting = make()
        needs_spare = (store is not None or takes_weights) and not isinstance(self._acting, StagesWeights)
        self._spare = make() if needs_spare else None
        self._store, self._log, self._on_problem = store, log, on_problem or log
        if snapshot is not None:
            _load(self._acting, snapshot)
        self.warmup()
        self._seen = snapshot.version if snapshot is not None else 0
        self._problem = ""
        self._num_swaps, self._load_s, self._swap_s = 0, 0.0, 0.0
        self._lock = threading.Lock()  # held while one of the policies acts
        self._staging = threading.Lock()  # held while weights are staged and swapped
        self._ended = threading.Event()
        self.following = True  # False: ignore newly published weights
        self._thread = threading.Thread(target=self._follow, name="weights", daemon=True)

    @property
    def spec(self) -> PolicySpec:
        return self._acting.spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with self._lock:
            return self._acting.act(observations, context)

    def reset(self) -> None:
        with self._lock:
            self._acting.reset()

    def warmup(self) -> None:
        self._acting.warmup()
        if self._spare is not None:
            self._spare.warmup()

    def load(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights until the store has newer ones."""
        with self._lock:
            _load(self._acting, snapshot)
            self._seen = max(self._seen, snapshot.version)

    def refresh(self) -> bool:
        """Load the newest weights if they are newer. Only one thread may call this."""
        if self._store is None:
            return False
        began_s = time.perf_counter()
        snapshot = self._store.latest(newer_than=self._seen)
        if snapshot is None:
            return False
        self._seen = snapshot.version  # also if they are refused: a second try would fail too
        self._swap_in(snapshot, began_s)
        return True

    def use(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights from the next chunk on, until the store has newer ones. Any thread may call."""
        self._swap_in(snapshot, time.perf_counter())
        self._seen = max(self._seen, snapshot.version)

    @property
    def max_weight_bytes(self) -> int:
        """Limit for weights from elsewhere: twice the policy's own, because types may be wider."""
        weights = self.weights()
        if weights is None:
            return _MAX_WEIGHT_BYTES
        arrays = (array for component in weights.values() for array in component.values())
        return 2 * sum(array.nbytes for array in arrays) + (1 << 20)

    def weights(self) -> Mapping[str, Mapping[str, Array]] | None:
        """The weights of the policy that acts, if it has this ability."""
        return self._acting.weights() if isinstance(self._acting, HasWeights) else None

    def stored(self, version: int) -> WeightSnapshot | None:
        """A version of the store, if it has it."""
        store = self._store
        if not isinstance(store, LoadsVersions) or version not in store.versions():
            return None
        return store.load(version)

    def _swap_in(self, snapshot: WeightSnapshot, began_s: float) -> None:
        with self._staging:
            use = self._stage(snapshot)
            loaded_s = time.perf_counter()
            with self._lock:
                taken_s = time.perf_counter()
                use()
                self._swap_s = max(self._swap_s, time.perf_counter() - taken_s)
        self._load_s = max(self._load_s, loaded_s - began_s)
        self._num_swaps += 1

    def _stage(self, snapshot: WeightSnapshot) -> Callable[[], None]:
        """Prepare new weights; the result puts them into use."""
        if isinstance(self._acting, StagesWeights):
            return self._acting.stage(snapshot)
        assert self._spare is not None
        with self._lock:
            pass  # wait for a call that still uses the policy that is now spare
        _load(self._spare, snapshot)

        def swap() -> None:
            assert self._spare is not None
            self._acting, self._spare = self._spare, self._acting

        return swap

    def telemetry(self) -> dict[str, float]:
        """Number of weight updates, the longest load, and the longest delay of an action by a swap."""
        return {
            "weights_swaps": float(self._num_swaps),
            "weights_load_max_ms": 1e3 * self._load_s,
            "weights_swap_max_ms": 1e3 * self._swap_s,
        }

    def __enter__(self) -> FollowingPolicy:
        if self._store is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(POLL_S)

    def _follow(self) -> None:
        while not self._ended.wait(POLL_S):
            if not self.following:
                continue
            try:
                if self.refresh():
                    self._log(f"weights version {self._seen}")
                self._problem = ""
            except Exception as error:  # a thread border: the current weights stay in use
                problem = " ".join(str(error).split()) or type(error).__name__
                if problem != self._problem:
                    self._on_problem(f"new weights were not loaded: {problem}")
                self._problem = problem


def _load(policy: Policy, snapshot: WeightSnapshot) -> None:
    for component, arrays in snapshot.components.items():
        for name, array in arrays.items():
            if not all_finite(array):
                raise StoreError(
                    f"weights version {snapshot.version}: {component}/{name} is not finite; not loaded"
                )
    policy.load(snapshot)
