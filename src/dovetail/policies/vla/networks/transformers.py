"""Transformers of vision-language-action models: SigLIP for images, and Gemma for text and actions.

Products that share their input are one product: queries, keys and values, and the two halves of a gated MLP. All heads that
share a key head are rows of one product, so a layer with one key head needs no transposition.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.vla.networks.layer_runner import LayerRunner
from dovetail.policies.vla.networks.sizes import GemmaSizes, VisionSizes

__all__ = [
    "GemmaLayer",
    "LayerModulation",
    "Modulation",
    "RMSNorm",
    "Rotation",
    "VisionLayer",
    "VisionTower",
    "aligned",
    "attend",
    "heads_as_rows",
    "insert",
    "masked_mean",
    "rms_norm",
    "rotate",
    "rotation",
    "self_attention_layer",
    "with_room",
]

_ROPE_BASE = 10_000.0
_EPSILON = 1e-6


# ---- SigLIP


class VisionTower(nn.Module):
    """Images [N, 3, S, S] in [-1, 1] to tokens [N, T, out]. `bias` is the last product's."""

    def __init__(self, sizes: VisionSizes, *, out: int, bias: bool = True) -> None:
        super().__init__()
        self._patch, self._join = sizes.patch_size, sizes.join
        self.patch = nn.Conv2d(3, sizes.width, sizes.patch_size, stride=sizes.patch_size)
        self.position = nn.Parameter(torch.zeros(sizes.num_patches, sizes.width))
        self.layers = nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(sizes.width, eps=_EPSILON)
        self.out = nn.Linear(sizes.join**2 * sizes.width, out, bias=bias)

    def forward(self, images: Tensor, run_layer: LayerRunner | None = None) -> Tensor:
        x = self.embed(images)
        run_layer = run_layer or LayerRunner()
        for layer in self.layers:
            x = run_layer(_call, layer, x)
        tokens: Tensor = self.out(_joined(self.norm(x), self._join))
        return tokens

    def tokens(self, images: Tensor, run_layer: LayerRunner) -> Tensor:
        """Images [B, C, 3, S, S], or tokens [B, C, T, out] that this tower made before, to [B, C * T, out]."""
        if images.ndim == 4:
            return images.flatten(1, 2)
        tokens: Tensor = self(images.flatten(0, 1), run_layer)
        return tokens.view(len(images), -1, tokens.shape[-1])

    def embed(self, images: Tensor) -> Tensor:
        """Patches [N, P, W] before the first layer."""
        patches = functional.pixel_unshuffle(images.to(self.position.dtype), self._patch)  # [N, 3 p p, s, s]
        weight, bias = self.patch.weight.flatten(1), self.patch.bias
        embedded = functional.linear(patches.flatten(2).mT, weight, bias)
        return embedded + self.position.to(embedded.dtype)


def _joined(patches: Tensor, side: int) -> Tensor:
    """Squares of side x side neighboring patches, [N, P, W] to [N, P / side^2, side^2 W]: rows first, then columns."""
    if side == 1:
        return patches
    num_images, num_patches, width = patches.shape
    num = math.isqrt(num_patches) // side
    squares = patches.view(num_images, num, side, num, side, width).transpose(2, 3)
    return squares.reshape(num_images, num * num, side * side * width)


