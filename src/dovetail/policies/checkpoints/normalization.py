"""Normalization of states and actions as each family does it. numpy only.

LeRobot adds 1e-8 to a standard deviation when it normalizes, and nothing when it reverts that; openpi adds 1e-6 in both
directions. Ranges go to -1..1; an empty range is replaced by the epsilon (LeRobot) or widened by it (openpi).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dovetail.core.errors import CheckpointError
from dovetail.core.types import Array

__all__ = ["MODES", "Normalization"]

MODES: Mapping[str, tuple[str, ...]] = {  # mode: the statistics that it needs
    "IDENTITY": (),
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """x to (x - shift) / scale + first, and y back to (y - first) * back_scale + shift."""

    shift: Array  # [N], float32
    scale: Array
    back_scale: Array
    first: float = 0.0
    """What `shift` becomes. Ranges begin at -1; their middle cannot be the shift, because float32 has no middle of an empty
    range that was widened by 1e-8."""
    mode: str = "IDENTITY"
    statistics: Mapping[str, Array] = field(default_factory=dict)  # that it was made of

    @property
    def size(self) -> int:
        return len(self.shift)

    def apply(self, values: Array) -> Array:
        return np.asarray((values - self.shift) / self.scale + np.float32(self.first), np.float32)

    def revert(self, values: Array) -> Array:
        return np.asarray((values - np.float32(self.first)) * self.back_scale + self.shift, np.float32)

    @staticmethod
    def identity(size: int) -> Normalization:
        ones = np.ones(size, np.float32)
        return Normalization(shift=np.zeros(size, np.float32), scale=ones, back_scale=ones)

    @staticmethod
    def lerobot(mode: str, statistics: Mapping[str, Array], *, epsilon: float = 1e-8, name: str) -> Normalization:
        """Raise CheckpointError for an unknown mode, or statistics that are missing or invalid. `name` is for messages."""
        first, second = _of_mode(mode, statistics, name=name)
        if mode == "MEAN_STD":
            found = Normalization(shift=first, scale=second + np.float32(epsilon), back_scale=second)
        else:
            width = second - first
            found = _range(first, np.where(width == 0.0, np.float32(epsilon), width))
        return replace(found, mode=mode, statistics=dict(zip(MODES[mode], (first, second), strict=True)))

    @staticmethod
    def openpi(mode: str, statistics: Mapping[str, Array], *, name: str) -> Normalization:
        first, second = _of_mode(mode, statistics, name=name)
        if mode == "MEAN_STD":
            scale = second + np.float32(1e-6)
            found = Normalization(shift=first, scale=scale, back_scale=scale)
        else:
            found = _range(first, second - first + np.float32(1e-6))
        return replace(found, mode=mode, statistics=dict(zip(MODES[mode], (first, second), strict=True)))


def _range(low: Array, width: Array) -> Normalization:
    """2 (x - low) / width - 1"""
    half = (width / 2.0).astype(np.float32)
    return Normalization(shift=low, scale=half, back_scale=half, first=-1.0)


def _of_mode(mode: str, statistics: Mapping[str, Array], *, name: str) -> tuple[Array, Array]:
    if mode not in MODES or not MODES[mode]:
        known = ", ".join(key for key, needed in MODES.items() if needed)
        raise CheckpointError(f"{name} has normalization '{mode}', which is unknown here. Known: {known}")
    found = []
    for statistic in MODES[mode]:
        if statistic not in statistics:
            raise CheckpointError(
                f"{name} has no '{statistic}', which normalization {mode} needs. Set policy.stats"
            )
        value = np.asarray(statistics[statistic], np.float32)
        if value.ndim != 1 or not np.isfinite(value).all():
            raise CheckpointError(f"{name}: '{statistic}' should be finite numbers [N], got {value.shape}")
        found.append(value)
    first, second = found
    if (
        first.shape != second.shape
        or (mode == "MEAN_STD" and (second < 0.0).any())
        or (mode != "MEAN_STD" and (second < first).any())
    ):
        raise CheckpointError(f"{name}: {' and '.join(MODES[mode])} contradict each other. Set policy.stats")
    return first, second
