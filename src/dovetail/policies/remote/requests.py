"""What is asked of a policy server and what it answers, in the messages of `wire`.

robot:  act      observations, context                   server: chunk, or error
robot:  reset                                            server: done
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.prompts import PROMPT_BYTES
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.remote.wire import MAX_BODY, Message, WireError, checked_int

__all__ = ["act_message", "check_inputs", "chunk_message", "max_answer", "max_request", "read_act", "read_chunk"]

MAX_ROWS = 64
_PREFIX = "context/prefix"


def max_request(spec: PolicySpec) -> int:
    """Bytes of arrays that a request of this policy may have: so many rows, each with a generous prefix."""
    row = 4 * spec.horizon * math.prod(spec.action.shape) * 8 + PROMPT_BYTES
    for key, array in spec.observation.items():
        row += spec.history.get(key, 1) * (math.prod(array.shape) * np.dtype(array.dtype).itemsize + 1)
    return min(MAX_ROWS * row, MAX_BODY)


def max_answer(spec: PolicySpec, *, num_rows: int) -> int:
    """Bytes of arrays that an answer may have: its actions, and extras of no more than a few times that."""
    return min(num_rows * (16 * spec.horizon * math.prod(spec.action.shape) * 4 + 4096), MAX_BODY)


def check_inputs(observations: Mapping[str, Array], spec: PolicySpec) -> dict[str, Array]:
    """Of what was seen, what a policy of this spec needs; refused in one line unless it all fits."""
    inputs: dict[str, Array] = {}
    for key, array in spec.observation.items():
        num = spec.history.get(key)
        wanted = {key: ((num, *array.shape) if num else array.shape, array.dtype)}
        if num:
            wanted[f"{key}/mask"] = ((num,), "bool")
        for name, (shape, dtype) in wanted.items():
            if name not in observations:
                raise UsageError(f"policy '{spec.name}' needs observation '{name}', which is not given")
            value = observations[name]
            if value.ndim == 0 or value.shape[1:] != shape or value.dtype.name != dtype:
                found = f"{value.dtype}{list(value.shape)}"
                raise UsageError(f"observation '{name}' should be {dtype}{_axes('B', *shape)}, got {found}")
            inputs[name] = value
    if spec.prompted:
        prompt = observations.get("prompt")
        if prompt is None or prompt.dtype != np.uint8 or prompt.shape[1:] != (PROMPT_BYTES,):
            raise UsageError(
                f"policy '{spec.name}' needs the task in words, 'prompt', as uint8[B, {PROMPT_BYTES}]"
            )
        inputs["prompt"] = prompt
    if len({len(value) for value in inputs.values()}) != 1:
        raise UsageError("observations differ in their number of rows")
    return inputs


def act_message(number: int, inputs: Mapping[str, Array], context: ActContext) -> Message:
    fields = {
        "number": number,
        "deterministic": bool(context.deterministic),
        "seed": None if context.seed is None else int(context.seed),
        "delay": int(context.delay),
        "horizon": int(context.horizon),
    }
    prefix = {} if context.prefix is None else {_PREFIX: context.prefix}
    return Message(kind="act", fields=fields, arrays={**inputs, **prefix})


def read_act(message: Message, spec: PolicySpec) -> tuple[dict[str, Array], ActContext]:
    """A request as the policy wants it; a UsageError for one that does not fit its spec."""
    fields, prefix = message.fields, message.arrays.get(_PREFIX)
    inputs = check_inputs(message.arrays, spec)
    num_rows = len(next(iter(inputs.values())))
    if not 0 < num_rows <= MAX_ROWS:
        raise UsageError(f"a question has 1 to {MAX_ROWS} rows, got {num_rows}")
    action = spec.action.shape
    if prefix is not None and (
        prefix.dtype.kind != "f" or prefix.shape[:1] + prefix.shape[2:] != (num_rows, *action)
    ):
        raise UsageError(f"a prefix should be {_axes(num_rows, 'H', *action)}, got {list(prefix.shape)}")
    try:
        seed = fields["seed"]
        context = ActContext(
            deterministic=fields["deterministic"] is True,
            seed=None if seed is None else checked_int(seed, low=-(2**63), high=2**64 - 1),
            prefix=prefix,
            delay=checked_int(fields["delay"], low=0),
            horizon=checked_int(fields["horizon"], low=1),
        )
    except (KeyError, ValueError) as error:
        raise UsageError(f"the request's context is not one: {error}") from error
    return inputs, context


def chunk_message(number: Any, chunk: ActionChunk, *, server_s: float) -> Message:
    fields = {"number": number, "policy_version": int(chunk.policy_version), "server_s": server_s}
    extras = {f"extra/{name}": value for name, value in chunk.extras.items()}
    return Message(kind="chunk", fields=fields, arrays={"actions": chunk.actions, **extras})


def read_chunk(message: Message, number: int) -> tuple[ActionChunk, float]:
    """The answer to this very request, and the seconds that the server took over it."""
    fields = message.expect("chunk").fields
    try:
        server_s, version = fields["server_s"], checked_int(fields["policy_version"], low=0, high=2**63)
        if fields["number"] != number or not isinstance(server_s, float) or not 0.0 <= server_s < math.inf:
            raise ValueError
        actions = message.arrays["actions"]
    except (KeyError, ValueError) as error:
        raise WireError("answered with something that is no answer to what was asked") from error
    extras = {name.removeprefix("extra/"): v for name, v in message.arrays.items() if name.startswith("extra/")}
    return ActionChunk(actions=actions, observed_ns=0, policy_version=version, extras=extras), server_s


def _axes(*sizes: int | str) -> str:
    return f"[{', '.join(map(str, sizes))}]"
