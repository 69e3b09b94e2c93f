"""The layers of SmolVLA: Llama's, and one that attends to another model's keys and values only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.vla.networks.sizes import GemmaSizes
from dovetail.policies.vla.networks.transformers import (
    GemmaLayer,
    Modulation,
    RMSNorm,
    Rotation,
    heads_as_rows,
    rotate,
)

__all__ = ["CrossLayer", "LlamaLayer", "LlamaNorm"]

_EPSILON = 1e-5


class LlamaNorm(RMSNorm):
    """In float32, then scaled by the weight. It is never modulated."""

    weight: nn.Parameter

    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + _EPSILON)).to(x.dtype) * self.weight


class LlamaLayer(GemmaLayer):
    """As Gemma's, with other norms and another activation."""

    def __init__(self, sizes: GemmaSizes) -> None:
        super().__init__(sizes)
        self.attention_norm, self.mlp_norm = LlamaNorm(sizes.width), LlamaNorm(sizes.width)

    def activate(self, gate: Tensor) -> Tensor:
        return functional.silu(gate)


class CrossLayer(LlamaLayer):
    """Keys and values are projections of those of the text model:

    keys, values = layer.project_prefix(keys, values)  # once
    x = layer.finish(x, attend(layer.queries(x, rotation), keys, values, bias))
    """

    def __init__(self, sizes: GemmaSizes) -> None:
        super().__init__(sizes)
        kv_size = sizes.num_kv_heads * sizes.head_size
        del self.qkv
        self.q = nn.Linear(sizes.width, sizes.num_heads * sizes.head_size, bias=False)
        self.k, self.v = (nn.Linear(kv_size, kv_size, bias=False) for _ in range(2))

    def queries(self, x: Tensor, where: Rotation) -> Tensor:
        """[B, K, N * G, D]"""
        heads = self.q(self.attention_norm(x)).view(*x.shape[:2], -1, self._head_size)
        return heads_as_rows(rotate(heads, where), num_kv_heads=self._num_kv_heads)

    def project_prefix(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of the text model's [B, K, P, D]. They are not rotated again."""
        projected = (
            linear(part.transpose(1, 2).flatten(2)).view(len(part), -1, self._num_kv_heads, self._head_size)
            for linear, part in ((self.k, keys), (self.v, values))
        )
        k, v = (part.transpose(1, 2).contiguous() for part in projected)
        return k, v
