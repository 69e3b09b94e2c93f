"""Small folders in exactly the published layouts of pi0 (protocols: LeRobot, transformers, openpi)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from support.tiny_pi0 import SIZES, reference_model

PALIGEMMA = replace(SIZES, vision=replace(SIZES.vision, num_heads=16))  # 16 heads, as every PaliGemma has
NUM_STATE, NUM_ACTIONS = 9, 6
_WORDS = ("<pad>", "<eos>", "<bos>", "<unk>", "\n", " ", "push", "the", "cube", "to", "mark", "_", "a")
_RENAMED = (  # transformers to LeRobot and openpi
    ("embed_action_time.", ""),
    ("model.vlm.language_model.embed_tokens.", "paligemma_with_expert.paligemma.lm_head."),
    ("model.vlm.vision_tower.", "paligemma_with_expert.paligemma.model.vision_tower.vision_model."),
    ("model.vlm.", "paligemma_with_expert.paligemma.model."),
    ("model.dit.embed_tokens.", "paligemma_with_expert.gemma_expert.lm_head."),
    ("model.dit.", "paligemma_with_expert.gemma_expert.model."),
)


def published_weights(prefix: str = "") -> dict[str, Tensor]:
    """The weights of the tiny reference under the names of LeRobot and openpi."""
    found = {}
    for key, value in reference_model(PALIGEMMA).state_dict().items():
        for ours, theirs in _RENAMED:
            if key.startswith(ours):
                key = theirs + key.removeprefix(ours)
                break
        found[prefix + key] = value.contiguous().clone()
    return found


def statistics() -> dict[str, dict[str, Tensor]]:
    """mean and std of state and action; every value differs."""
    return {
        "observation.state": {
            "mean": torch.linspace(-0.2, 0.3, NUM_STATE),
            "std": torch.linspace(0.5, 1.5, NUM_STATE),
        },
        "action": {
            "mean": torch.linspace(-0.002, 0.003, NUM_ACTIONS),
            "std": torch.linspace(0.004, 0.02, NUM_ACTIONS),
        },
    }


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" |\n|_"), behavior="isolated")
    tokenizer.save(str(folder / "tokenizer.json"))


def lerobot_config() -> dict[str, Any]:
    images = {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 28, 28]}
        for name in ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    }
    return {
        "type": "pi0",
        "n_obs_steps": 1,
        "input_features": {**images, "observation.state": {"type": "STATE", "shape": [NUM_STATE]}},
        "output_features": {"action": {"type": "ACTION", "shape": [NUM_ACTIONS]}},
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "chunk_size": PALIGEMMA.horizon,
        "n_action_steps": PALIGEMMA.horizon,
        "max_state_dim": 32,
        "max_action_dim": 32,
        "num_inference_steps": 10,
        "image_resolution": [28, 28],
        "empty_cameras": 0,
        "min_period": 0.004,
        "max_period": 4.0,
        "tokenizer_max_length": PALIGEMMA.num_prompt_tokens,
        "use_relative_actions": False,
    }


def _processors() -> dict[str, dict[str, Any]]:
    norm_map = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
    normalizer = {"eps": 1e-8, "features": {}, "norm_map": norm_map}
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": "pi0_new_line_processor", "config": {}},
        {"registry_name": "tokenizer_processor", "config": {"max_length": 6, "padding_side": "right"}},
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
        {
            "registry_name": "normalizer_processor",
            "config": normalizer,
            "state_file": "policy_preprocessor_step_5_normalizer_processor.safetensors",
        },
    ]
    after = [
        {
            "registry_name": "unnormalizer_processor",
            "config": normalizer,
            "state_file": "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
        },
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
    ]
    return {
        "policy_preprocessor": {"name": "policy_preprocessor", "steps": before},
        "policy_postprocessor": {"name": "policy_postprocessor", "steps": after},
    }


def write_lerobot(folder: Path, *, prefix: str = "model.") -> Path:
    """As LeRobot 0.6 writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", lerobot_config())
    save_file(published_weights(prefix), folder / "model.safetensors")
    flat = {f"{key}.{name}": value for key, of in statistics().items() for name, value in of.items()}
    for name, processor in _processors().items():
        write_json(folder / f"{name}.json", processor)
        for step in processor["steps"]:
            if "state_file" in step:
                save_file(flat, folder / step["state_file"])
    write_tokenizer(folder)
    return folder


def write_old_lerobot(folder: Path) -> Path:
    """Older: no processors, statistics inside the weights, and PaliGemma's older names."""
    write_lerobot(folder)
    for path in folder.glob("policy_*"):
        path.unlink()
    renamed = {}
    for key, value in published_weights("model.").items():
        key = key.replace("paligemma.model.language_model.", "paligemma.language_model.model.")
        key = key.replace("paligemma.lm_head.", "paligemma.language_model.lm_head.")
        renamed[key.replace("paligemma.model.", "paligemma.")] = value
    for name, value in statistics()["observation.state"].items():
        renamed[f"normalize_inputs.buffer_observation_state.{name}"] = value
    for part in ("normalize_targets", "unnormalize_outputs"):
        for name, value in statistics()["action"].items():
            renamed[f"{part}.buffer_action.{name}"] = value.clone()
    save_file(renamed, folder / "model.safetensors")
    return folder


def write_openpi(folder: Path, *, assets: tuple[str, ...] = ("franka",)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "action_dim": 32,
        "action_horizon": PALIGEMMA.horizon,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "precision": "bfloat16",
    }
    write_json(folder / "config.json", config)
    save_file(published_weights(), folder / "model.safetensors")
    names = {"state": "observation.state", "actions": "action"}
    numbers = {
        theirs: {name: value.tolist() for name, value in statistics()[ours].items()}
        for theirs, ours in names.items()
    }
    for of in numbers.values():
        of["q01"], of["q99"] = [-1.0] * len(of["mean"]), [1.0] * len(of["mean"])
    for asset in assets:
        (folder / "assets" / asset).mkdir(parents=True)
        write_json(folder / "assets" / asset / "norm_stats.json", {"norm_stats": numbers})
    write_tokenizer(folder)
    return folder


def write_transformers(folder: Path, *, max_shard_size: str = "5GB") -> Path:
    """By transformers itself, and a stats.json beside."""
    reference_model(PALIGEMMA).save_pretrained(folder, max_shard_size=max_shard_size)
    write_json(
        folder / "stats.json",
        {key: {name: value.tolist() for name, value in of.items()} for key, of in statistics().items()},
    )
    write_tokenizer(folder)
    return folder


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data))


def edit_json(path: Path, **changes: Any) -> None:
    write_json(path, {**json.loads(path.read_text()), **changes})
