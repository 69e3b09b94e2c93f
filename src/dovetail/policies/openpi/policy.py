"""A policy on an openpi server, or on another server with its protocol: SGLang, vLLM-Omni, `dovetail serve`."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field, field_validator

from dovetail.config.model import Config
from dovetail.core.errors import PolicyUnreachable, SpecMismatch, UsageError
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.checkpoints.axes import ActionAxes
from dovetail.policies.inputs import check_inputs, zero_inputs
from dovetail.policies.openpi.context import context_to_wire
from dovetail.policies.openpi.keys import Keys, key_map
from dovetail.policies.openpi.session import Session
from dovetail.policies.remote.handshake import read_api_key
from dovetail.policies.remote.policy import ADVICE, check_address, failure
from dovetail.policies.remote.wire import WireError

__all__ = ["OpenpiConfig", "OpenpiPolicy"]

T = TypeVar("T")
_NO_STATE = np.zeros((1, 0), np.float32)  # no axis is relative


class OpenpiConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("address", "path", "keys", "horizon", "api_key_file")
    preferred_image_size: ClassVar[int] = 1 << 16  # the camera's own: it is resized once, as openpi's client does

    address: str
    """Address of the server: host:port, or [host]:port for IPv6. openpi uses port 8000, SGLang 30000."""
    path: str = Field(default="/", pattern=r"^/[A-Za-z0-9._~/-]*$")
    """Path of the server: / (openpi, dovetail), /openpi/policy (SGLang), /v1/realtime/robot/openpi (vLLM-Omni)."""
    keys: Keys
    """Observation keys of the server: droid, aloha, libero, lerobot, or a map."""
    horizon: int = Field(ge=1, le=1 << 12)
    """Number of actions in the server's chunks. Checked against its first answer."""
    action_axes: tuple[str, ...] = ()
    """Names of the robot's action axes in the server's order; empty: the robot's order."""
    api_key_file: str | None = None
    """File with the server's API key, readable only by its owner. The key is sent without encryption. Null: no key."""
    connect_timeout_s: float = Field(default=5.0, gt=0.0)
    """Maximum time to connect, in seconds. A reconnection during an episode delays a chunk by up to this time."""
    timeout_s: float = Field(default=2.0, gt=0.0)
    """Maximum time for a chunk, in seconds: network and inference."""
    first_timeout_s: float = Field(default=120.0, gt=0.0)
    """The same for the first chunk, before the robot moves. A server may compile then."""

    _check_address = field_validator("address")(check_address)


