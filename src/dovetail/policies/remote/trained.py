"""A policy that a run trains and another machine computes. The weights go to that machine over the same connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from dovetail.config.policy_server import LearningServerConfig
from dovetail.core.errors import PolicyUnreachable
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.policy import RemotePolicy
from dovetail.policies.remote.requests import OutdatedWeights
from dovetail.policies.remote.weights import use_message, weight_messages
from dovetail.policies.remote.wire import Message

__all__ = ["TrainedRemotePolicy"]

T = TypeVar("T")
_PAUSE_S = 0.2


class TrainedRemotePolicy(RemotePolicy):
    """A `RemotePolicy` whose weights are those of `load`, as for a local policy. The spec is that of the local policy.

    On every connection, the first request tells the server which weights to use, and sends them if it lacks them. So a
    server that was restarted continues with the right weights. Every request names the run and the oldest version that may
    answer it. Before the first `load`, the weights are `untrained()`, as version 0: a server never acts with others.

    With `waits`, a call waits for a server that is gone, up to `wait_s`: simulated time stands still, and the data is the
    same. Without it, the call fails, and the arm holds.
    """

    brings_weights: ClassVar[bool] = False

    def __init__(
        self,
        config: LearningServerConfig,
        *,
        spec: PolicySpec,
        run: str,
        untrained: Callable[[], Mapping[str, Mapping[str, Array]]],
        waits: bool,
    ) -> None:
        """`run`: see `new_run_id`; all arms of a run have the same one."""
        super().__init__(config)
        self._server, self._spec, self._untrained, self._waits = config, spec, untrained, waits
        self._run: str = run
        self._snapshot: WeightSnapshot | None = None
        self._informed: Connection | None = None  # the connection whose server uses these weights

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        def exchange(connection: Connection, spec: PolicySpec) -> ActionChunk:
            self._inform(connection)
            try:
                return self._chunk(connection, spec, observations, context)
            except OutdatedWeights:  # another arm of the run has loaded an older version since
                self._informed = None
                self._inform(connection)
                return self._chunk(connection, spec, observations, context)

        with self._lock:
            return self._patiently(lambda: self._request(exchange))

    def warmup(self) -> None:
        """Reach the server before the robot moves. It computes nothing, because it may have no weights yet."""
        with self._lock:
            self._patiently(lambda: self._request(lambda connection, spec: None))

    def load(self, snapshot: WeightSnapshot) -> None:
        """Use these weights from the next chunk on. If the server is gone, it gets them when it is back."""
        with self._lock:
            self._snapshot, self._informed = snapshot, None
            self._min_version = snapshot.version
            self._unless_gone(lambda connection, spec: self._inform(connection))

    def reset(self) -> None:
        """An episode begins."""
        with self._lock:
            self._unless_gone(self._reset)

    def _unless_gone(self, exchange: Callable[[Connection, PolicySpec], Any]) -> None:
        try:
            self._patiently(lambda: self._request(exchange))
        except PolicyUnreachable:
            if self._waits:
                raise

    def _patiently(self, call: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + (self._server.wait_s if self._waits else 0.0)
        while True:
            try:
                return call()
            except PolicyUnreachable:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(_PAUSE_S)

    def _inform(self, connection: Connection) -> None:
        """Let the server use the weights that were loaded last."""
        if self._informed is connection:
            return
        if self._snapshot is None:
            self._snapshot = WeightSnapshot(version=0, components=self._untrained(), hashes={})
        use = use_message(self._snapshot, run=self._run)
        if self._exchange(connection, use).kind == "send":
            for part in weight_messages(self._snapshot):
                self._exchange(connection, part).expect("done")
            self._exchange(connection, use).expect("using")
        self._informed = connection

    def _exchange(self, connection: Connection, message: Message) -> Message:
        deadline_s = time.monotonic() + self._server.weights_timeout_s
        connection.send(message, deadline_s=deadline_s)
        answer = connection.receive(deadline_s=deadline_s, max_body=0)
        return answer if answer.kind in ("using", "send") else answer.expect("done")
