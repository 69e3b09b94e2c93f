"""Write a checkpoint as a LeRobot folder that LeRobot's own package loads: config, weights, processors and statistics.

    write_lerobot(Path("new_folder"), checkpoint, changed={"action_out.weight": trained})

Tensors keep their dtype and are copied from the checkpoint's files, one by one, under LeRobot's names. LeRobot loads a
folder only if every tensor that its own network has is there, so those that acting never uses are written too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.policies.checkpoints.folder_files import find_file
from dovetail.policies.checkpoints.normalization import Normalization
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.checkpoints.lerobot_folder import ACTION, IMAGES, POSTPROCESSOR, PREPROCESSOR, STATE
from dovetail.policies.vla.family import Export

__all__ = ["write_lerobot"]


def write_lerobot(folder: Path, checkpoint: Checkpoint, *, changed: Mapping[str, Tensor] | None = None) -> None:
    """`changed` has parameters of our network, by name, that replace those of the checkpoint.

    Raise UsageError if the folder exists, or for a checkpoint without statistics: its actions would have no unit."""
    if folder.exists():
        raise UsageError(f"{folder} exists already. Name a new folder")
    if checkpoint.state is None or checkpoint.action is None:
        raise UsageError(f"{checkpoint.folder} has no statistics, so no robot could use the copy. Set --stats")
    state, action = checkpoint.state, checkpoint.action
    export = checkpoint.family.export(checkpoint)
    tensors = dict(_tensors(checkpoint, export, changed or {}))
    folder.mkdir(parents=True)
    _write_json(folder / "config.json", {**_config(checkpoint, state, action), **export.config})
    statistics = {**_flat(STATE, state), **_flat(ACTION, action)}
    for name, steps in (
        (PREPROCESSOR, _steps_before(checkpoint, export, state, action)),
        (POSTPROCESSOR, _steps_after(checkpoint, export, state, action)),
    ):
        for index, step in enumerate(steps):
            if step["registry_name"].endswith("normalizer_processor"):
                step["state_file"] = (
                    f"{name.removesuffix('.json')}_step_{index}_{step['registry_name']}.safetensors"
                )
                save_file(statistics, folder / step["state_file"])
        _write_json(folder / name, {"name": name.removesuffix(".json"), "steps": steps})
    for tokenizer in ("tokenizer.json", "tokenizer_config.json"):
        if (checkpoint.folder / tokenizer).is_file():
            shutil.copyfile(find_file(checkpoint.folder / tokenizer), folder / tokenizer)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# ---- weights


def _tensors(
    checkpoint: Checkpoint, export: Export, changed: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """All tensors under LeRobot's names."""
    layout, shapes = checkpoint.layout, checkpoint.files.shapes
    copies = {original: copy for copy, original in export.copies.items()}
    for ours, sources in layout.sources.items():
        first = 0
        for source, target in zip(sources, export.sources[ours], strict=True):
            num = shapes[source][0]
            new = changed.get(ours)
            value = checkpoint.tensor(source) if new is None else new.detach()[first : first + num].cpu().clone()
            yield target, value
            if target in copies:
                yield copies[target], value.clone()
            first += num
    yield from export.more.items()


# ---- description


def _config(checkpoint: Checkpoint, state: Normalization, action: Normalization) -> dict[str, Any]:
    sizes = checkpoint.sizes
    features = _features(checkpoint, state, action)
    return {
        "type": checkpoint.family.name,
        "n_obs_steps": 1,
        "input_features": {key: value for key, value in features.items() if key != ACTION},
        "output_features": {ACTION: features[ACTION]},
        "normalization_mapping": _modes(state, action),
        "chunk_size": sizes.horizon,
        "n_action_steps": sizes.horizon,
        "max_state_dim": sizes.state_size,
        "max_action_dim": sizes.action_size,
        "tokenizer_max_length": sizes.num_prompt_tokens,
    }


def _features(checkpoint: Checkpoint, state: Normalization, action: Normalization) -> dict[str, Any]:
    size = checkpoint.sizes.image_size
    images = {f"{IMAGES}{camera}": {"type": "VISUAL", "shape": [3, size, size]} for camera in checkpoint.cameras}
    return {
        **images,
        STATE: {"type": "STATE", "shape": [state.size]},
        ACTION: {"type": "ACTION", "shape": [action.size]},
    }


def _modes(state: Normalization, action: Normalization) -> dict[str, str]:
    return {"VISUAL": "IDENTITY", "STATE": state.mode, "ACTION": action.mode}


def _flat(feature: str, normalization: Normalization) -> dict[str, Tensor]:
    return {f"{feature}.{name}": torch.tensor(value) for name, value in normalization.statistics.items()}


def _steps_before(
    checkpoint: Checkpoint, export: Export, state: Normalization, action: Normalization
) -> list[dict[str, Any]]:
    """The steps in the order that the family's export names. Its own steps have no settings."""
    configs: dict[str, dict[str, Any]] = {
        "rename_observations_processor": {"rename_map": {}},
        "tokenizer_processor": {
            "max_length": checkpoint.sizes.num_prompt_tokens,
            "task_key": "task",
            "padding_side": "right",
            "padding": "max_length",
            "truncation": True,
            "tokenizer_name": checkpoint.family.tokenizer_origin,
        },
        "device_processor": {"device": "cpu", "float_dtype": None},
        "relative_actions_processor": {
            "enabled": checkpoint.relative_actions,
            "exclude_joints": list(checkpoint.relative_exclude),
            "action_names": list(checkpoint.action_names) or None,
        },
        "normalizer_processor": {
            "eps": 1e-8,
            "features": _features(checkpoint, state, action),
            "norm_map": _modes(state, action),
        },
    }
    return [{"registry_name": name, "config": configs.get(name, {})} for name in export.steps]


def _steps_after(
    checkpoint: Checkpoint, export: Export, state: Normalization, action: Normalization
) -> list[dict[str, Any]]:
    features = {ACTION: _features(checkpoint, state, action)[ACTION]}
    normalizer = {"eps": 1e-8, "features": features, "norm_map": _modes(state, action)}
    steps: list[dict[str, Any]] = [{"registry_name": "unnormalizer_processor", "config": normalizer}]
    if "relative_actions_processor" in export.steps:
        enabled = {"enabled": checkpoint.relative_actions}
        steps.append({"registry_name": "absolute_actions_processor", "config": enabled})
    return [*steps, {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}]


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
