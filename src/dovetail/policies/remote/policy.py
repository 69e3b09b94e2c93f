"""A policy on another machine: the client of `dovetail serve`. The robot's machine needs neither a GPU nor torch."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np

from dovetail.config.policy_server import PolicyServerConfig, check_address
from dovetail.core.errors import PolicyError, PolicyUnreachable, UsageError
from dovetail.core.images import seen_inputs
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.inputs import check_inputs, zero_inputs
from dovetail.policies.remote.connection import CannotConnect, Connection, ConnectionLost, DeadlineExceeded
from dovetail.policies.remote.handshake import check_token, client_handshake, read_token, same_spec
from dovetail.policies.remote.requests import (
    NoWeights,
    OutdatedWeights,
    act_message,
    max_response_bytes,
    read_chunk,
)
from dovetail.policies.remote.wire import Message, WireError

__all__ = ["ADVICE", "RemoteConfig", "RemotePolicy", "check_address", "failure"]

T = TypeVar("T")
ADVICE: Mapping[type[Exception], str] = {
    DeadlineExceeded: ". Check the load of the server, or raise policy.timeout_s",
    ConnectionLost: ". Check that the server still runs. The next call connects again",
}


class RemoteConfig(PolicyServerConfig):
    pass


class RemotePolicy:
    """See the Policy contract. The spec comes from the server.

    The constructor does not connect; the first use of `spec` or `act` does. A failed request is not repeated, because the
    robot has moved meanwhile; the next call connects again.

    The server also owns the weights: it follows its own run, and chunks carry their version. `load` raises an error,
    because ignoring it would make a learner train weights that are never used.

    Each chunk has two more extras: `server_s` [B], the inference time in seconds, and `network_s` [B], the rest.
    """

    Config: ClassVar[type[RemoteConfig]] = RemoteConfig
    brings_weights: ClassVar[bool] = True

    def __init__(self, config: PolicyServerConfig, *, robot: RobotSpec | None = None, seed: int = 0) -> None:
        self._config = config
        self._spec: PolicySpec | None = None
        self._connection: Connection | None = None
        self._number = 0  # of the last request
        self._min_version = 0  # of the weights that may compute a chunk
        self._run: str | None = None  # whose weights they are; None: any
        self._lock = threading.Lock()  # one request at a time

    @property
    def spec(self) -> PolicySpec:
        if self._spec is None:
            with self._lock:
                return self._request(lambda connection, spec: spec)
        return self._spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with self._lock:
            return self._request(lambda connection, spec: self._chunk(connection, spec, observations, context))

    def warmup(self) -> None:
        """Make one complete request before the robot moves."""
        self.act(zero_inputs(self.spec), ActContext(deterministic=True))

    def load(self, snapshot: WeightSnapshot) -> None:
        raise UsageError(
            f"policy 'remote' cannot load weights: the server at {self._config.address} uses those of its own run. "
            "Train the policy in that run"
        )

    def reset(self) -> None:
        """Tell the server that an episode begins. Raises an error if the server is gone, before the robot moves."""
        with self._lock:
            self._request(self._reset)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    # ---- one request, one response

    def _reset(self, connection: Connection, spec: PolicySpec) -> None:
        deadline_s = time.monotonic() + self._config.timeout_s
        connection.send(Message(kind="reset"), deadline_s=deadline_s)
        connection.receive(deadline_s=deadline_s, max_body=0).expect("done")

    def _chunk(
        self, connection: Connection, spec: PolicySpec, observations: Mapping[str, Array], context: ActContext
    ) -> ActionChunk:
        inputs = check_inputs(seen_inputs(observations, spec), spec)  # never larger images than the policy sees
        num_rows = len(next(iter(inputs.values())))
        self._number += 1
        started_s = time.monotonic()
        deadline_s = started_s + self._config.timeout_s
        request = act_message(self._number, inputs, context, min_version=self._min_version, run=self._run)
        connection.send(request, deadline_s=deadline_s)
        max_body = max_response_bytes(spec, num_rows=num_rows)
        response = connection.receive(deadline_s=deadline_s, max_body=max_body)
        total_s = time.monotonic() - started_s
        chunk, server_s = read_chunk(response, self._number)
        _check_chunk(chunk, spec, num_rows)
        server_s = min(server_s, total_s)  # the other machine's clock may be wrong
        times = {"server_s": server_s, "network_s": total_s - server_s}
        return ActionChunk(
            actions=chunk.actions,
            observed_ns=0,
            policy_version=chunk.policy_version,
            extras={**chunk.extras, **{name: np.full(num_rows, s, np.float32) for name, s in times.items()}},
        )

    def _request(self, exchange: Callable[[Connection, PolicySpec], T]) -> T:
        """Run `exchange` on the open connection or a new one. A failure closes the connection."""
        try:
            return exchange(*self._connect())
        except WireError as error:
            self._disconnect()
            raise failure(error)(
                f"policy server {self._config.address}: {error}{ADVICE.get(type(error), '')}"
            ) from error
        except BaseException:
            self._disconnect()  # or a late response would be taken for the next one
            raise

    def _connect(self) -> tuple[Connection, PolicySpec]:
        # before anything is sent, so a server that restarted meanwhile causes no error
        if self._connection is not None and self._spec is not None and self._connection.is_idle():
            return self._connection, self._spec
        self._disconnect()
        token, deadline_s = self._token(), time.monotonic() + self._config.connect_timeout_s
        host, _, port = self._config.address.rpartition(":")
        try:
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout=self._config.connect_timeout_s)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            advice = "Start it with `dovetail serve RUN`, or correct policy.address"
            raise CannotConnect(f"cannot connect ({reason}). {advice}") from error
        self._connection = Connection(sock)
        spec = client_handshake(self._connection, token, deadline_s=deadline_s)
        if self._spec is None:
            self._spec = spec
        if not same_spec(spec, self._spec):
            raise WireError(
                "the server has another policy than this process or than before. Start it from the same run or config"
            )
        return self._connection, self._spec

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _token(self) -> bytes:
        if self._config.token_file is not None:
            return read_token(Path(self._config.token_file).expanduser())
        name = self._config.token_env
        if name not in os.environ:
            raise UsageError(
                f"policy 'remote' has no token. Copy the server's token file and set policy.token_file, or set ${name}"
            )
        return check_token(os.environ[name].strip().encode(), where=f"${name}")


def failure(error: WireError) -> type[PolicyError]:
    """The kind of error that a caller of the policy gets."""
    is_temporary = isinstance(error, ConnectionLost | DeadlineExceeded | NoWeights | OutdatedWeights)
    return PolicyUnreachable if is_temporary else PolicyError


def _check_chunk(chunk: ActionChunk, spec: PolicySpec, num_rows: int) -> None:
    expected = (num_rows, spec.horizon, *spec.action.shape)
    if chunk.actions.shape != expected or chunk.actions.dtype != np.float32:
        found = f"{chunk.actions.dtype}{list(chunk.actions.shape)}"
        raise WireError(f"received actions {found}, expected float32{list(expected)}")
    if not np.isfinite(chunk.actions).all():
        raise WireError("received actions that are not finite")
    for name, value in chunk.extras.items():
        if value.shape[:1] != (num_rows,):
            raise WireError(f"received extra '{name}' {list(value.shape)} for {num_rows} rows")
