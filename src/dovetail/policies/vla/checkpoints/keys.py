"""Which published tensors each parameter of pi0 and pi0.5 is made of, for every layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dovetail.policies.vla.networks.sizes import Pi0Sizes, VisionSizes

__all__ = ["KeyLayout", "Pairs", "linear_sources", "parameter_sources", "vision_sources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLayout:
    """Prefixes of a published layout of pi0 or pi0.5."""

    vision: str
    projector: str
    text: str
    embedding: str  # the whole key
    expert: str
    action_time: str  # before state_proj, action_in_proj and the layers of time
    action_out: str  # the whole key, without `.weight`
    is_unused: Callable[[str], bool]  # tensors that are not needed


def parameter_sources(sizes: Pi0Sizes, layout: KeyLayout) -> dict[str, tuple[str, ...]]:
    """Parameter: the tensors that make it, joined along the first axis."""
    return {ours: theirs for part in (_vision, _gemma, _head) for ours, theirs in part(sizes, layout)}


Pairs = Iterator[tuple[str, tuple[str, ...]]]


def linear_sources(ours: str, *theirs: str) -> Pairs:
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)


def _vision(sizes: Pi0Sizes, layout: KeyLayout) -> Pairs:
    yield from vision_sources(sizes.vision, layout.vision)
    yield from linear_sources("vision.out", f"{layout.projector}linear")


def vision_sources(sizes: VisionSizes, prefix: str) -> Pairs:
    """SigLIP without its last product."""
    yield from linear_sources("vision.patch", f"{prefix}embeddings.patch_embedding")
    yield "vision.position", (f"{prefix}embeddings.position_embedding.weight",)
    for index in range(sizes.num_layers):
        ours, theirs = f"vision.layers.{index}", f"{prefix}encoder.layers.{index}"
        yield from linear_sources(f"{ours}.attention_norm", f"{theirs}.layer_norm1")
        yield from linear_sources(f"{ours}.qkv", *(f"{theirs}.self_attn.{name}_proj" for name in "qkv"))
        yield from linear_sources(f"{ours}.attention_out", f"{theirs}.self_attn.out_proj")
        yield from linear_sources(f"{ours}.mlp_norm", f"{theirs}.layer_norm2")
        yield from linear_sources(f"{ours}.mlp_in", f"{theirs}.mlp.fc1")
        yield from linear_sources(f"{ours}.mlp_out", f"{theirs}.mlp.fc2")
    yield from linear_sources("vision.norm", f"{prefix}post_layernorm")


def _gemma(sizes: Pi0Sizes, layout: KeyLayout) -> Pairs:
    yield "embedding.weight", (layout.embedding,)
    for layers, prefix in (("text_layers", layout.text), ("expert_layers", layout.expert)):
        for index in range(sizes.text.num_layers):
            ours, theirs = f"{layers}.{index}", f"{prefix}layers.{index}"
            has_norms = layers == "text_layers" or not sizes.is_adaptive
            if has_norms:
                yield f"{ours}.attention_norm.weight", (f"{theirs}.input_layernorm.weight",)
                yield f"{ours}.mlp_norm.weight", (f"{theirs}.post_attention_layernorm.weight",)
            yield f"{ours}.qkv.weight", tuple(f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv")
            yield f"{ours}.attention_out.weight", (f"{theirs}.self_attn.o_proj.weight",)
            yield f"{ours}.gate_up.weight", tuple(f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up"))
            yield f"{ours}.down.weight", (f"{theirs}.mlp.down_proj.weight",)
    if sizes.is_adaptive:
        yield from linear_sources("modulations", *_adaptive_norms(sizes, layout.expert))
    else:
        yield "expert_norm.weight", (f"{layout.expert}norm.weight",)


def _adaptive_norms(sizes: Pi0Sizes, expert: str) -> Iterator[str]:
    for index in range(sizes.expert.num_layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{expert}layers.{index}.{norm}.dense"
    yield f"{expert}norm.dense"


def _head(sizes: Pi0Sizes, layout: KeyLayout) -> Pairs:
    of_time = ("time_in", "time_mlp_in"), ("time_out", "time_mlp_out")
    if not sizes.is_adaptive:
        of_time = ("action_time_in", "action_time_mlp_in"), ("action_time_out", "action_time_mlp_out")
        yield from linear_sources("state_in", f"{layout.action_time}state_proj")
    for ours, theirs in (("action_in", "action_in_proj"), *of_time):
        yield from linear_sources(ours, layout.action_time + theirs)
    yield from linear_sources("action_out", layout.action_out)
