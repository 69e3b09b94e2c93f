"""Readers of published weights: from a plain Ray actor that returns a state dict, and from ours. Both load the weights into
a network, because only then are they in use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor, nn

from dovetail.core.types import Array
from dovetail.runtime.ray.roles.weights import WeightsReader

__all__ = ["NaiveReader", "NaiveWeights", "Reader", "make_network"]

_LAYER = 1 << 20  # floats in a layer, 4 MB
_POLL_S = 0.01


def make_network(num_bytes: int) -> nn.ParameterDict:
    """A network of `num_bytes` of float32, in layers of 4 MB."""
    num_floats = num_bytes // 4
    sizes = [min(_LAYER, num_floats - first) for first in range(0, num_floats, _LAYER)]
    return nn.ParameterDict({f"layer{i}": nn.Parameter(torch.zeros(size)) for i, size in enumerate(sizes)})


class NaiveWeights:
    """A Ray actor that holds the newest state dict."""

    def __init__(self) -> None:
        self._state: Mapping[str, Tensor] = {}
        self._version = 0

    def set(self, state: Mapping[str, Tensor], version: int) -> None:
        self._state, self._version = state, version

    def version(self) -> int:
        return self._version

    def get(self) -> Mapping[str, Tensor]:
        return self._state


class NaiveReader:
    """Polls for the version number, then fetches the whole state dict."""

    def __init__(self, weights: Any, num_bytes: int) -> None:
        self._weights, self._network = weights, make_network(num_bytes)

    def wait_for(self, version: int) -> float:
        """Wait for a version and load it. Returns the time of its first use (monotonic clock of this machine)."""
        while ray.get(self._weights.version.remote()) < version:
            time.sleep(_POLL_S)
        self._network.load_state_dict(ray.get(self._weights.get.remote()))
        return time.monotonic()


class Reader:
    """The same with our `WeightsReader`."""

    def __init__(self, weights: Any, num_bytes: int) -> None:
        self._reader, self._network = WeightsReader(weights, timeout_s=120.0), make_network(num_bytes)
        self._version = 0

    def wait_for(self, version: int) -> float:
        while self._version < version:
            snapshot = self._reader.latest(newer_than=self._version, wait_s=5.0)
            if snapshot is not None:
                self._load(snapshot.components["policy"])
                self._version = snapshot.version
        return time.monotonic()

    def _load(self, arrays: Mapping[str, Array]) -> None:
        with torch.no_grad():
            for name, array in arrays.items():
                self._network[name].numpy()[...] = array if array.dtype == np.float32 else array.astype(np.float32)
