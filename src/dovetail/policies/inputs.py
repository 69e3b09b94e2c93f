"""Batches of observations for `Policy.act`: checks against the spec, and zeros for a warm-up. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.prompts import MAX_PROMPT_BYTES, encode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import Array

__all__ = ["History", "check_inputs", "zero_inputs"]


def zero_inputs(spec: PolicySpec) -> dict[str, Array]:
    """One row of zeros with complete history and an empty prompt."""
    inputs: dict[str, Array] = {}
    for key, array in spec.observation.items():
        num_ticks = spec.history.get(key)
        inputs[key] = np.zeros((1, *((num_ticks,) if num_ticks else ()), *array.shape), array.dtype)
        if num_ticks:
            inputs[f"{key}/mask"] = np.ones((1, num_ticks), np.bool_)
    if spec.prompted:
        inputs["prompt"] = encode_prompt("")[None]
    return inputs


def check_inputs(
    observations: Mapping[str, Array],
    spec: PolicySpec,
    *,
    features: Mapping[str, ArraySpec] = MappingProxyType({}),
) -> dict[str, Array]:
    """Return the observations that a policy of this spec needs. Raise UsageError if one is missing or has another
    shape or dtype. Instead of a camera's images, its `features` are accepted."""
    inputs: dict[str, Array] = {}
    for key, array in spec.observation.items():
        num_ticks = spec.history.get(key)
        if key in features and key in observations and observations[key].dtype.name == features[key].dtype:
            array = features[key]
        expected = {key: ((num_ticks, *array.shape) if num_ticks else array.shape, array.dtype)}
        if num_ticks:
            expected[f"{key}/mask"] = ((num_ticks,), "bool")
        for name, (shape, dtype) in expected.items():
            if name not in observations:
                raise UsageError(f"policy '{spec.name}' needs observation '{name}', which is missing")
            value = observations[name]
            if value.ndim == 0 or value.shape[1:] != shape or value.dtype.name != dtype:
                found = f"{value.dtype}{list(value.shape)}"
                sizes = ", ".join(map(str, ("B", *shape)))
                raise UsageError(f"observation '{name}' should be {dtype}[{sizes}], got {found}")
            inputs[name] = value
    if spec.prompted:
        prompt = observations.get("prompt")
        if (
            prompt is None
            or prompt.dtype != np.uint8
            or prompt.ndim != 2
            or not 1 <= prompt.shape[1] <= MAX_PROMPT_BYTES
        ):
            raise UsageError(
                f"policy '{spec.name}' needs the task prompt as 'prompt', uint8[B, L] with L up to {MAX_PROMPT_BYTES}"
            )
        inputs["prompt"] = prompt
    if len({len(value) for value in inputs.values()}) != 1:
        raise UsageError("observations differ in their number of rows")
    return inputs


class History:
    """The earlier observations of one episode, for policies that need them."""

    def __init__(self, spec: PolicySpec) -> None:
        self._lengths = spec.history
        self._past = {key: deque[Array](maxlen=length) for key, length in spec.history.items()}

    def add(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Add the values of a step, without batch axis. Return one row of inputs: oldest first, left-padded, with masks."""
        inputs: dict[str, Array] = {}
        for key, value in values.items():
            if key not in self._past:
                inputs[key] = value[None]
                continue
            past, length = self._past[key], self._lengths[key]
            past.append(value)
            padding = length - len(past)
            inputs[key] = np.stack([*[past[0]] * padding, *past])[None]
            inputs[f"{key}/mask"] = (np.arange(length) >= padding)[None]
        return inputs
