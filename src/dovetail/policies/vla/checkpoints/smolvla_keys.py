"""SmolVLA in LeRobot's folders: which tensors make each parameter, and sizes read from shapes, because config.json has only
the name of the vision-language model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.policies.vla.checkpoints.keys import Pairs, linear_sources, vision_sources
from dovetail.policies.vla.checkpoints.paligemma_keys import STATISTICS, count_layers
from dovetail.policies.vla.checkpoints.size_limits import check_sizes
from dovetail.policies.vla.family import Layout
from dovetail.policies.vla.networks.sizes import GemmaSizes, SmolVLASizes, VisionSizes

__all__ = ["HEAD", "TEXT_NORM", "lerobot_layout"]

# Shapes do not tell how many heads there are. These are the same in SmolVLM2 of 256M, 500M and 2.2B parameters.
_HEAD_SIZE = 64
_VISION_HEAD_SIZES = {1152: 72}  # by width; 64 for others

_WHOLE = "model.vlm_with_expert."
_VISION, _TEXT = f"{_WHOLE}vlm.model.vision_model.", f"{_WHOLE}vlm.model.text_model."
_CONNECTOR, _EXPERT = f"{_WHOLE}vlm.model.connector.modality_projection.proj.weight", f"{_WHOLE}lm_expert."
TEXT_NORM, HEAD = f"{_TEXT}norm.weight", f"{_WHOLE}vlm.lm_head.weight"  # the network has no use for them
_UNKNOWN_SETTINGS = ("adapt_to_pi_aloha", "use_delta_joint_actions_aloha", "add_image_special_tokens")

_Shapes = Mapping[str, tuple[int, ...]]


def lerobot_layout(folder: Path, config: Mapping[str, Any], shapes: _Shapes) -> Layout:
    for name in _UNKNOWN_SETTINGS:
        if config.get(name):
            raise UsageError(f"{folder} has {name}=true, which is unknown here. Use a checkpoint without it")
    sizes = _sizes(folder, config, shapes)
    check_sizes(folder, sizes, shapes)
    _check_config(folder, config, sizes)
    return Layout(
        sizes=sizes,
        sources=dict(_sources(sizes)),
        is_unused=lambda key: key in (TEXT_NORM, HEAD) or key.startswith(STATISTICS),
    )


def _sizes(folder: Path, config: Mapping[str, Any], shapes: _Shapes) -> SmolVLASizes:
    def shape(key: str) -> tuple[int, ...]:
        if key not in shapes:
            raise CheckpointError(f"{folder} lacks {key}: a complete smolvla needs it. Copy the folder again")
        return shapes[key]

    def llama(prefix: str) -> GemmaSizes:
        first = f"{prefix}layers.0."
        queries, width = shape(f"{first}self_attn.q_proj.weight")
        return GemmaSizes(
            width=width,
            num_layers=count_layers(shapes, prefix),
            num_heads=queries // _HEAD_SIZE,
            num_kv_heads=shape(f"{first}self_attn.k_proj.weight")[0] // _HEAD_SIZE,
            head_size=_HEAD_SIZE,
            mlp_width=shape(f"{first}mlp.gate_proj.weight")[0],
        )

    width, _, patch_size, _ = shape(f"{_VISION}embeddings.patch_embedding.weight")
    num_patches = shape(f"{_VISION}embeddings.position_embedding.weight")[0]
    vision = VisionSizes(
        width=width,
        num_layers=count_layers(shapes, f"{_VISION}encoder."),
        num_heads=width // _VISION_HEAD_SIZES.get(width, _HEAD_SIZE),
        mlp_width=shape(f"{_VISION}encoder.layers.0.mlp.fc1.weight")[0],
        image_size=math.isqrt(num_patches) * patch_size,
        patch_size=patch_size,
        join=math.isqrt(shape(_CONNECTOR)[1] // width),
    )
    return SmolVLASizes(
        vision=vision,
        text=llama(_TEXT),
        expert=llama(_EXPERT),
        self_attention_every=int(config.get("self_attn_every_n_layers", 2))
        if "cross" in config.get("attention_mode", "cross_attn")
        else 1,
        vocabulary=shape(f"{_TEXT}embed_tokens.weight")[0],
        num_prompt_tokens=int(config.get("tokenizer_max_length", 48)),
        horizon=int(config["chunk_size"]),
        state_size=int(config["max_state_dim"]),
        action_size=int(config["max_action_dim"]),
        num_flow_steps=int(config.get("num_steps", 10)),
        min_period=float(config.get("min_period", 4e-3)),
        max_period=float(config.get("max_period", 4.0)),
    )


def _check_config(folder: Path, config: Mapping[str, Any], sizes: SmolVLASizes) -> None:
    """What config.json says twice, in other words than the weights."""
    num_layers = int(config.get("num_vlm_layers", 16))
    if 0 < num_layers != sizes.text.num_layers:
        raise CheckpointError(
            f"{folder} has {sizes.text.num_layers} text layers, but config.json has num_vlm_layers={num_layers}. "
            "Copy the folder again"
        )
    size = sizes.image_size
    resolution = config.get("resize_imgs_with_padding", (512, 512))
    if resolution is None or tuple(resolution) != (size, size):
        raise UsageError(
            f"{folder} resizes images to {resolution} (resize_imgs_with_padding), but its weights take {size} x {size}. "
            "Other sizes are unknown here"
        )


def _sources(sizes: SmolVLASizes) -> Pairs:
    yield from vision_sources(sizes.vision, _VISION)
    yield "vision.out.weight", (_CONNECTOR,)
    yield "embedding.weight", (f"{_TEXT}embed_tokens.weight",)
    for index in range(sizes.text.num_layers):
        yield from _layer(f"text_layers.{index}", f"{_TEXT}layers.{index}", is_cross=False)
        is_cross = not sizes.is_self_attention(index)
        yield from _layer(f"expert_layers.{index}", f"{_EXPERT}layers.{index}", is_cross=is_cross)
    yield "expert_norm.weight", (f"{_EXPERT}norm.weight",)
    for ours, theirs in (
        ("state_in", "state_proj"),
        ("action_in", "action_in_proj"),
        ("action_time_in", "action_time_mlp_in"),
        ("action_time_out", "action_time_mlp_out"),
        ("action_out", "action_out_proj"),
    ):
        yield from linear_sources(ours, f"model.{theirs}")


def _layer(ours: str, theirs: str, *, is_cross: bool) -> Pairs:
    projections = [f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv"]
    yield f"{ours}.attention_norm.weight", (f"{theirs}.input_layernorm.weight",)
    if is_cross:
        yield from ((f"{ours}.{name}.weight", (key,)) for name, key in zip("qkv", projections, strict=True))
    else:
        yield f"{ours}.qkv.weight", tuple(projections)
    yield f"{ours}.attention_out.weight", (f"{theirs}.self_attn.o_proj.weight",)
    yield f"{ours}.mlp_norm.weight", (f"{theirs}.post_attention_layernorm.weight",)
    yield f"{ours}.gate_up.weight", tuple(f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up"))
    yield f"{ours}.down.weight", (f"{theirs}.mlp.down_proj.weight",)
