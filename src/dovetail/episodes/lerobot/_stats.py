"""Statistics of features for LeRobot's policies: min, max, mean, std, count and quantiles.

LeRobot averages the quantiles of episodes, which is wrong if episodes differ (the 1 % quantile of a ramp came out at a
third of it). These quantiles are computed over all frames of the dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.core.types import Array

__all__ = ["QUANTILES", "ImageStats", "RunningStats", "Stats", "merge_image_stats", "to_json"]

Stats = dict[str, Array]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


class RunningStats:
    """Statistics of rows [N, D] that are added in parts.

    Values that are not finite are left out, so one bad sensor reading does not turn a policy's normalizer into NaN.
    Quantiles use every `stride`-th row to bound the memory.
    """

    def __init__(self, *, stride: int = 1) -> None:
        self._stride = stride
        self._num_rows = 0
        self._parts: list[tuple[Array, Array, Array, Array, Array]] = []
        self._kept: list[Array] = []

    def add(self, values: Array) -> None:
        first = -self._num_rows % self._stride
        self._num_rows += len(values)
        if len(values) == 0:
            return
        self._kept.append(values[first :: self._stride])
        finite = np.isfinite(values)
        count = finite.sum(axis=0)
        exact = values.astype(np.float64)
        mean = np.where(finite, exact, 0.0).sum(axis=0) / np.maximum(count, 1)
        spread = (np.where(finite, exact - mean, 0.0) ** 2).sum(axis=0)
        low, high = _extremes(values.dtype)
        self._parts.append(
            (count, mean, spread, np.where(finite, values, high).min(0), np.where(finite, values, low).max(0))
        )

    def finish(self) -> Stats:
        count, mean, spread, low, high = (np.stack(part) for part in zip(*self._parts, strict=True))
        total = np.maximum(count.sum(axis=0), 1)
        whole = (count * mean).sum(axis=0) / total
        variance = (spread + count * (mean - whole) ** 2).sum(axis=0) / total
        seen = count.sum(axis=0) > 0
        stats: Stats = {
            "min": np.where(seen, low.min(axis=0), 0).astype(low.dtype),
            "max": np.where(seen, high.max(axis=0), 0).astype(high.dtype),
            "mean": whole,
            "std": np.sqrt(variance),
            "count": np.array([self._num_rows], np.int64),
        }
        quantiles = _quantiles(np.concatenate(self._kept))
        return {**stats, **{name: quantiles[row] for row, name in enumerate(QUANTILES)}}


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return dtype.type(info.min), dtype.type(info.max)


def _quantiles(rows: Array) -> Array:
    """Return quantiles [Q, D]. Columns are separate because their numbers of finite rows may differ."""
    found = np.zeros((len(QUANTILES), rows.shape[1]))
    for index in range(rows.shape[1]):
        column = rows[:, index].astype(np.float64)
        column = column[np.isfinite(column)]
        if len(column):
            found[:, index] = np.quantile(column, list(QUANTILES.values()))
    return found


class ImageStats:
    """Statistics of an episode's images per channel in 0..1, [3, 1, 1], from a histogram of about 100 images."""

    def __init__(self, num_frames: int) -> None:
        self._every = max(1, num_frames // 100)
        self._histogram = np.zeros((3, 256), np.int64)
        self._seen = self._used = 0

    def add(self, frame: Array) -> None:
        if self._seen % self._every == 0:
            self._used += 1
            for channel in range(3):
                self._histogram[channel] += np.bincount(frame[..., channel].ravel(), minlength=256)
        self._seen += 1

    def finish(self) -> Stats:
        levels = np.arange(256) / 255.0
        total = self._histogram.sum(axis=1, keepdims=True)
        mean = (self._histogram * levels).sum(axis=1) / total[:, 0]
        variance = (self._histogram * (levels - mean[:, None]) ** 2).sum(axis=1) / total[:, 0]
        present = self._histogram > 0
        below = np.cumsum(self._histogram, axis=1) / total
        columns = {
            "min": levels[present.argmax(axis=1)],
            "max": levels[255 - present[:, ::-1].argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(variance),
            **{name: levels[(below >= share).argmax(axis=1)] for name, share in QUANTILES.items()},
        }
        stats: Stats = {name: value.reshape(3, 1, 1) for name, value in columns.items()}
        return {**stats, "count": np.array([self._used], np.int64)}


def merge_image_stats(parts: Sequence[Mapping[str, Any]]) -> Stats:
    """Merge statistics of several episodes. Quantiles are averaged by count, as LeRobot does."""
    stacked = {name: np.stack([np.asarray(part[name], np.float64) for part in parts]) for name in parts[0]}
    count = stacked["count"].reshape(-1, 1, 1, 1)
    share = count / count.sum()
    mean = (stacked["mean"] * share).sum(axis=0)
    variance = ((stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2) * share).sum(axis=0)
    stats: Stats = {
        "min": stacked["min"].min(axis=0),
        "max": stacked["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": np.array([int(count.sum())], np.int64),
    }
    return {**stats, **{name: (stacked[name] * share).sum(axis=0) for name in QUANTILES}}


def to_json(stats: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        feature: {name: np.asarray(value).tolist() for name, value in of.items()} for feature, of in stats.items()
    }