def _call(layer: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = layer(x)
    return y


class VisionLayer(nn.Module):
    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self._num_heads = sizes.num_heads
        self.attention_norm = nn.LayerNorm(sizes.width, eps=_EPSILON)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.attention_out = nn.Linear(sizes.width, sizes.width)
        self.mlp_norm = nn.LayerNorm(sizes.width, eps=_EPSILON)
        self.mlp_in = nn.Linear(sizes.width, sizes.mlp_width)
        self.mlp_out = nn.Linear(sizes.mlp_width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).view(*x.shape[:2], 3, self._num_heads, -1)  # [N, P, 3, heads, D]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        hidden = functional.linear(self.mlp_norm(x), self.mlp_in.weight) + self.mlp_in.bias  # fused with gelu
        mlp: Tensor = self.mlp_out(functional.gelu(hidden, approximate="tanh"))
        return x + mlp


# ---- Gemma


class Rotation(NamedTuple):
    """Rotary position embedding of some tokens: cosine and sine [B, N, 1, D / 2], float32."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, *, head_size: int) -> Rotation:
    """The rotation of tokens at these positions [B, N]."""
    exponent = torch.arange(0, head_size, 2, dtype=torch.float32, device=positions.device) / head_size
    angles = positions[..., None, None].float() * _ROPE_BASE**-exponent
    return Rotation(angles.cos(), angles.sin())


class Modulation(NamedTuple):
    """How a condition changes a norm and what follows it, [B or 1, 1, W] each: x + gate f(norm(x) (1 + scale) + shift)."""

    scale: Tensor
    shift: Tensor
    gate: Tensor


class LayerModulation(NamedTuple):
    attention: Modulation
    mlp: Modulation


def rms_norm(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """Gemma's: in float32, scaled by 1 + scale."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + _EPSILON) * (1.0 + scale.float())
    return (y if shift is None else y + shift.float()).to(x.dtype)


class RMSNorm(nn.Module):
    """With a scale of its own, or with a modulation that comes from outside."""

    def __init__(self, width: int, *, is_modulated: bool = False) -> None:
        super().__init__()
        self.weight = None if is_modulated else nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        if self.weight is not None:
            return rms_norm(x, self.weight)
        assert modulation is not None, "this norm has no scale of its own"
        return rms_norm(x, modulation.scale, modulation.shift)


class GemmaLayer(nn.Module):
    """One layer in two halves. The caller attends between them, to keys and values of its choice:

    q, k, v = layer.project(x, rotation)
    x = layer.finish(x, attend(q, keys, values, bias))
    """

    def __init__(self, sizes: GemmaSizes, *, is_modulated: bool = False) -> None:
        super().__init__()
        self._num_kv_heads, self._head_size = sizes.num_kv_heads, sizes.head_size
        self._q_size = sizes.num_heads * sizes.head_size
        kv_size = sizes.num_kv_heads * sizes.head_size
        self.attention_norm = RMSNorm(sizes.width, is_modulated=is_modulated)
        self.qkv = nn.Linear(sizes.width, self._q_size + 2 * kv_size, bias=False)
        self.attention_out = nn.Linear(self._q_size, sizes.width, bias=False)
        self.mlp_norm = RMSNorm(sizes.width, is_modulated=is_modulated)
        self.gate_up = nn.Linear(sizes.width, 2 * sizes.mlp_width, bias=False)
        self.down = nn.Linear(sizes.mlp_width, sizes.width, bias=False)

    def project(
        self, x: Tensor, where: Rotation, modulation: LayerModulation | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, K, N * G, D] with the G heads of a key head as rows; keys and values [B, K, N, D]."""
        num_kv = self._num_kv_heads
        normal = self.attention_norm(x, modulation and modulation.attention)
        heads = self.qkv(normal).view(*x.shape[:2], -1, self._head_size)
        q, k, v = heads.split((heads.shape[2] - 2 * num_kv, num_kv, num_kv), dim=2)
        q = heads_as_rows(rotate(q, where), num_kv_heads=num_kv)
        return q, rotate(k, where).transpose(1, 2), v.transpose(1, 2)

    def keys_values(self, x: Tensor, where: Rotation) -> tuple[Tensor, Tensor]:
        """Keys and values only: all that is used of the last layer, if no output is."""
        heads = functional.linear(self.attention_norm(x), self.qkv.weight[self._q_size :])
        k, v = heads.view(*x.shape[:2], 2, self._num_kv_heads, self._head_size).unbind(2)
        return rotate(k, where).transpose(1, 2), v.transpose(1, 2)

    def finish(self, x: Tensor, attended: Tensor, modulation: LayerModulation | None = None) -> Tensor:
        """Tokens [B, N, W] after this layer, from what they attended to, [B, K, N * G, D]."""
        # [B, N, heads * D]; with gradients, torch's attention gives another order of memory
        heads = attended.reshape(*attended.shape[:2], x.shape[1], -1).transpose(1, 2).flatten(2)
        change: Tensor = self.attention_out(heads)
        x = x + (change if modulation is None else change * modulation.attention.gate)
        gate, up = self.gate_up(self.mlp_norm(x, modulation and modulation.mlp)).chunk(2, dim=-1)
        mlp: Tensor = self.down(self.activate(gate) * up)
        return x + (mlp if modulation is None else mlp * modulation.mlp.gate)

    def activate(self, gate: Tensor) -> Tensor:
        return functional.gelu(gate, approximate="tanh")


def self_attention_layer(
    layer: GemmaLayer, x: Tensor, where: Rotation, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens after a layer in which all of them attend to each other, and the layer's keys and values."""
    q, k, v = layer.project(x, where)
    return layer.finish(x, attend(q, k, v, bias)), k, v


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean [B, W] over tokens [B, N, W] where the mask is true, scaled to a length of sqrt(W), float32."""
    total = torch.where(mask[..., None], x.float(), 0.0).sum(1)
    return functional.rms_norm(total, total.shape[-1:], eps=_EPSILON)


def heads_as_rows(q: Tensor, *, num_kv_heads: int) -> Tensor:
    """Queries [B, N, heads, D] as [B, K, N * G, D]: the G heads of a key head are rows of one product."""
    num_rows, num_tokens, _, size = q.shape
    return q.view(num_rows, num_tokens, num_kv_heads, -1, size).transpose(1, 2).flatten(2, 3)


def rotate(x: Tensor, where: Rotation) -> Tensor:
    """Rotate the two halves of each head [B, N, heads, D] against each other."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * where.cos - b * where.sin, b * where.cos + a * where.sin), dim=-1).to(x.dtype)


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention of rows [B, K, R, D] to [B, K, T, D]. `bias` [B, 1, 1 or R, T] is added. Softmax in float32."""
    if q.is_cuda and torch.is_grad_enabled():  # keeps no scores for the backward pass
        allowed = bias.to(q.dtype).expand(len(q), 1, q.shape[2], -1)
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)
    scores = (q @ keys.mT).float() * q.shape[-1] ** -0.5 + bias
    return torch.softmax(scores, dim=-1).to(values.dtype) @ values


def aligned(num_keys: int) -> int:
    """The number of keys with padding. Tensor cores need rows of whole 16 bytes; without padding, a GPU takes kernels that
    are several times slower."""
    return -(-num_keys // 8) * 8


def with_room(known: Tensor, num: int) -> Tensor:
    """Keys or values [B, K, T, D] with zeros for `num` more, and behind them up to an aligned number."""
    num_known = known.shape[2]
    return functional.pad(known, (0, 0, 0, aligned(num_known + num) - num_known))


def insert(cached: Tensor, new: Tensor, *, end: int) -> Tensor:
    """`cached` [B, K, T, D] with `new` in the places before `end`. In place unless gradients are needed."""
    first = end - new.shape[2]
    if torch.is_grad_enabled():
        return torch.cat((cached[:, :, :first], new, cached[:, :, end:]), dim=2)
    cached[:, :, first:end] = new
    return cached
