"""PEFT's folders with LoRA: adapter_config.json and adapter_model.safetensors. Read without the package, and written.

adapter = read_adapter(folder)
adapter.apply(network, checkpoint.places)  # then `lora.merge()`, or train it further
write_adapter(folder, lora, base="pi0_base")
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dovetail.core.errors import CheckpointError, UsageError, shown
from dovetail.policies.checkpoints.folder_files import read_json
from dovetail.policies.checkpoints.weight_files import check_file
from dovetail.policies.vla.lora import Lora, Place, Update

__all__ = ["CONFIG", "Adapter", "read_adapter", "write_adapter"]

CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ENDS = (".lora_A.weight", ".lora_B.weight")
_UNKNOWN = {"use_dora": False, "fan_in_fan_out": False, "bias": "none", "rank_pattern": {}, "alpha_pattern": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    folder: Path
    alpha: float
    is_rank_stabilized: bool
    pairs: Mapping[str, tuple[Tensor, Tensor]]  # published weight: A [rank, in] and B [out, rank]
    whole: Mapping[str, Tensor]  # published tensors that were trained completely (`modules_to_save`)

    def apply(self, network: nn.Module, places: Mapping[str, Place]) -> Lora:
        """Raise CheckpointError for tensors that the network lacks, or of another shape."""
        parameters = dict(network.named_parameters())
        lora = Lora(network)
        for name, value in self.whole.items():
            place = self.place(name, places)
            rows = parameters[place.parameter].data[place.first : place.first + place.num]
            self._check(name, tuple(value.shape), tuple(rows.shape))
            rows.copy_(value)
        for name, (down, up) in self.pairs.items():
            place = self.place(name, places)
            expected = (place.num, *parameters[place.parameter].shape[1:])
            self._check(name, (up.shape[0], down.shape[1]), expected)
            self._check(f"{name} (rank)", (up.shape[1],), (down.shape[0],))
            rank = math.sqrt(len(down)) if self.is_rank_stabilized else len(down)
            lora.put(name, place, Update(down.float(), up.float(), scale=self.alpha / rank, first=place.first))
        return lora

    def place(self, name: str, places: Mapping[str, Place]) -> Place:
        """LeRobot has `model.` before each name; its converted base folders and openpi's do not."""
        for candidate in (name, name.removeprefix("model."), f"model.{name}"):
            if candidate in places:
                return places[candidate]
        raise CheckpointError(
            f"{self.folder} adapts {name}, which the checkpoint does not have. Use its own base model"
        )

    def _check(self, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if found != expected:
            raise CheckpointError(
                f"{self.folder}: {name} is {list(found)} and should be {list(expected)}. Use its own base model"
            )


def read_adapter(folder: Path) -> Adapter:
    """Raise UsageError or CheckpointError, in one line, for what is not a complete LoRA."""
    for file in (CONFIG, _WEIGHTS):
        if not (folder / file).is_file():
            raise UsageError(f"policy.adapter: {folder} has no {file}. Name a folder of PEFT")
    config = read_json(folder / CONFIG)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UsageError(f"{folder} holds a '{shown(kind)}' adapter. Only LORA is known")
    for key, expected in _UNKNOWN.items():
        if config.get(key) not in (None, expected):
            raise UsageError(
                f"{folder}/{CONFIG} has {key}={config[key]}, which is unknown here. Only {expected} is"
            )
    weights = check_file(folder / _WEIGHTS)
    pairs: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for key, value in load_file(weights).items():
        if not value.isfinite().all():
            raise CheckpointError(f"{folder}: '{key}' holds numbers that are not finite. Copy the folder again")
        name = key.removeprefix(_PREFIX)
        end = next((end for end in _ENDS if name.endswith(end)), None)
        if end is not None:
            pairs.setdefault(f"{name.removesuffix(end)}.weight", {})[end] = value
        elif not key.startswith(_PREFIX) or "lora_" in name:
            raise CheckpointError(f"{folder} has unexpected {key}: it is no LoRA of linear layers")
        else:
            whole[name] = value
    for name, pair in pairs.items():
        if len(pair) < 2:
            raise CheckpointError(f"{folder} has only one of lora_A and lora_B of {name}. Copy the folder again")
    if not pairs and not whole:
        raise CheckpointError(f"{folder}/{_WEIGHTS} is empty. Copy the folder again")
    return Adapter(
        folder=folder,
        alpha=_alpha(config, folder),
        is_rank_stabilized=bool(config.get("use_rslora", False)),
        pairs={name: (pair[_ENDS[0]], pair[_ENDS[1]]) for name, pair in pairs.items()},
        whole=whole,
    )


def write_adapter(folder: Path, lora: Lora, *, base: str) -> None:
    """All updates must have one rank and one scale, as `Lora.add` makes them. `base` is the name of the base model."""
    if folder.exists() and any((folder / file).exists() for file in (CONFIG, _WEIGHTS)):
        raise UsageError(f"{folder} holds an adapter already. Name another folder")
    kinds = {(len(update.down), update.scale) for update in lora.updates.values()}
    if len(kinds) != 1:
        raise UsageError(f"the updates have {len(kinds)} different ranks or scales, but a folder of PEFT has one")
    ((rank, scale),) = kinds
    tensors = {}
    for name, update in lora.updates.items():
        # LeRobot's own network, which PEFT wraps, has `model.` before each name
        module = _PREFIX + "model." + name.removeprefix("model.").removesuffix(".weight")
        for end, value in zip(_ENDS, (update.down, update.up), strict=True):
            tensors[module + end] = value.detach().cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    modules = sorted("model." + name.removeprefix("model.").removesuffix(".weight") for name in lora.updates)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "modules_to_save": None,
        "use_rslora": False,
        "inference_mode": True,
        "task_type": None,
        **_UNKNOWN,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _alpha(config: Mapping[str, Any], folder: Path) -> float:
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or abs(alpha) > 1e9 or alpha != alpha:
        raise CheckpointError(f"{folder}/{CONFIG} has lora_alpha={shown(alpha)}, which should be a number")
    return float(alpha)
