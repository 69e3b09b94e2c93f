"""What a policy sees: the present, and for some keys the last few ticks, left-padded and masked."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from dovetail.core.specs import PolicySpec
from dovetail.core.types import Array, Observation

__all__ = ["History"]


class History:
    """Observations in, the policy's input (batch of one) out. Counted in control ticks."""

    def __init__(self, spec: PolicySpec) -> None:
        self._keys = tuple(spec.observation)
        self._past: dict[str, deque[Array]] = {k: deque(maxlen=n) for k, n in spec.history.items()}

    def reset(self) -> None:
        for past in self._past.values():
            past.clear()

    def add(self, observation: Observation) -> None:
        for key, past in self._past.items():
            past.append(observation.values[key])

    def batch(self, observation: Observation) -> Mapping[str, Array]:
        """`observation` is the one added last."""
        inputs: dict[str, Array] = {}
        for key in self._keys:
            past = self._past.get(key)
            if past is None:
                inputs[key] = observation.values[key][None]
                continue
            assert past.maxlen is not None
            num_missing = past.maxlen - len(past)
            inputs[key] = np.stack([past[0]] * num_missing + list(past))[None]
            inputs[f"{key}/mask"] = (np.arange(past.maxlen) >= num_missing)[None]
        return inputs
