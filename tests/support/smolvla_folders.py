"""The folder that the real LeRobot wrote with a small SmolVLA (scripts/record-smolvla), with its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support import SUPPORT
from support.hashed_numbers import hashed_weights

RECORDED = SUPPORT.parent / "fixtures" / "lerobot_smolvla"
_ONLY_RECORDED = ("recorded.safetensors", "preprocessing.safetensors", "shapes.json")


def published_weights() -> dict[str, Tensor]:
    shapes = {key: tuple(shape) for key, shape in json.loads((RECORDED / "shapes.json").read_text()).items()}
    return {key: torch.from_numpy(value) for key, value in hashed_weights(shapes).items()}


def write_smolvla(folder: Path) -> Path:
    """As LeRobot's own `save_pretrained` wrote it."""
    shutil.copytree(RECORDED, folder, ignore=shutil.ignore_patterns(*_ONLY_RECORDED))
    save_file(published_weights(), folder / "model.safetensors")
    return folder


def write_old_smolvla(folder: Path) -> Path:
    """Older: no processors, statistics inside the weights."""

    write_smolvla(folder)
    statistics = load_file(folder / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    for path in folder.glob("policy_*"):
        path.unlink()
    weights = published_weights()
    for key, value in statistics.items():
        feature, _, name = key.rpartition(".")
        buffer = f"buffer_{feature.replace('.', '_')}.{name}"
        places = (
            ("normalize_inputs",)
            if feature == "observation.state"
            else ("normalize_targets", "unnormalize_outputs")
        )
        weights |= {f"{place}.{buffer}": value.clone() for place in places}
    save_file(weights, folder / "model.safetensors")
    return folder
