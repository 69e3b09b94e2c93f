"""Folders of transformers' `PI0ForConditionalGeneration`: config.json, safetensors, tokenizer. They have no statistics:
those in a processor_config.json are LIBERO's by default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.policies.checkpoints.weight_files import WeightFiles
from dovetail.policies.vla.checkpoints.checkpoint import Checkpoint
from dovetail.policies.vla.checkpoints.keys import KeyLayout, parameter_sources
from dovetail.policies.vla.checkpoints.paligemma_keys import shared_keys
from dovetail.policies.vla.checkpoints.size_limits import check_sizes
from dovetail.policies.vla.family import Family, Layout
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, VisionSizes

__all__ = ["KEYS", "open_folder", "sizes_of", "transformers_layout"]

_UNUSED = ("model.dit.embed_tokens.weight", "model.vlm.language_model.norm.weight")

KEYS = KeyLayout(
    vision="model.vlm.vision_tower.",
    projector="model.vlm.multi_modal_projector.",
    text="model.vlm.language_model.",
    embedding="model.vlm.language_model.embed_tokens.weight",
    expert="model.dit.",
    action_time="embed_action_time.",
    action_out="action_out_proj",
    is_unused=_UNUSED.__contains__,
)


def open_folder(folder: Path, config: Mapping[str, Any], files: WeightFiles, family: Family) -> Checkpoint:
    return Checkpoint(
        folder=folder,
        family=family,
        format="transformers",
        layout=family.layouts["transformers"](folder, config, files.shapes),
        files=files,
        cameras=family.cameras,
        state_mode=family.mode,
        action_mode=family.mode,
    )


def transformers_layout(
    folder: Path,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> Layout:
    # `save_pretrained` writes LeRobot's names; a plain state_dict has the names of the modules
    is_saved = any(key.startswith("paligemma_with_expert.") for key in shapes)
    keys = shared_keys(shapes, prefix="") if is_saved else KEYS
    sizes = sizes_of(config)
    check_sizes(folder, sizes, shapes)
    return Layout(sizes=sizes, sources=parameter_sources(sizes, keys), is_unused=keys.is_unused)


def sizes_of(config: Mapping[str, Any]) -> Pi0Sizes:
    """KeyError for a config without these entries. Saved configs have all of them."""
    text, vision = config["vlm_config"]["text_config"], config["vlm_config"]["vision_config"]
    return Pi0Sizes(
        vision=VisionSizes(
            width=vision["hidden_size"],
            num_layers=vision["num_hidden_layers"],
            num_heads=vision["num_attention_heads"],
            mlp_width=vision["intermediate_size"],
            image_size=vision["image_size"],
            patch_size=vision["patch_size"],
        ),
        text=_gemma(text),
        expert=_gemma(config["dit_config"]),
        vocabulary=text["vocab_size"],
        horizon=config["chunk_size"],
        state_size=config["max_state_dim"],
        action_size=config["max_action_dim"],
        num_flow_steps=config["num_inference_steps"],
        min_period=config["min_period"],
        max_period=config["max_period"],
        has_float64_times=False,
    )


def _gemma(config: Mapping[str, Any]) -> GemmaSizes:
    return GemmaSizes(
        width=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_size=config["head_dim"],
        mlp_width=config["intermediate_size"],
    )
