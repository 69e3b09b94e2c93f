"""Reads the mean and std of observations from statistics files of other systems, as arrays for the normalizer.

{key: {"mean": ..., "std": ...}}           most systems, and LeRobot's meta/stats.json
{"mean": {key: ...}, "std": {key: ...}}    some systems
{"norm_stats": one of the above}           openpi
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.disk import parse_json
from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.policies.normalizer import MIN_STD
from dovetail.policies.safe_pickle import read_pickle

__all__ = ["SUFFIXES", "read_statistics"]

SUFFIXES = (".pkl", ".pickle", ".json")
_WRAPPERS = ("norm_stats", "stats", "statistics")


def read_statistics(data: bytes, *, name: str) -> dict[str, Array]:
    """The arrays for `Normalizer.load_arrays`, from the bytes of the file `name`. Other systems divide by std + eps; here
    std is at least MIN_STD, as after fitting."""
    try:
        found = parse_json(data) if name.endswith(".json") else read_pickle(data, name=name)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name} is not JSON") from error
    while isinstance(found, Mapping) and len(found) == 1 and next(iter(found)) in _WRAPPERS:
        found = next(iter(found.values()))
    arrays: dict[str, Array] = {}
    for key, (mean, std) in _pairs(found).items():
        key = key.removeprefix("observation.")  # LeRobot has observations and actions in one table
        arrays[f"mean/{key}"], arrays[f"std/{key}"] = _numbers(mean, name), _numbers(std, name)
        arrays[f"std/{key}"] = np.maximum(arrays[f"std/{key}"], np.float32(MIN_STD))
    if not arrays:
        raise StoreError(
            f"{name} contains no statistics: expected {{key: {{mean, std}}}} or {{mean: {{key: ...}}, std}}"
        )
    return arrays


def _pairs(found: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(found, Mapping):
        return {}
    means, stds = found.get("mean"), found.get("std")
    if isinstance(means, Mapping) and isinstance(stds, Mapping):
        return {str(key): (means[key], stds[key]) for key in means if key in stds}
    return {
        str(key): (entry["mean"], entry["std"])
        for key, entry in found.items()
        if isinstance(entry, Mapping) and "mean" in entry and "std" in entry
    }


def _numbers(values: Any, name: str) -> Array:
    try:
        return np.atleast_1d(np.array(values, np.float32))
    except (ValueError, TypeError) as error:
        raise StoreError(f"{name} contains statistics that are not numbers") from error
