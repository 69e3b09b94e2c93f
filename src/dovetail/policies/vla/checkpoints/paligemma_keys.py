"""pi0 and pi0.5 in the folders of LeRobot and openpi: the key names that they share, and sizes read from shapes, because
their configs name variants only."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core.errors import CheckpointError
from dovetail.policies.vla.checkpoints.keys import KeyLayout, parameter_sources
from dovetail.policies.vla.checkpoints.size_limits import check_sizes
from dovetail.policies.vla.family import Layout
from dovetail.policies.vla.networks.sizes import GemmaSizes, Pi0Sizes, VisionSizes

__all__ = ["STATISTICS", "count_layers", "lerobot_layout", "openpi_layout", "shared_keys"]

_VISION_HEADS = 16  # of PaliGemma's vision tower in all variants; shapes do not tell
STATISTICS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")


_Shapes = Mapping[str, tuple[int, ...]]


def lerobot_layout(
    folder: Path, config: Mapping[str, Any], shapes: _Shapes, *, model: type[Pi0Sizes] = Pi0Sizes
) -> Layout:
    # LeRobot's trainer writes `model.` before every key of the network, its converted base folders do not
    keys = shared_keys(shapes, prefix="model." if any(key.startswith("model.") for key in shapes) else "")
    sizes = _sizes_from_shapes(
        shapes,
        keys,
        model,
        folder=folder,
        num_prompt_tokens=int(config.get("tokenizer_max_length", model().num_prompt_tokens)),
        horizon=int(config["chunk_size"]),
        state_size=int(config["max_state_dim"]),
        action_size=int(config["max_action_dim"]),
        num_flow_steps=int(config.get("num_inference_steps", config.get("num_steps", 10))),
        min_period=float(config.get("min_period", 4e-3)),
        max_period=float(config.get("max_period", 4.0)),
    )
    return Layout(sizes=sizes, sources=parameter_sources(sizes, keys), is_unused=keys.is_unused)


def openpi_layout(
    folder: Path, config: Mapping[str, Any], shapes: _Shapes, *, model: type[Pi0Sizes] = Pi0Sizes
) -> Layout:
    keys = shared_keys(shapes, prefix="")
    sizes = _sizes_from_shapes(
        shapes,
        keys,
        model,
        folder=folder,
        horizon=int(config["action_horizon"]),
        state_size=int(config["action_dim"]),
        action_size=int(config["action_dim"]),
    )
    return Layout(sizes=sizes, sources=parameter_sources(sizes, keys), is_unused=keys.is_unused)


def shared_keys(shapes: Mapping[str, Any], *, prefix: str) -> KeyLayout:
    """The layout of these weights. transformers moved parts of PaliGemma over time, so the places differ between folders."""
    whole = f"{prefix}paligemma_with_expert."
    outer, inner = f"{whole}paligemma.", f"{whole}paligemma.model."
    base = inner if any(key.startswith(inner) for key in shapes) else outer

    def place(*candidates: str) -> str:
        return next((c for c in candidates if any(key.startswith(c) for key in shapes)), candidates[0])

    text = place(*(f"{base}language_model.{more}layers.0." for more in ("", "model."))).removesuffix("layers.0.")
    # Converted folders have one tensor under one of these names, because it is tied. LeRobot's trainer saves both and trains
    # `embed_tokens` only.
    heads = (f"{text}embed_tokens.weight", f"{outer}lm_head.weight", f"{outer}language_model.lm_head.weight")
    unused = {
        *heads,
        f"{text}norm.weight",
        f"{whole}gemma_expert.lm_head.weight",
        f"{whole}gemma_expert.model.embed_tokens.weight",
    }
    return KeyLayout(
        vision=place(f"{base}vision_tower.vision_model.", f"{base}vision_tower."),
        projector=f"{base}multi_modal_projector.",
        text=text,
        embedding=next((key for key in heads if key in shapes), heads[0]),
        expert=f"{whole}gemma_expert.model.",
        action_time=prefix,
        action_out=f"{prefix}action_out_proj",
        is_unused=lambda key: key in unused or key.startswith(STATISTICS),
    )


def _sizes_from_shapes(
    shapes: _Shapes, keys: KeyLayout, model: type[Pi0Sizes], *, folder: Path, **others: Any
) -> Pi0Sizes:
    """`others` are the sizes that only a config has."""

    def shape(key: str) -> tuple[int, ...]:
        if key not in shapes:
            raise CheckpointError(f"{folder} lacks {key}: a complete model needs it. Copy the folder again")
        return shapes[key]

    def gemma(prefix: str) -> GemmaSizes:
        first = f"{prefix}layers.0."
        queries, width = shape(f"{first}self_attn.q_proj.weight")
        head_size = shape(f"{first}self_attn.k_proj.weight")[0]  # PaliGemma has one key head
        return GemmaSizes(
            width=width,
            num_layers=count_layers(shapes, prefix),
            num_heads=queries // head_size,
            num_kv_heads=1,
            head_size=head_size,
            mlp_width=shape(f"{first}mlp.gate_proj.weight")[0],
        )

    width, _, patch_size, _ = shape(f"{keys.vision}embeddings.patch_embedding.weight")
    num_patches = shape(f"{keys.vision}embeddings.position_embedding.weight")[0]
    vision = VisionSizes(
        width=width,
        num_layers=count_layers(shapes, f"{keys.vision}encoder."),
        num_heads=_VISION_HEADS,
        mlp_width=shape(f"{keys.vision}encoder.layers.0.mlp.fc1.weight")[0],
        image_size=math.isqrt(num_patches) * patch_size,
        patch_size=patch_size,
    )
    vocabulary = shape(keys.embedding)[0]
    sizes = model(vision=vision, text=gemma(keys.text), expert=gemma(keys.expert), vocabulary=vocabulary, **others)
    check_sizes(folder, sizes, shapes)
    return sizes


def count_layers(shapes: Mapping[str, Any], prefix: str) -> int:
    layer = re.compile(re.escape(prefix) + r"layers\.(\d{1,3})\.")
    return 1 + max((int(found[1]) for key in shapes if (found := layer.match(key))), default=-1)
