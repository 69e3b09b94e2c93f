"""LeRobot's folders with ACT or Diffusion Policy: described and checked before a weight is read, and never unpickled.

folder = open_folder(Path("act_so101"), policy="act")
folder.settings                 # of our network, under the names of ActConfig
folder.component("actor")       # arrays under our names
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import CheckpointError, UsageError, shown
from dovetail.core.types import Array
from dovetail.policies.checkpoints.folder_files import (
    MAX_AXES,
    MAX_CAMERAS,
    MAX_IMAGE_SIDE,
    clear_errors,
    read_json,
    type_hint,
)
from dovetail.policies.checkpoints.weight_files import WeightFiles
from dovetail.policies.components import NORMALIZER
from dovetail.policies.lerobot.options import POLICIES, network_settings
from dovetail.policies.lerobot.statistics import read_statistics

__all__ = ["Folder", "feature_key", "is_lerobot_folder", "open_folder"]

_STATISTICS = (
    "normalize_inputs.",
    "normalize_targets.",
    "unnormalize_outputs.",
)  # inside the weights of old folders
_PREFIX = {"act": "model.", "diffusion": "diffusion."}
_IMAGES = {"act": "backbone.", "diffusion": "rgb_encoder."}
_SEQUENTIAL = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
_IN_SEQUENTIAL = re.compile(r"^(rgb_encoder\.(?:\d+\.)?backbone)\.(\d)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    path: Path
    policy: str  # act or diffusion
    settings: Mapping[str, Any]  # of the network, under the names of our config
    features: Mapping[str, tuple[int, ...]]  # shape of each input and of `action`; images are [3, H, W]
    modes: Mapping[str, str]  # feature: normalization mode
    uses_group_norm: bool

    @property
    def cameras(self) -> dict[str, tuple[int, int]]:
        """Height and width of each camera's images, by the camera's name."""
        shapes = {key: shape for key, shape in self.features.items() if len(shape) == 3}
        return {camera_name(key): (shape[1], shape[2]) for key, shape in shapes.items()}

    def size(self, feature: str) -> int:
        """Number of axes of a low-dimensional feature; 0 if the policy does not read it."""
        return self.features[feature][0] if feature in self.features else 0

    def component(self, name: str) -> Mapping[str, Array]:
        """The arrays of one component of our policy. Only this reads weights: a run with a copy does not need them."""
        with clear_errors(self.path):
            files = WeightFiles(self.path)
            return self._normalizer(files) if name == NORMALIZER else self._network(files, name)

    def _network(self, files: WeightFiles, name: str) -> dict[str, Array]:
        prefix, images = _PREFIX[self.policy], _IMAGES[self.policy]
        found: dict[str, str] = {}  # our name: theirs
        for key in files.shapes:
            if key.startswith(_STATISTICS) or key.endswith(".num_batches_tracked"):
                continue
            ours = key.removeprefix(prefix).replace("_orig_mod.", "")  # torch.compile adds a name
            if ours.startswith(images) != (name == "encoder"):
                continue
            ours = _IN_SEQUENTIAL.sub(lambda m: f"{m[1]}.{_SEQUENTIAL.get(m[2], m[2])}.", ours)
            found[ours.removeprefix("unet.") if self.policy == "diffusion" else ours] = key
        tensors = dict(files.read(found.values()))
        return {ours: tensors[theirs].float().numpy() for ours, theirs in found.items()}

    def _normalizer(self, files: WeightFiles) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for feature, mode in self.modes.items():
            size = 3 if len(self.features[feature]) == 3 else self.features[feature][0]
            found = read_statistics(self.path, files, feature, mode=mode, size=size)
            arrays[f"mean/{feature_key(feature)}"] = found.shift - np.float32(found.first) * found.scale
            arrays[f"std/{feature_key(feature)}"] = found.scale
        return arrays


def is_lerobot_folder(path: Path) -> bool:
    return (path / "config.json").is_file()


def open_folder(path: Path, *, policy: str | None = None) -> Folder:
    """Raise UsageError or CheckpointError, in one line, for a folder that is not a complete `policy`. None: act or
    diffusion, whichever it is."""
    with clear_errors(path):
        return _open(path, policy)


def _open(path: Path, policy: str | None) -> Folder:
    if not (path / "config.json").is_file():
        what = "has no config.json" if path.is_dir() else "is not a folder"
        raise UsageError(
            f"policy.checkpoint: {path} {what}. Name LeRobot's folder with config.json; models are not downloaded"
        )
    config = read_json(path / "config.json")
    found = config.get("type")
    if found not in (POLICIES if policy is None else (policy,)):
        wanted = " or ".join(POLICIES) if policy is None else policy
        what = f"a '{shown(found)}' policy" if isinstance(found, str) else "no policy of a known type"
        raise UsageError(f"{path} holds {what}, but LeRobot's '{wanted}' was expected. {type_hint(found)}")
    features = {
        key: tuple(int(size) for size in feature["shape"])
        for key, feature in {**config["input_features"], **config["output_features"]}.items()
    }
    return Folder(
        path=path,
        policy=str(found),
        settings=network_settings(config, name=str(path)),
        features=_checked(features, path),
        modes=_modes(config, path),
        uses_group_norm=bool(config.get("use_group_norm", False)),
    )


def feature_key(feature: str) -> str:
    """The normalizer's key of one of LeRobot's features."""
    return feature.removeprefix("observation.")


def camera_name(feature: str) -> str:
    return feature.removeprefix("observation.").removeprefix("images.")


def _checked(features: dict[str, tuple[int, ...]], path: Path) -> dict[str, tuple[int, ...]]:
    vectors = ("observation.state", "observation.environment_state", "action")
    for key, shape in features.items():
        is_image = key.startswith("observation.image") and len(shape) == 3 and shape[0] == 3
        if not is_image and not (key in vectors and len(shape) == 1):
            raise UsageError(
                f"{path} has the feature '{key}' {list(shape)}, which is unknown here. Known are color images, "
                f"{', '.join(vectors)}"
            )
        limit = MAX_IMAGE_SIDE if is_image else MAX_AXES
        if not all(1 <= size <= limit for size in shape):
            raise CheckpointError(
                f"{path} has the feature '{key}' {list(shape)}. Sizes from 1 to {limit} are allowed"
            )
    if (num := sum(len(shape) == 3 for shape in features.values())) > MAX_CAMERAS:
        raise CheckpointError(f"{path} has {num} cameras. At most {MAX_CAMERAS} are allowed")
    if "action" not in features:
        raise CheckpointError(f"{path}/config.json has no output 'action'. Copy the folder again")
    return features


def _modes(config: Mapping[str, Any], path: Path) -> dict[str, str]:
    mapping = config["normalization_mapping"]
    found: dict[str, str] = {}
    for key, feature in {**config["input_features"], **config["output_features"]}.items():
        kind = feature["type"]
        if kind not in mapping and kind != "ENV":  # LeRobot leaves those alone
            raise CheckpointError(f"{path}/config.json has no normalization of {kind}, which '{key}' is")
        found[key] = mapping.get(kind, "IDENTITY")
    return found


def same_aspect(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether images of these heights and widths show the same, up to rounding by a pixel."""
    return bool(np.isclose(one[0] * other[1], one[1] * other[0], rtol=0.02))
