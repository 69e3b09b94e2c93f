"""Mean and std of the observations. They are part of the policy's weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dovetail.core.bfloat16 import as_float32
from dovetail.core.types import Array

__all__ = ["CLIP", "MIN_STD", "Normalizer"]

MIN_STD = 1e-3  # limits the gain of a sensor that was constant in the data
CLIP = 10.0


class Normalizer:
    """(value - mean) / std per key, clipped to +-`clip`. Its input is not modified. `fit` keeps the statistics of `fixed`
    keys."""

    def __init__(self, sizes: Mapping[str, int], *, fixed: Collection[str] = (), clip: float = CLIP) -> None:
        self._fixed, self._clip = fixed, clip
        self.mean: dict[str, Array] = {key: np.zeros(n, np.float32) for key, n in sizes.items()}
        self.std: dict[str, Array] = {key: np.ones(n, np.float32) for key, n in sizes.items()}
        self._gpu_copies: dict[tuple[str, torch.device], tuple[Tensor, Tensor]] = {}

    def fit(self, columns: Mapping[str, Array]) -> None:
        """Compute mean and std from data, one [N, D] array per key."""
        self._gpu_copies.clear()
        for key in self.mean.keys() - set(self._fixed):
            values = np.asarray(columns[key], np.float64).reshape(-1, len(self.mean[key]))
            self.mean[key] = values.mean(0).astype(np.float32)
            self.std[key] = np.maximum(values.std(0), MIN_STD).astype(np.float32)

    def set(self, key: str, *, mean: Sequence[float], std: Sequence[float]) -> None:
        """Use known statistics of one key."""
        self._gpu_copies.clear()
        self.mean[key] = np.array(mean, np.float32)
        self.std[key] = np.maximum(np.array(std, np.float32), np.float32(MIN_STD))

    def __call__(self, key: str, values: Tensor) -> Tensor:
        mean, std = self._tensors(key, values.device)
        return ((values - mean) / std).clamp_(-self._clip, self._clip)

    def revert(self, key: str, normalized: Tensor) -> Tensor:
        mean, std = self._tensors(key, normalized.device)
        return normalized * std + mean

    def _tensors(self, key: str, device: torch.device) -> tuple[Tensor, Tensor]:
        found = self._gpu_copies.get((key, device))
        if found is None:
            found = torch.from_numpy(self.mean[key]).to(device), torch.from_numpy(self.std[key]).to(device)
            if device.type != "cpu":
                self._gpu_copies[key, device] = found
        return found

    def to_arrays(self) -> dict[str, Array]:
        return {f"mean/{k}": v for k, v in self.mean.items()} | {f"std/{k}": v for k, v in self.std.items()}

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        self._gpu_copies.clear()
        for key in self.mean:
            self.mean[key] = as_float32(arrays[f"mean/{key}"])
            self.std[key] = as_float32(arrays[f"std/{key}"])
