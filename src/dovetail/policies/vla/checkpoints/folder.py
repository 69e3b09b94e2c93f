"""Recognize a folder with published weights and collect what acting needs, before a weight is read.

checkpoint = open_checkpoint(Path("pi0_folder"), PI0, stats=None)
network = checkpoint.load(device=device, dtype=torch.bfloat16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.core.errors import UsageError, shown
from dovetail.policies.checkpoints.folder_files import clear_errors, is_openpi, read_json, type_hint
from dovetail.policies.checkpoints.weight_files import WeightFiles
from dovetail.policies.vla.checkpoints import lerobot_folder, openpi_folder, transformers_folder
from dovetail.policies.vla.checkpoints.adapters import CONFIG, read_adapter
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.checkpoints.statistics import read_statistics
from dovetail.policies.vla.families import FAMILIES
from dovetail.policies.vla.family import Family, Format

__all__ = ["open_checkpoint"]

_OpenFolder = Callable[[Path, Mapping[str, Any], WeightFiles, Family], Checkpoint]
_READERS: Mapping[Format, _OpenFolder] = {
    "LeRobot": lerobot_folder.open_folder,
    "transformers": transformers_folder.open_folder,
    "openpi": openpi_folder.open_folder,
}


def open_checkpoint(
    folder: Path, family: Family | None = None, *, stats: Path | None = None, adapter: Path | None = None
) -> Checkpoint:
    """Raise UsageError or CheckpointError, in one line, for a folder that is not complete or of another family.

    Without a family, the folder decides. `stats` is a file with statistics, which replace those of the folder. `adapter` is
    a folder of PEFT; one beside the weights is used too. LeRobot's adapter folders have the config and the statistics of
    their training, which replace those of the base model."""
    with clear_errors(folder):
        return _open(folder, family, stats=stats, adapter=adapter)


def _open(folder: Path, family: Family | None, *, stats: Path | None, adapter: Path | None) -> Checkpoint:
    if not folder.is_dir():
        raise UsageError(
            f"policy.checkpoint: {folder} is not a folder. Name a folder with config.json; models are not downloaded"
        )
    if (folder / "params").is_dir() and not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} is a JAX checkpoint of openpi (params/). Convert it to PyTorch with openpi's own script first"
        )
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json, so it is no published checkpoint. Name the folder with it")
    config = read_json(folder / "config.json")
    format_, name = _described(folder, config, family)
    if (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors")):
        base = read_json(folder / CONFIG).get("base_model_name_or_path")
        raise UsageError(
            f"{folder} holds an adapter of '{base}' and no model. Set policy.adapter to it, and policy.checkpoint to a model"
        )
    files = WeightFiles(folder)
    found = FAMILIES[_told_by_weights(folder, files, name)]
    if family is not None and found is not family:
        raise UsageError(_another(folder, f"{found.name} (its weights say so)", family, found.name))
    if adapter is None and (folder / CONFIG).is_file():
        adapter = folder
    trained = adapter if adapter is not None and (adapter / "config.json").is_file() else folder
    if trained != folder:
        config = read_json(trained / "config.json")
        format_, name = _described(trained, config, found)
    checkpoint = replace(_READERS[format_](trained, config, files, found), folder=folder)
    if adapter is not None:
        checkpoint = replace(checkpoint, adapter=read_adapter(adapter))
    if stats is not None:
        state, action = read_statistics(stats, checkpoint)
        checkpoint = replace(checkpoint, state=state, action=action)
    return checkpoint


def _described(folder: Path, config: Mapping[str, Any], family: Family | None) -> tuple[Format, str | None]:
    """The format, and the family's name where config.json has it: openpi's has none."""
    if is_openpi(config):
        return "openpi", None
    keys: tuple[tuple[str, Format], ...] = (("type", "LeRobot"), ("model_type", "transformers"))
    for key, format_ in keys:
        if key not in config:
            continue
        name = str(config[key])
        known = name in FAMILIES and format_ in FAMILIES[name].layouts
        if not known or (family is not None and name != family.name):
            raise UsageError(_another(folder, f"a '{shown(name)}' model of {format_}", family, name))
        return format_, name
    raise UsageError(
        f"{folder}/config.json is of no known format: it has neither LeRobot's `type`, transformers' `model_type` nor "
        "openpi's `paligemma_variant`"
    )


def _told_by_weights(folder: Path, files: WeightFiles, name: str | None) -> str:
    """openpi's config does not say whether it is pi0 or pi0.5, and LeRobot's could be wrong. The weights tell."""
    for family in FAMILIES.values():
        if any(family.told_by(key) for key in files.shapes):
            return family.name
    if name is None:
        raise UsageError(f"{folder} has weights of no known model. Known: {', '.join(FAMILIES)}")
    return name  # incomplete weights: the reader names what is missing


def _another(folder: Path, what: str, family: Family | None, name: str) -> str:
    if name in FAMILIES and (family is None or name == family.name):
        return (
            f"{folder} holds {what}, which is unknown here. Use a folder of {' or '.join(FAMILIES[name].layouts)}"
        )
    if family is None:
        return f"{folder} holds {what}. {type_hint(name)}"
    return f"{folder} holds {what}, but policy '{family.name}' reads {family.name} only. {type_hint(name)}"
