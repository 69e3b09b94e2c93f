"""Requests to a policy server and its responses, as messages of `wire`.

robot:  act      observations, context, run and minimum version  server: chunk, outdated, no weights, or error
robot:  reset                                                    server: done
robot:  use      run, version and hashes of weights              server: using, send, or error
robot:  weights  arrays of a component, after `send`             server: done, or error

Only the robots of a run that learns name their run. Others get chunks of any weights that a run has sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.prompts import MAX_PROMPT_BYTES
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.inputs import check_inputs
from dovetail.policies.remote.wire import MAX_BODY, Message, WireError, checked_int

__all__ = [
    "NO_WEIGHTS",
    "NoWeights",
    "OutdatedWeights",
    "act_message",
    "chunk_message",
    "context_fields",
    "max_request_bytes",
    "max_response_bytes",
    "read_act",
    "read_chunk",
    "read_context",
    "read_min_version",
]

MAX_ROWS = 64
NO_WEIGHTS = "no weights"  # the kind of a response
_PREFIX = "context/prefix"


class OutdatedWeights(WireError):
    """The server's weights are older than the request allows, or of another run."""


class NoWeights(WireError):
    """The server waits for the weights of a run. Until then its policy is untrained and does not act."""


def max_request_bytes(spec: PolicySpec) -> int:
    """Limit for the arrays of a request: MAX_ROWS rows, each with a prefix of up to 4 horizons in float64."""
    row = 4 * spec.horizon * math.prod(spec.action.shape) * 8 + (MAX_PROMPT_BYTES if spec.prompted else 0)
    for key, array in spec.observation.items():
        row += spec.history.get(key, 1) * (math.prod(array.shape) * np.dtype(array.dtype).itemsize + 1)
    return min(MAX_ROWS * row, MAX_BODY)


def max_response_bytes(spec: PolicySpec, *, num_rows: int) -> int:
    """Limit for the arrays of a response: 16 times the actions, plus 4 KiB per row, for the extras."""
    return min(num_rows * (16 * spec.horizon * math.prod(spec.action.shape) * 4 + 4096), MAX_BODY)


def act_message(
    number: int, inputs: Mapping[str, Array], context: ActContext, *, min_version: int = 0, run: str | None = None
) -> Message:
    prefix = {} if context.prefix is None else {_PREFIX: context.prefix}
    fields = {"number": number, **context_fields(context), "min_version": min_version}
    if run is not None:
        fields["run"] = run
    return Message(kind="act", fields=fields, arrays={**inputs, **prefix})


def context_fields(context: ActContext) -> dict[str, Any]:
    """A context without its prefix, as plain values."""
    return {
        "deterministic": bool(context.deterministic),
        "seed": None if context.seed is None else int(context.seed),
        "delay": int(context.delay),
        "horizon": int(context.horizon),
    }


def read_act(message: Message, spec: PolicySpec) -> tuple[dict[str, Array], ActContext]:
    """The arguments of `Policy.act`. Raise UsageError if the request does not fit the spec."""
    inputs = check_inputs(message.arrays, spec)
    num_rows = len(next(iter(inputs.values())))
    if not 0 < num_rows <= MAX_ROWS:
        raise UsageError(f"a request should have 1 to {MAX_ROWS} rows, got {num_rows}")
    return inputs, read_context(message.fields, message.arrays.get(_PREFIX), spec, num_rows=num_rows)


def read_context(fields: Mapping[str, Any], prefix: Any, spec: PolicySpec, *, num_rows: int) -> ActContext:
    """The context of a request. Raise UsageError if it does not fit the spec."""
    action = spec.action.shape
    if prefix is not None and not (
        isinstance(prefix, np.ndarray)
        and prefix.dtype.kind == "f"
        and prefix.ndim == 2 + len(action)
        and prefix.shape[:1] + prefix.shape[2:] == (num_rows, *action)
        and prefix.shape[1] <= 4 * spec.horizon
    ):
        sizes = ", ".join(map(str, (num_rows, "H", *action)))
        found = f"{prefix.dtype}{list(prefix.shape)}" if isinstance(prefix, np.ndarray) else type(prefix).__name__
        raise UsageError(f"the prefix should be float [{sizes}], got {found}")
    try:
        seed = fields["seed"]
        return ActContext(
            deterministic=fields["deterministic"] is True,
            seed=None if seed is None else checked_int(seed, low=-(2**63), high=2**64 - 1),
            prefix=prefix,
            delay=checked_int(fields["delay"], low=0),
            horizon=checked_int(fields["horizon"], low=1),
        )
    except (KeyError, ValueError) as error:
        raise UsageError(f"the request has an invalid context: {error}") from error


def read_min_version(message: Message) -> int:
    """The oldest version of the weights that may compute the chunk."""
    try:
        return checked_int(message.fields.get("min_version", 0), low=0, high=2**63 - 1)
    except ValueError as error:
        raise UsageError(f"the request has an invalid minimum version: {error}") from error


def chunk_message(number: Any, chunk: ActionChunk, *, server_s: float) -> Message:
    fields = {"number": number, "policy_version": int(chunk.policy_version), "server_s": server_s}
    extras = {f"extra/{name}": value for name, value in chunk.extras.items()}
    return Message(kind="chunk", fields=fields, arrays={"actions": chunk.actions, **extras})


def read_chunk(message: Message, number: int) -> tuple[ActionChunk, float]:
    """The response to request `number`, and the seconds that the server needed."""
    if message.kind == "outdated":
        raise OutdatedWeights("the server has older weights than the request names")
    if message.kind == NO_WEIGHTS:
        raise NoWeights(
            "no weights have arrived yet, and the server does not act untrained. Start the run that sends them "
            "(policy_server.address)"
        )
    fields = message.expect("chunk").fields
    try:
        server_s, version = fields["server_s"], checked_int(fields["policy_version"], low=0, high=2**63 - 1)
        if fields["number"] != number or not isinstance(server_s, float) or not 0.0 <= server_s < math.inf:
            raise ValueError
        actions = message.arrays["actions"]
    except (KeyError, ValueError) as error:
        raise WireError("the response does not fit the request") from error
    extras = {name.removeprefix("extra/"): v for name, v in message.arrays.items() if name.startswith("extra/")}
    return ActionChunk(actions=actions, observed_ns=0, policy_version=version, extras=extras), server_s
