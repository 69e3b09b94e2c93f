"""Statistics of a LeRobot folder: in a file of a processor, or inside the weights of older folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import CheckpointError, UsageError, shown
from dovetail.core.types import Array
from dovetail.policies.checkpoints.folder_files import read_json
from dovetail.policies.checkpoints.normalization import MODES, Normalization
from dovetail.policies.checkpoints.weight_files import WeightFiles, tensors_of

__all__ = ["read_statistics"]

_KNOWN_STEPS = (
    "rename_observations_processor",  # names of a dataset; ours are mapped by policy.images
    "to_batch_processor",
    "device_processor",
    "normalizer_processor",
    "unnormalizer_processor",
)


def read_statistics(path: Path, files: WeightFiles, feature: str, *, mode: str, size: int) -> Normalization:
    """How the folder normalizes a feature of `size` values; for an image, those are its channels from 0 to 1.

    `mode` is that of the config, for folders without processors."""
    is_action = feature == "action"
    step = _normalizer_step(path / ("policy_postprocessor.json" if is_action else "policy_preprocessor.json"))
    of_step = (step or {}).get("config", {})
    mode = (of_step.get("norm_map") or {}).get(_kind(feature), mode)  # LeRobot acts as the processors say
    if mode == "IDENTITY":
        return Normalization.identity(size)
    if step is None:  # an old folder
        owner = "unnormalize_outputs" if is_action else "normalize_inputs"
        statistics = _buffers(files, f"{owner}.buffer_{feature.replace('.', '_')}.")
    else:
        statistics = _stored(path, step.get("state_file"), feature)
    name = f"{path}: statistics of {feature}"
    if missing := [key for key in MODES.get(mode, ()) if key not in statistics]:
        raise CheckpointError(
            f"{name} have no '{missing[0]}', which {mode} needs, so its numbers have no unit. Use a folder that "
            "LeRobot's trainer saved"
        )
    epsilon = float(of_step.get("eps", 1e-8))
    found = Normalization.lerobot(mode, statistics, epsilon=epsilon, name=name)
    if found.size != size:
        raise CheckpointError(
            f"{name} have {found.size} values, but config.json has {size}. Copy the folder again"
        )
    return found


def _kind(feature: str) -> str:
    """LeRobot's type of a feature."""
    if feature.startswith("observation.image"):
        return "VISUAL"
    return {"action": "ACTION", "observation.environment_state": "ENV"}.get(feature, "STATE")


def _normalizer_step(path: Path) -> Mapping[str, Any] | None:
    """The step that normalizes. None if the folder has no processors. Raise UsageError for steps that are not known."""
    if not path.is_file():
        return None
    found: Mapping[str, Any] | None = None
    for step in read_json(path)["steps"]:
        name = step.get("registry_name")
        if name is None:
            raise UsageError(
                f"{path} has a step of class '{step.get('class')}', which would import code. It is not read"
            )
        if name not in _KNOWN_STEPS:
            raise UsageError(f"{path} has step '{name}', which is unknown here. Known: {', '.join(_KNOWN_STEPS)}")
        if name in ("normalizer_processor", "unnormalizer_processor"):
            found = step
    if found is None:
        raise CheckpointError(f"{path} has no step that normalizes. Copy the folder again")
    return found


def _stored(path: Path, file: str | None, feature: str) -> dict[str, Array]:
    """Statistics that a processor keeps in a file of its own."""
    if file is None:
        return {}
    if Path(file).name != file:
        raise CheckpointError(f"{path} names the file '{shown(file)}', which is not a plain name in the folder")
    if not (path / file).is_file():
        raise CheckpointError(f"{path} lacks {shown(file)}, which its processor names. Copy the folder again")
    prefix = f"{feature}."
    tensors = tensors_of(path / file)
    return {
        key.removeprefix(prefix): value.reshape(-1) for key, value in tensors.items() if key.startswith(prefix)
    }


def _buffers(files: WeightFiles, prefix: str) -> dict[str, Array]:
    """Statistics inside the weights. LeRobot fills them with infinity until it knows them."""
    found = {
        key.removeprefix(prefix): tensor.float().numpy().reshape(-1)
        for key, tensor in files.read([key for key in files.shapes if key.startswith(prefix)])
    }
    return {key: value for key, value in found.items() if np.isfinite(value).all()}
