"""Statistics in a file of their own: LeRobot's meta/stats.json, or openpi's norm_stats.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.types import Array
from dovetail.policies.checkpoints.folder_files import read_json
from dovetail.policies.checkpoints.normalization import Normalization
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint

__all__ = ["openpi_statistics", "read_statistics"]


def read_statistics(path: Path, checkpoint: Checkpoint) -> tuple[Normalization, Normalization]:
    """Normalization of state and action, in the modes of the checkpoint."""
    if not path.is_file():
        raise UsageError(f"policy.stats: {path} is not a file. Name a stats.json or norm_stats.json")
    data = read_json(Path(os.path.realpath(path)))  # the user named it
    if "norm_stats" in data:
        return openpi_statistics(data, checkpoint.state_mode, name=str(path))
    found = []
    for key, mode in (("observation.state", checkpoint.state_mode), ("action", checkpoint.action_mode)):
        statistics = data.get(key)
        if not isinstance(statistics, dict):
            raise CheckpointError(
                f"{path} has no statistics of '{key}'. Name LeRobot's stats.json or openpi's norm_stats.json"
            )
        arrays = _arrays(statistics, name=f"{path}: {key}")
        found.append(Normalization.lerobot(mode, arrays, name=f"{path}: {key}"))
    return found[0], found[1]


def openpi_statistics(data: Mapping[str, Any], mode: str, *, name: str) -> tuple[Normalization, Normalization]:
    """openpi normalizes state and actions in the same mode."""
    found = []
    for key in ("state", "actions"):
        statistics = data["norm_stats"].get(key) if isinstance(data.get("norm_stats"), dict) else None
        if not isinstance(statistics, dict):
            raise CheckpointError(f"{name} has no norm_stats of '{key}'. Copy the file again")
        arrays = _arrays(statistics, name=f"{name}: {key}")
        found.append(Normalization.openpi(mode, arrays, name=f"{name}: {key}"))
    return found[0], found[1]


def _arrays(statistics: Mapping[str, Any], *, name: str) -> dict[str, Array]:
    try:
        return {key: np.asarray(value, np.float32) for key, value in statistics.items() if value is not None}
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{name} holds statistics that are not numbers") from error
