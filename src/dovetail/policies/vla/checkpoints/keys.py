"""Which published tensors each parameter of pi0's network is made of, for every layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dovetail.policies.vla.sizes import Pi0Sizes

__all__ = ["KeyLayout", "parameter_sources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLayout:
    """Prefixes of a published layout."""

    vision: str
    projector: str
    text: str
    embedding: str  # the whole key
    expert: str
    action_time: str  # before state_proj, action_in_proj, action_time_mlp_in and action_time_mlp_out
    action_out: str  # the whole key, without `.weight`
    is_unused: Callable[[str], bool]  # tensors that pi0 does not use


def parameter_sources(sizes: Pi0Sizes, layout: KeyLayout) -> dict[str, tuple[str, ...]]:
    """Parameter: the tensors that make it, joined along the first axis."""
    return {ours: theirs for part in (_vision, _gemma, _head) for ours, theirs in part(sizes, layout)}


_Pairs = Iterator[tuple[str, tuple[str, ...]]]


def _linear(ours: str, *theirs: str) -> _Pairs:
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)


def _vision(sizes: Pi0Sizes, layout: KeyLayout) -> _Pairs:
    prefix = layout.vision
    yield from _linear("vision.patch", f"{prefix}embeddings.patch_embedding")
    yield "vision.position", (f"{prefix}embeddings.position_embedding.weight",)
    for index in range(sizes.vision.num_layers):
        ours, theirs = f"vision.layers.{index}", f"{prefix}encoder.layers.{index}"
        yield from _linear(f"{ours}.attention_norm", f"{theirs}.layer_norm1")
        yield from _linear(f"{ours}.qkv", *(f"{theirs}.self_attn.{name}_proj" for name in "qkv"))
        yield from _linear(f"{ours}.attention_out", f"{theirs}.self_attn.out_proj")
        yield from _linear(f"{ours}.mlp_norm", f"{theirs}.layer_norm2")
        yield from _linear(f"{ours}.mlp_in", f"{theirs}.mlp.fc1")
        yield from _linear(f"{ours}.mlp_out", f"{theirs}.mlp.fc2")
    yield from _linear("vision.norm", f"{prefix}post_layernorm")
    yield from _linear("vision.out", f"{layout.projector}linear")


def _gemma(sizes: Pi0Sizes, layout: KeyLayout) -> _Pairs:
    yield "embedding.weight", (layout.embedding,)
    for layers, prefix in (("text_layers", layout.text), ("expert_layers", layout.expert)):
        for index in range(sizes.text.num_layers):
            ours, theirs = f"{layers}.{index}", f"{prefix}layers.{index}"
            yield f"{ours}.attention_norm.weight", (f"{theirs}.input_layernorm.weight",)
            yield f"{ours}.qkv.weight", tuple(f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv")
            yield f"{ours}.attention_out.weight", (f"{theirs}.self_attn.o_proj.weight",)
            yield f"{ours}.mlp_norm.weight", (f"{theirs}.post_attention_layernorm.weight",)
            yield f"{ours}.gate_up.weight", tuple(f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up"))
            yield f"{ours}.down.weight", (f"{theirs}.mlp.down_proj.weight",)
    yield "expert_norm.weight", (f"{layout.expert}norm.weight",)


def _head(sizes: Pi0Sizes, layout: KeyLayout) -> _Pairs:
    for ours, theirs in (
        ("state_in", "state_proj"),
        ("action_in", "action_in_proj"),
        ("action_time_in", "action_time_mlp_in"),
        ("action_time_out", "action_time_mlp_out"),
    ):
        yield from _linear(ours, layout.action_time + theirs)
    yield from _linear("action_out", layout.action_out)
