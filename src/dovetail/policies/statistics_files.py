"""Observation statistics of earlier systems, as a normalizer's arrays: mean and std for each key.

{key: {"mean": ..., "std": ...}}           most of them, and LeRobot's meta/stats.json
{"mean": {key: ...}, "std": {key: ...}}    some
{"norm_stats": either of these}            openpi
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.policies.normalizer import MIN_STD
from dovetail.policies.safe_pickle import read_pickle

__all__ = ["SUFFIXES", "read_statistics"]

SUFFIXES = (".pkl", ".pickle", ".json")
_WRAPPERS = ("norm_stats", "stats", "statistics")


def read_statistics(data: bytes, *, name: str) -> dict[str, Array]:
    """What `Normalizer.load_arrays` takes, from the bytes of the file `name`. Earlier systems divided by std + eps; here a
    std is at least as large as a fitted one."""
    try:
        found = json.loads(data) if name.endswith(".json") else read_pickle(data, name=name)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name} is not JSON") from error
    while isinstance(found, Mapping) and len(found) == 1 and next(iter(found)) in _WRAPPERS:
        found = next(iter(found.values()))
    arrays: dict[str, Array] = {}
    for key, (mean, std) in _pairs(found).items():
        key = key.removeprefix("observation.")  # LeRobot says what is seen and what is done in one table
        arrays[f"mean/{key}"], arrays[f"std/{key}"] = _numbers(mean, name), _numbers(std, name)
        arrays[f"std/{key}"] = np.maximum(arrays[f"std/{key}"], np.float32(MIN_STD))
    if not arrays:
        raise StoreError(
            f"{name} holds no statistics: expected {{key: {{mean, std}}}} or {{mean: {{key: ...}}, std}}"
        )
    return arrays


def _pairs(found: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(found, Mapping):
        return {}
    means, stds = found.get("mean"), found.get("std")
    if isinstance(means, Mapping) and isinstance(stds, Mapping):
        return {str(key): (means[key], stds[key]) for key in means if key in stds}
    return {
        str(key): (of["mean"], of["std"])
        for key, of in found.items()
        if isinstance(of, Mapping) and "mean" in of and "std" in of
    }


def _numbers(values: Any, name: str) -> Array:
    try:
        return np.atleast_1d(np.array(values, np.float32))
    except (ValueError, TypeError) as error:
        raise StoreError(f"{name} holds statistics that are not numbers") from error
