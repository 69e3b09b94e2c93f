"""Computes chunks in a thread of its own: requests that arrive together are one batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dovetail.core.errors import PolicyError
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.inputs import zero_inputs
from dovetail.serve.server import ServedPolicy

__all__ = ["Batcher", "Computed"]

WINDOW_S = 0.003  # how long a request waits for others
STALE_S = 5.0  # the robot of an older request has moved on
_ACTIVE_S = 1.0  # a client is expected to ask again within this time
_CONTEXT = ActContext(deterministic=True)  # the protocol has no context


class Computed(NamedTuple):
    """One row of a chunk, and the time that the policy needed for its batch."""

    chunk: ActionChunk
    infer_s: float


@dataclass(eq=False)
class _Request:
    client: Hashable
    inputs: Mapping[str, Array]  # one row
    arrived_s: float = field(default_factory=time.monotonic)
    result: Future[Computed] = field(default_factory=Future)


class Batcher:
    """Requests are computed in the order of their arrival. A client has one request at a time, so none can displace others.

    A request waits up to 3 ms for the other clients that are active, and not at all if there are none. Batches have 1, 2, 4,
    8 ... rows, so that a policy compiles few sizes; `warmup` computes each once. Cancel a request's future to drop it.
    """

    def __init__(self, policy: ServedPolicy, *, max_rows: int) -> None:
        self._policy = policy
        self._max_rows = 1 << (max_rows.bit_length() - 1)
        self._waiting: deque[_Request] = deque()
        self._active: dict[Hashable, float] = {}  # client: time of its last request
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    def warmup(self) -> None:
        row, num = zero_inputs(self._policy.spec), 1
        while num <= self._max_rows:
            self._policy.act({key: np.repeat(value, num, axis=0) for key, value in row.items()}, _CONTEXT)
            num *= 2

    def start(self) -> None:
        self._thread.start()

    def submit(self, client: Hashable, inputs: Mapping[str, Array]) -> Future[Computed]:
        """Compute one row of inputs. Any thread may call."""
        request = _Request(client, inputs)
        with self._changed:
            if self._is_closed:
                raise PolicyError("the server is closing")
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
            num = min(len(self._waiting), self._max_rows)
            num = 1 << (num.bit_length() - 1) if num else 0
            return [self._waiting.popleft() for _ in range(num)]

    def _compute(self, batch: list[_Request]) -> None:
        try:
            inputs = {key: np.concatenate([request.inputs[key] for request in batch]) for key in batch[0].inputs}
            began_s = time.monotonic()
            chunk = self._policy.act(inputs, _CONTEXT)
            infer_s = time.monotonic() - began_s
            if len(chunk.actions) != len(batch) or not np.isfinite(chunk.actions).all():
                raise PolicyError("the policy computed actions that are not finite, or too few")
            rows = [Computed(chunk.at(row), infer_s) for row in range(len(batch))]
        except Exception as error:  # a thread border: the clients get the error
            for request in batch:
                request.result.set_exception(error)
            return
        for request, row in zip(batch, rows, strict=True):
            request.result.set_result(row)


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
