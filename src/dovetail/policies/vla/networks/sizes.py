"""Sizes of vision-language-action networks. The defaults are the published models; tests build small ones. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

__all__ = ["GemmaSizes", "Pi0Sizes", "Pi05Sizes", "SmolVLASizes", "VisionSizes", "VlaSizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSizes:
    """SigLIP. The defaults are So400m/14 for images of 224 x 224 pixels."""

    width: int = 1152
    num_layers: int = 27
    num_heads: int = 16
    mlp_width: int = 4304
    image_size: int = 224
    patch_size: int = 14
    join: int = 1  # side of the square of patches that becomes one token

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """Of one image."""
        return self.num_patches // self.join**2


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaSizes:
    """One Gemma or Llama transformer. The defaults are the 2B one that reads images and prompt."""

    width: int = 2048
    num_layers: int = 18
    num_heads: int = 8
    num_kv_heads: int = 1
    head_size: int = 256
    mlp_width: int = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class VlaSizes:
    """The sizes that every family has. Text model and expert share heads and depth, because the expert attends to the text
    model's keys."""

    vision: VisionSizes
    text: GemmaSizes
    expert: GemmaSizes
    vocabulary: int
    num_prompt_tokens: int = 48
    num_cameras: int = 3
    horizon: int = 50
    state_size: int = 32
    action_size: int = 32
    num_flow_steps: int = 10
    min_period: float = 4e-3  # of the time embedding
    max_period: float = 4.0
    has_float64_times: bool = True  # transformers has float32, which rounds sines of angles up to 1600 by 1e-4

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "num_kv_heads", "head_size"):
            if getattr(self.text, name) != getattr(self.expert, name):
                raise ValueError(
                    f"text model and action expert differ in {name}: {getattr(self.text, name)} and "
                    f"{getattr(self.expert, name)}. The expert attends to the text model, so both must be equal"
                )

    @property
    def image_size(self) -> int:
        return self.vision.image_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Pi0Sizes(VlaSizes):
    is_adaptive: ClassVar[bool] = False  # time changes the expert's norms

    vision: VisionSizes = field(default_factory=VisionSizes)
    text: GemmaSizes = field(default_factory=GemmaSizes)
    expert: GemmaSizes = field(default_factory=lambda: GemmaSizes(width=1024, mlp_width=4096))
    vocabulary: int = 257152


@dataclass(frozen=True, slots=True, kw_only=True)
class Pi05Sizes(Pi0Sizes):
    is_adaptive: ClassVar[bool] = True

    num_prompt_tokens: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolVLASizes(VlaSizes):
    """SmolVLA on SmolVLM2-500M: its vision, the first 16 of its 32 text layers, and an expert of 0.75 times the width."""

    vision: VisionSizes = field(
        default_factory=lambda: VisionSizes(
            width=768, num_layers=12, num_heads=12, mlp_width=3072, image_size=512, patch_size=16, join=4
        )
    )
    text: GemmaSizes = field(
        default_factory=lambda: GemmaSizes(
            width=960, num_layers=16, num_heads=15, num_kv_heads=5, head_size=64, mlp_width=2560
        )
    )
    expert: GemmaSizes = field(
        default_factory=lambda: GemmaSizes(
            width=720, num_layers=16, num_heads=15, num_kv_heads=5, head_size=64, mlp_width=2048
        )
    )
    vocabulary: int = 49280
    self_attention_every: int = 2
    """Layers 0, n, 2n ... of the expert attend to actions too, the others to the prefix only. 0: none does."""

    def is_self_attention(self, layer: int) -> bool:
        return self.self_attention_every > 0 and layer % self.self_attention_every == 0
