"""Recognize a folder with a published pi0 and collect what acting needs, before a weight is read.

checkpoint = open_checkpoint(Path("pi0_folder"), stats=None)
network = checkpoint.load(device=device, dtype=torch.bfloat16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.policies.vla.checkpoints import lerobot_folder, openpi_folder, transformers_folder
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.checkpoints.statistics import read_statistics
from dovetail.policies.vla.checkpoints.weight_files import WeightFiles, read_json

__all__ = ["open_checkpoint"]

_OpenFolder = Callable[[Path, Mapping[str, Any], WeightFiles], Checkpoint]


def open_checkpoint(folder: Path, *, stats: Path | None = None) -> Checkpoint:
    """Raise UsageError or CheckpointError, in one line, for a folder that is not a complete pi0.

    `stats` is a file with statistics, which replace those of the folder."""
    if not folder.is_dir():
        raise UsageError(f"policy.checkpoint: {folder} is not a folder. Name the folder with config.json")
    if (folder / "params").is_dir() and not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} is a JAX checkpoint of openpi (params/). Convert it to PyTorch with openpi's own script first"
        )
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json, so it is no checkpoint that policy 'pi0' can read")
    config = read_json(folder / "config.json")
    open_folder = _family(folder, config)
    files = WeightFiles(folder)
    _check_is_pi0(folder, files)
    try:
        checkpoint = open_folder(folder, config, files)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"{folder}/config.json is incomplete or contradicts itself ({what}). Copy the folder again"
        ) from error
    if stats is not None:
        state, action = read_statistics(stats, checkpoint)
        checkpoint = replace(checkpoint, state=state, action=action)
    return checkpoint


def _family(folder: Path, config: dict[str, Any]) -> _OpenFolder:
    """The function that reads such folders."""
    if {"action_dim", "action_horizon", "paligemma_variant"} <= config.keys():
        return openpi_folder.open_folder
    for key, owner, read in (
        ("type", "LeRobot", lerobot_folder.open_folder),
        ("model_type", "transformers", transformers_folder.open_folder),
    ):
        if config.get(key) == "pi0":
            return read
        if key in config:
            name = config[key]
            raise UsageError(f"{folder} holds a '{name}' model of {owner}, but policy 'pi0' reads pi0 only")
    raise UsageError(
        f"{folder}/config.json is of no known family: it has neither LeRobot's `type`, transformers' `model_type` nor "
        "openpi's `paligemma_variant`"
    )


def _check_is_pi0(folder: Path, files: WeightFiles) -> None:
    """openpi's config does not say whether it is pi0 or pi0.5, and LeRobot's could be wrong. The weights tell."""
    if any("time_mlp_in." in key and "action_time_mlp_in." not in key for key in files.shapes):
        raise UsageError(f"{folder} holds pi0.5 (it has time_mlp_in), but policy 'pi0' reads pi0 only")
