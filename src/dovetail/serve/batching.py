"""Computes chunks in a thread of its own: requests that arrive together are one batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from dovetail.core.errors import PolicyError
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.inputs import zero_inputs

__all__ = ["DEFAULT_ROWS", "Batcher", "Computed", "ServedPolicy", "ServerCloses"]

DEFAULT_ROWS = 8
WINDOW_S = 0.003  # how long a request waits for others
STALE_S = 5.0  # the robot of an older request has moved on
_ACTIVE_S = 1.0  # a client is expected to ask again within this time
_GUIDED_WARMUP_S = 30.0  # no further guided size is warmed up after this time


class ServerCloses(PolicyError):
    """The server ends. Its clients get no answer but the end of their connection, so that their arms hold and ask again."""


class ServedPolicy(Protocol):
    """A policy that several threads may call at once."""

    @property
    def spec(self) -> PolicySpec: ...

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk: ...

    def reset(self) -> None: ...


class Computed(NamedTuple):
    """The chunk of a request [B, H, A], and the time that the policy needed for its batch."""

    chunk: ActionChunk
    infer_s: float


@dataclass(eq=False)
class _Request:
    client: Hashable
    inputs: Mapping[str, Array]  # [B, ...]
    context: ActContext
    arrived_s: float = field(default_factory=time.monotonic)
    result: Future[Computed] = field(default_factory=Future)

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.inputs.values())))

    def fits(self, other: _Request) -> bool:
        """Whether both may be rows of one batch. Random actions depend on the seed and on the row, so they are computed
        alone: a robot gets the same actions with and without other robots."""
        one, two = self.context, other.context
        return (
            (one.deterministic and two.deterministic)
            and self.num_rows == other.num_rows == 1
            and all(value.shape == other.inputs[key].shape for key, value in self.inputs.items())  # long prompts
            and (one.delay, one.horizon) == (two.delay, two.horizon)
            and _steps(one.prefix) == _steps(two.prefix)
        )


class Batcher:
    """Requests are computed in the order of their arrival. A client has one request at a time, so none can displace others.

    A request waits up to 3 ms for the other clients that are active, and not at all if there are none. Only deterministic
    requests with the same delay and horizon are joined. Batches have 1, 2, 4 ... rows, so that a policy compiles few sizes;
    `warmup` computes each once. A guided size may take a minute to compile and is seldom needed, because robots rarely have
    the same delay: `warmup` ends with those when they have taken 30 s, and larger guided batches are not made. Cancel a
    request's future to drop it.
    """

    def __init__(self, policy: ServedPolicy, *, max_rows: int = DEFAULT_ROWS) -> None:
        self._policy = policy
        self._max_rows = self._max_guided_rows = 1 << (max_rows.bit_length() - 1)
        self._waiting: deque[_Request] = deque()
        self._active: dict[Hashable, float] = {}  # client: time of its last request
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    def warmup(self) -> None:
        """The policy has computed one row already, guided too if it can."""
        spec = self._policy.spec
        row, num, guided_s = zero_inputs(spec), 2, 0.0
        self._max_guided_rows = 1
        while num <= self._max_rows:
            inputs = {key: np.repeat(value, num, axis=0) for key, value in row.items()}
            self._policy.act(inputs, ActContext(deterministic=True))
            if spec.guidable and guided_s < _GUIDED_WARMUP_S:
                began_s = time.monotonic()
                prefix = np.zeros((num, spec.horizon, *spec.action.shape), np.float32)
                self._policy.act(inputs, ActContext(deterministic=True, prefix=prefix, delay=1))
                guided_s += time.monotonic() - began_s
                self._max_guided_rows = num
            num *= 2

    def start(self) -> None:
        self._thread.start()

    def submit(self, client: Hashable, inputs: Mapping[str, Array], context: ActContext) -> Future[Computed]:
        """Compute the chunk of inputs [B, ...]. Any thread may call."""
        request = _Request(client, inputs, context)
        with self._changed:
            if self._is_closed:
                raise ServerCloses("the server closes")
            self._active[client] = request.arrived_s
            self._waiting.append(request)
            self._changed.notify()
        return request.result

    def forget(self, client: Hashable) -> None:
        """Do not expect requests of a client that has left."""
        with self._changed:
            self._active.pop(client, None)
            self._changed.notify()

    def close(self) -> None:
        """End, without waiting for a batch that is being computed."""
        with self._changed:
            self._is_closed = True
            for request in self._waiting:
                request.result.cancel()
            self._waiting.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if fresh := [request for request in batch if _is_wanted(request)]:
                self._compute(fresh)

    def _next_batch(self) -> list[_Request] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            now_s = time.monotonic()
            until_s = self._waiting[0].arrived_s + WINDOW_S
            recent = sum(now_s - last_s < _ACTIVE_S for last_s in self._active.values())
            wanted = min(recent, self._max_rows)
            while (
                len(self._waiting) < wanted and (left_s := until_s - time.monotonic()) > 0 and not self._is_closed
            ):
                self._changed.wait(left_s)
            for request in [request for request in self._waiting if request.result.cancelled()]:
                self._waiting.remove(request)
            return self._take_fitting() if self._waiting else []

    def _take_fitting(self) -> list[_Request]:
        """The oldest request and those that fit it, oldest first. The others keep their places."""
        first = self._waiting[0]
        fitting = [first, *(request for request in list(self._waiting)[1:] if request.fits(first))]
        num = min(len(fitting), self._max_rows if first.context.prefix is None else self._max_guided_rows)
        batch = fitting[: 1 << (num.bit_length() - 1)]
        for request in batch:
            self._waiting.remove(request)
        return batch

    def _compute(self, batch: list[_Request]) -> None:
        try:
            inputs, context = batch[0].inputs, batch[0].context
            if len(batch) > 1:
                inputs = {key: np.concatenate([request.inputs[key] for request in batch]) for key in inputs}
                context = _joined([request.context for request in batch])
            num_rows = sum(request.num_rows for request in batch)
            began_s = time.monotonic()
            chunk = self._policy.act(inputs, context)
            infer_s = time.monotonic() - began_s
            if len(chunk.actions) != num_rows:
                raise PolicyError(f"the policy computed {len(chunk.actions)} chunks for {num_rows} rows")
            chunks = [chunk] if len(batch) == 1 else [_row(chunk, row) for row in range(len(batch))]
        except Exception as error:  # a thread border: the clients get the error
            if len(batch) == 1:
                batch[0].result.set_exception(error)
                return
            for request in batch:  # one of them may have caused it, such as by its prompt
                self._compute([request])
            return
        for request, one in zip(batch, chunks, strict=True):
            if np.isfinite(one.actions).all():
                request.result.set_result(Computed(one, infer_s))
            else:  # the other robots of the batch are not affected
                request.result.set_exception(PolicyError("the policy computed actions that are not finite"))


def _is_wanted(request: _Request) -> bool:
    """False if its client has left or it has waited too long."""
    if not request.result.set_running_or_notify_cancel():
        return False
    if (waited_s := time.monotonic() - request.arrived_s) > STALE_S:
        message = (
            f"the request waited {waited_s:.1f} s, more than {STALE_S:.0f} s. The server has too many clients"
        )
        request.result.set_exception(PolicyError(message))
        return False
    return True


def _joined(contexts: list[ActContext]) -> ActContext:
    """The context of a batch. Deterministic requests with different seeds have none."""
    first = contexts[0]
    prefixes = [context.prefix for context in contexts if context.prefix is not None]
    return replace(
        first,
        seed=first.seed if all(context.seed == first.seed for context in contexts) else None,
        prefix=np.concatenate(prefixes) if prefixes else None,
    )


def _row(chunk: ActionChunk, row: int) -> ActionChunk:
    """One row of a batch, [1, H, A]."""
    rows = slice(row, row + 1)
    extras = {name: value[rows] for name, value in chunk.extras.items()}
    return replace(chunk, actions=chunk.actions[rows], extras=extras)


def _steps(prefix: Array | None) -> int | None:
    return None if prefix is None else prefix.shape[1]
