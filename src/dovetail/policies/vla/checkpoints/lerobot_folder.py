"""LeRobot's folders: config.json, model.safetensors, policy_preprocessor.json and policy_postprocessor.json. Older ones have
no processors and keep statistics inside the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import CheckpointError, UsageError, shown
from dovetail.core.types import Array
from dovetail.policies.checkpoints.axes import camera_name
from dovetail.policies.checkpoints.folder_files import MAX_AXES, MAX_CAMERAS, read_json
from dovetail.policies.checkpoints.normalization import Normalization
from dovetail.policies.checkpoints.weight_files import WeightFiles, tensors_of
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.family import Family

__all__ = ["ACTION", "IMAGES", "POSTPROCESSOR", "PREPROCESSOR", "STATE", "open_folder"]

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
_SHARED_STEPS = {
    "rename_observations_processor",
    "to_batch_processor",
    "tokenizer_processor",
    "device_processor",
    "normalizer_processor",
    "unnormalizer_processor",
    "relative_actions_processor",
    "absolute_actions_processor",
}
_BUFFERS = {STATE: "normalize_inputs.buffer_observation_state.", ACTION: "unnormalize_outputs.buffer_action."}


def open_folder(folder: Path, config: Mapping[str, Any], files: WeightFiles, family: Family) -> Checkpoint:
    before, after = (_steps(folder / name, family) for name in (PREPROCESSOR, POSTPROCESSOR))
    if (num_tokens := before.get("tokenizer_processor", {}).get("max_length")) is not None:
        config = {**config, "tokenizer_max_length": num_tokens}  # LeRobot acts as the processors say
    layout = family.layouts["LeRobot"](folder, config, files.shapes)
    normalizer, unnormalizer = before.get("normalizer_processor"), after.get("unnormalizer_processor")
    modes = {"VISUAL": "IDENTITY", "STATE": family.mode, "ACTION": family.mode, **config["normalization_mapping"]}
    modes |= {  # LeRobot acts as the processors say, whatever its config says
        "VISUAL": _mode(normalizer, "VISUAL", modes),
        "STATE": _mode(normalizer, "STATE", modes),
        "ACTION": _mode(unnormalizer, "ACTION", modes),
    }
    if modes["VISUAL"] != "IDENTITY":
        raise UsageError(
            f"{folder} normalizes images by {modes['VISUAL']}, which {family.name} does not. Only IDENTITY is known"
        )
    relative = before.get("relative_actions_processor", {})
    if relative.get("se3_pose_groups"):
        raise UsageError(f"{folder} has actions relative in SE(3) (se3_pose_groups), which are unknown here")
    cameras = tuple(camera_name(key) for key, of in config["input_features"].items() if of["type"] == "VISUAL")
    if len(cameras) > MAX_CAMERAS:
        raise CheckpointError(f"{folder} has {len(cameras)} cameras. At most {MAX_CAMERAS} are allowed")
    names = relative.get("action_names") or config.get("action_feature_names") or ()
    return Checkpoint(
        folder=folder,
        family=family,
        format="LeRobot",
        layout=layout,
        files=files,
        cameras=cameras,
        max_absent_cameras=None if family.masks_any_camera else int(config.get("empty_cameras", 0)),
        state=_normalization(folder, files, normalizer, STATE, modes["STATE"], config),
        action=_normalization(folder, files, unnormalizer, ACTION, modes["ACTION"], config),
        state_mode=modes["STATE"],
        action_mode=modes["ACTION"],
        relative_actions=bool(relative.get("enabled", config.get("use_relative_actions", False))),
        relative_exclude=tuple(relative.get("exclude_joints") or config.get("relative_exclude_joints") or ()),
        action_names=tuple(names),
    )


def _steps(path: Path, family: Family) -> dict[str, dict[str, Any]]:
    """The settings of each processor step, with the step's `state_file`. Empty if the folder has no processors."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, Any]] = {}
    known = _SHARED_STEPS | family.steps
    for step in read_json(path)["steps"]:
        name = step.get("registry_name")
        if name is None:
            raise UsageError(
                f"{path} has a step of class '{step.get('class')}', which would import code. It is not "
                "read: save the policy without it"
            )
        if name not in known:
            raise UsageError(
                f"{path} has step '{name}', which is unknown here. Save the policy without it. Known: "
                f"{', '.join(sorted(known))}"
            )
        found[name] = {**step.get("config", {}), "state_file": step.get("state_file")}
    return found


def _mode(step: Mapping[str, Any] | None, kind: str, modes: Mapping[str, str]) -> str:
    """How a step normalizes features of this kind. `modes` are those of the config, for folders without processors."""
    return str(((step or {}).get("norm_map") or {}).get(kind, modes[kind]))


def _normalization(
    folder: Path,
    files: WeightFiles,
    step: Mapping[str, Any] | None,
    feature: str,
    mode: str,
    config: Mapping[str, Any],
) -> Normalization | None:
    """None if the folder has no statistics of this feature."""
    features = {**config["input_features"], **config["output_features"]}
    size = int(features[feature]["shape"][0]) if feature in features else 0
    if not 0 <= size <= MAX_AXES:
        raise CheckpointError(f"{folder}/config.json has {size} axes of {feature}. At most {MAX_AXES} are allowed")
    if mode == "IDENTITY":
        return Normalization.identity(size)
    name, epsilon = f"{folder}: statistics of {feature}", 1e-8
    if step is not None:
        epsilon = float(step.get("eps", epsilon))
        statistics = _stored(folder, step["state_file"], feature)
    else:
        statistics = dict(_buffers(files, _BUFFERS[feature]))
    if not statistics:
        return None
    found = Normalization.lerobot(mode, statistics, epsilon=epsilon, name=name)
    if found.size != size:
        raise CheckpointError(f"{name} have {found.size} values, but config.json has {size}. Set policy.stats")
    return found


def _stored(folder: Path, file: str | None, feature: str) -> dict[str, Array]:
    """Statistics that a processor step keeps in a file of its own."""
    if file is None:
        return {}
    if Path(file).name != file:
        raise CheckpointError(f"{folder} names the file '{shown(file)}', which is not a plain name in the folder")
    if not (folder / file).is_file():
        raise CheckpointError(f"{folder} lacks {shown(file)}, which its processor names. Copy the folder again")
    prefix = f"{feature}."
    tensors = tensors_of(folder / file)
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _buffers(files: WeightFiles, prefix: str) -> Iterator[tuple[str, Array]]:
    """Statistics inside the weights. LeRobot fills them with infinity until it knows them."""
    for key, tensor in files.read([key for key in files.shapes if key.startswith(prefix)]):
        value = tensor.float().numpy()
        if np.isfinite(value).all():
            yield key.removeprefix(prefix), value
