"""A policy on another machine: asks a `dovetail serve` there, so that the robot's own needs neither GPU nor torch."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from pydantic import Field, field_validator

from dovetail.config.model import Config
from dovetail.core.errors import PolicyError, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.remote.connection import Connection, ConnectionLost, DeadlineExceeded
from dovetail.policies.remote.handshake import check_token, client_handshake, read_token
from dovetail.policies.remote.requests import act_message, check_inputs, max_answer, read_chunk
from dovetail.policies.remote.wire import Message, WireError

__all__ = ["RemoteConfig", "RemotePolicy"]

T = TypeVar("T")
_ADVICE = {
    DeadlineExceeded: ": see what keeps it, or raise policy.timeout_s",
    ConnectionLost: ": see whether it still runs. The next question connects anew",
}


class RemoteConfig(Config):
    address: str
    """Where the server listens: host:port, or [host]:port for IPv6."""
    token_file: str | None = None
    """A file that holds the server's token, readable by nobody else. The token itself is no setting: settings are
    stored with the run."""
    token_env: str = "DOVETAIL_TOKEN"
    """The environment variable that holds the token, where no file is named."""
    connect_timeout_s: float = Field(default=5.0, gt=0.0)
    """How long to wait for a connection; one that is made anew during an episode adds this to its chunk, at most."""
    timeout_s: float = Field(default=2.0, gt=0.0)
    """How long to wait for a chunk, network and thinking together."""

    @field_validator("address")
    @classmethod
    def _has_host_and_port(cls, address: str) -> str:
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise ValueError("should be host:port, such as gpu-box:7411")
        return address


class RemotePolicy:
    """See the Policy contract. What it needs to see and gives is the server's to say.

    The constructor talks to nobody: the first who wants `spec`, or a chunk, makes the connection. A failure is an
    error and never a second try, because meanwhile the robot has moved on; the next call connects anew.

    Weights are the server's too. It follows those of its own run, chunks say which version they are of, and `load` is
    refused: to ignore it would leave a learner believing that its weights act.

    To each chunk it adds `server_s` [B], the seconds that the server took, and `network_s` [B], those on the way.
    """

    Config: ClassVar[type[RemoteConfig]] = RemoteConfig

    def __init__(self, config: RemoteConfig, *, robot: RobotSpec | None = None, seed: int = 0) -> None:
        self._config = config
        self._spec: PolicySpec | None = None
        self._connection: Connection | None = None
        self._number = 0
        self._lock = threading.Lock()  # one question at a time, whichever thread asks

    @property
    def spec(self) -> PolicySpec:
        if self._spec is None:
            with self._lock:
                return self._ask(lambda connection, spec: spec)
        return self._spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with self._lock:
            return self._ask(lambda connection, spec: self._chunk(connection, spec, observations, context))

    def warmup(self) -> None:
        """A checked_int question and answer, before anything moves."""
        batch: dict[str, Array] = {}
        for key, array in self.spec.observation.items():
            num = self.spec.history.get(key)
            batch[key] = np.zeros((1, *((num,) if num else ()), *array.shape), array.dtype)
            if num:
                batch[f"{key}/mask"] = np.ones((1, num), np.bool_)
        if self.spec.prompted:
            batch["prompt"] = encode_prompt("")[None]
        self.act(batch, ActContext(deterministic=True))

    def load(self, snapshot: WeightSnapshot) -> None:
        raise UsageError(
            f"policy 'remote' takes no weights: the server at {self._config.address} follows those of its own run. "
            "Train the policy there, in that run"
        )

    def reset(self) -> None:
        """A new episode begins: the server is told, and found out to be gone before anything moves."""

        def tell(connection: Connection, spec: PolicySpec) -> None:
            deadline_s = time.monotonic() + self._config.timeout_s
            connection.send(Message(kind="reset"), deadline_s=deadline_s)
            connection.receive(deadline_s=deadline_s, max_body=0).expect("done")

        with self._lock:
            self._ask(tell)

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    # ---- one question, one answer

    def _chunk(
        self, connection: Connection, spec: PolicySpec, observations: Mapping[str, Array], context: ActContext
    ) -> ActionChunk:
        inputs = check_inputs(observations, spec)
        num_rows = len(next(iter(inputs.values())))
        self._number += 1
        started_s = time.monotonic()
        deadline_s = started_s + self._config.timeout_s
        connection.send(act_message(self._number, inputs, context), deadline_s=deadline_s)
        answer = connection.receive(deadline_s=deadline_s, max_body=max_answer(spec, num_rows=num_rows))
        total_s = time.monotonic() - started_s
        chunk, server_s = read_chunk(answer, self._number)
        _check_chunk(chunk, spec, num_rows)
        times = {"server_s": server_s, "network_s": max(total_s - server_s, 0.0)}
        return ActionChunk(
            actions=chunk.actions,
            observed_ns=0,
            policy_version=chunk.policy_version,
            extras={**chunk.extras, **{name: np.full(num_rows, s, np.float32) for name, s in times.items()}},
        )

    def _ask(self, question: Callable[[Connection, PolicySpec], T]) -> T:
        """Ask over the connection there is, or a new one; what fails ends it and is said in one line."""
        try:
            return question(*self._connected())
        except WireError as error:
            self._hang_up()
            raise PolicyError(
                f"policy server {self._config.address} {error}{_ADVICE.get(type(error), '')}"
            ) from error
        except BaseException:
            self._hang_up()  # an answer that nobody waited for must not meet the next question
            raise

    def _connected(self) -> tuple[Connection, PolicySpec]:
        # Nothing of the question is on its way yet: a server that was restarted meanwhile costs no error
        if self._connection is not None and self._spec is not None and self._connection.is_idle():
            return self._connection, self._spec
        self._hang_up()
        token, deadline_s = self._token(), time.monotonic() + self._config.connect_timeout_s
        host, _, port = self._config.address.rpartition(":")
        try:
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout=self._config.connect_timeout_s)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            advice = "start it there with `dovetail serve RUN`, or set policy.address right"
            raise WireError(f"cannot be reached ({reason}): {advice}") from error
        self._connection = Connection(sock)
        spec = client_handshake(self._connection, token, deadline_s=deadline_s)
        if self._spec is not None and spec != self._spec:
            raise WireError("serves another policy than before: start this side again")
        self._spec = spec
        return self._connection, spec

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _token(self) -> bytes:
        if self._config.token_file is not None:
            return read_token(Path(self._config.token_file).expanduser())
        name = self._config.token_env
        if name not in os.environ:
            raise UsageError(
                f"policy 'remote' has no token: copy the server's and set policy.token_file, or put it in ${name}"
            )
        return check_token(os.environ[name].strip().encode(), where=f"${name}")


def _check_chunk(chunk: ActionChunk, spec: PolicySpec, num_rows: int) -> None:
    wanted = (num_rows, spec.horizon, *spec.action.shape)
    if chunk.actions.shape != wanted or chunk.actions.dtype != np.float32:
        found = f"{chunk.actions.dtype}{list(chunk.actions.shape)}"
        raise WireError(f"answered with actions {found}, should be float32{list(wanted)}")
    if not np.isfinite(chunk.actions).all():
        raise WireError("answered with actions that are not finite")
    for name, value in chunk.extras.items():
        if value.shape[:1] != (num_rows,):
            raise WireError(f"answered with {list(value.shape)} of extra '{name}' for {num_rows} rows")