class OpenpiPolicy:
    """See the Policy contract. The spec comes from the settings and the robot; answers are checked against it.

    The constructor does not connect. A failed request is not repeated, because the robot has moved meanwhile; the next call
    connects again. A server of ours also gets the context and guides (actor.type=rtc). Stock servers cannot: chunks are then
    not guided, as in chunk mode `naive`, and a warning says so. The protocol has no batches: rows are sent in turn.

    Each chunk has two more extras: `server_s` [B], the inference time that the server states, and `network_s` [B], the rest.
    """

    Config: ClassVar[type[OpenpiConfig]] = OpenpiConfig
    brings_weights: ClassVar[bool] = True

    def __init__(self, config: OpenpiConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config, self._robot = config, robot
        self._keys = key_map(config.keys)
        self._session: Session | None = None
        self._is_warm = False  # whether the server has answered
        self._has_warned = False
        self._lock = threading.Lock()  # one request at a time

    @cached_property
    def spec(self) -> PolicySpec:
        robot = self._robot
        self._keys.check(robot.observation, owner=f"robot '{robot.name}'")
        _ = self._axes
        return PolicySpec(
            name="openpi",
            observation={key: robot.observation[key] for key in self._keys.observed()},
            action=robot.action,
            action_kind=robot.action_kind,
            parts=robot.parts,
            horizon=self._config.horizon,
            guidable=True,  # by a server of ours
            prompted=self._keys.prompt is not None,
        )

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        inputs = check_inputs(observations, self.spec)
        num_rows = len(next(iter(inputs.values())))
        with self._lock:
            answers = [
                self._request(lambda row=row: self._infer(inputs, context, row))  # type: ignore[misc]
                for row in range(num_rows)
            ]
        times = {name: np.array([one[name] for one in answers], np.float32) for name in ("server_s", "network_s")}
        return ActionChunk(
            actions=np.stack([one["actions"] for one in answers]),
            observed_ns=0,
            policy_version=answers[0]["policy_version"],
            extras=times,
        )

    def warmup(self) -> None:
        """Make one complete request before the robot moves."""
        self.act(zero_inputs(self.spec), ActContext(deterministic=True))

    def load(self, snapshot: WeightSnapshot) -> None:
        raise UsageError(
            f"policy 'openpi' cannot load weights: server {self._config.address} has its own. Learn with another policy"
        )

    def reset(self) -> None:
        """Raise an error if the server is gone, before the robot moves. The protocol does not mark the start of an episode;
        a server of ours with a policy that needs history takes a new connection for it."""
        with self._lock:
            if self._session is not None and self._session.metadata.get("history") is True:
                self._disconnect()
            self._request(self._connect)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    # ---- one request, one answer

    def _infer(self, inputs: Mapping[str, Array], context: ActContext, row: int) -> dict[str, Any]:
        session = self._connect()
        observation = self._keys.to_wire(inputs, row=row)
        if session.metadata.get("context") is True:
            observation |= context_to_wire(self._to_server(context), row=row)
        if context.prefix is not None and session.metadata.get("guidable") is not True:
            self._warn_unguided()
        started_s = time.monotonic()
        timeout_s = self._config.timeout_s if self._is_warm else self._config.first_timeout_s
        answer = session.ask(observation, deadline_s=started_s + timeout_s)
        total_s = time.monotonic() - started_s
        actions = self._read_actions(answer.get("actions"))
        self._is_warm = True
        server_s = min(_server_s(answer), total_s)
        version = answer.get("policy_version")
        return {
            "actions": actions,
            "server_s": server_s,
            "network_s": total_s - server_s,
            "policy_version": version if type(version) is int and 0 <= version < 2**63 else 0,
        }

    def _to_server(self, context: ActContext) -> ActContext:
        """The context with its prefix in the server's order of the axes."""
        if context.prefix is None:
            return context
        return replace(context, prefix=self._axes.to_checkpoint(context.prefix, _NO_STATE))

    def _warn_unguided(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"openpi server {self._config.address} cannot guide chunks: actor.type=rtc acts as actor.type=naive, and "
                "the arm may jump between chunks. Use actor.type=soft",
                UserWarning,
                stacklevel=2,
            )

    def _read_actions(self, actions: Any) -> Array:
        """Actions [H, A] of an answer, in the robot's order and within its limits."""
        num_axes = len(self._axes.order)
        if not isinstance(actions, np.ndarray) or actions.dtype.kind != "f" or actions.ndim != 2:
            found = f"{actions.dtype}{list(actions.shape)}" if isinstance(actions, np.ndarray) else "none"
            raise WireError(f"received actions {found}, expected floats [{self._config.horizon}, {num_axes}]")
        if actions.shape[1] != num_axes:
            raise WireError(
                f"received actions with {actions.shape[1]} axes, but robot '{self._robot.name}' has {num_axes}. Use a "
                "server for this robot"
            )
        if actions.shape[0] != self._config.horizon:
            raise WireError(
                f"received {len(actions)} actions, expected {self._config.horizon}. Set policy.horizon={len(actions)}"
            )
        if not np.isfinite(actions).all():
            raise WireError("received actions that are not finite")
        ours = self._axes.to_robot(actions.astype(np.float32)[None], _NO_STATE)[0]
        return np.asarray(np.clip(ours, *self._robot.action.bounds))

    @cached_property
    def _axes(self) -> ActionAxes:
        robot, names = self._robot, self._config.action_axes
        if names and len(names) != robot.action.shape[0]:
            raise SpecMismatch(
                f"policy.action_axes has {len(names)} names, but robot '{robot.name}' has {robot.action.shape[0]} axes"
            )
        return ActionAxes.of(robot, names, size=robot.action.shape[0], relative=())

    def _request(self, exchange: Callable[[], T]) -> T:
        """Run `exchange`. A failure closes the connection, or a late answer would be taken for the next one."""
        try:
            return exchange()
        except (WireError, TimeoutError) as error:
            self._disconnect()
            text = str(error) or "no answer in time"
            kind = failure(error) if isinstance(error, WireError) else PolicyUnreachable
            raise kind(f"openpi server {self._config.address}: {text}{ADVICE.get(type(error), '')}") from error
        except BaseException:
            self._disconnect()
            raise

    def _connect(self) -> Session:
        if self._session is None or not self._session.is_open():
            self._disconnect()
            config = self._config
            file = config.api_key_file
            self._session = Session(
                config.address,
                config.path,
                api_key=None if file is None else read_api_key(Path(file).expanduser()),
                deadline_s=time.monotonic() + config.connect_timeout_s,
            )
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None


def _server_s(answer: Mapping[str, Any]) -> float:
    """The inference time that a server states; 0 if it states none. Not all do."""
    timing = answer.get("server_timing")
    milliseconds = timing.get("infer_ms") if isinstance(timing, dict) else None
    if isinstance(milliseconds, float | int | np.floating) and 0.0 <= milliseconds < math.inf:
        return float(milliseconds) / 1e3
    return 0.0
