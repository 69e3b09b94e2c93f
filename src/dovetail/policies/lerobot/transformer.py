"""Transformer layers of ACT, with the names of nn.MultiheadAttention's and LeRobot's parameters. Batches come first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from dovetail.policies.random_draws import uniform

__all__ = ["DecoderLayer", "Drop", "Encoder", "EncoderLayer", "dropout", "keep_all"]

Drop = Callable[[Tensor], Tensor]
Activation = Literal["relu", "gelu"]


def keep_all(x: Tensor) -> Tensor:
    """No dropout, for acting."""
    return x


def dropout(share: float, generator: Generator | None) -> Drop:
    """Dropout whose draws come from the generator."""
    if not share:
        return keep_all

    def drop(x: Tensor) -> Tensor:
        kept = uniform(x.shape, generator=generator, device=x.device) >= share
        return x * kept / (1.0 - share)

    return drop


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, size: int, *, num_heads: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, known: Tensor | None = None, drop: Drop = keep_all
    ) -> Tensor:
        """[B, L, D], [B, M, D], [B, M, D] -> [B, L, D]. Keys where `known` [B, M] is false are ignored."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            functional.linear(x, weight, bias).view(*x.shape[:2], self._num_heads, -1).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )  # [B, heads, L or M, D / heads]
        mask = None if known is None else known[:, None, None]
        if drop is keep_all:
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:  # its own dropout would draw from torch's global generator
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            mixed = drop(scores.softmax(-1)) @ v
        attended: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return attended


class _Layer(nn.Module):
    """What both kinds of layers have: hidden layers, and normalization before (`pre_norm`) or after each part."""

    def __init__(
        self,
        size: int,
        *,
        num_heads: int,
        feedforward: int,
        activation: Activation,
        pre_norm: bool,
        num_norms: int,
    ) -> None:
        super().__init__()
        self.self_attn = Attention(size, num_heads=num_heads)
        self.linear1 = nn.Linear(size, feedforward)
        self.linear2 = nn.Linear(feedforward, size)
        for number in range(1, num_norms + 1):
            self.add_module(f"norm{number}", nn.LayerNorm(size))
        self._activation = functional.relu if activation == "relu" else functional.gelu
        self._pre_norm = pre_norm

    def _part(self, number: int, x: Tensor, compute: Callable[[Tensor], Tensor], drop: Drop) -> Tensor:
        """x + compute(x), normalized by norm `number`."""
        norm = self.get_submodule(f"norm{number}")
        if self._pre_norm:
            return x + drop(compute(norm(x)))
        added: Tensor = norm(x + drop(compute(x)))
        return added

    def _hidden(self, x: Tensor, drop: Drop) -> Tensor:
        hidden: Tensor = self.linear2(drop(self._activation(self.linear1(x))))
        return hidden


class EncoderLayer(_Layer):
    def __init__(
        self, size: int, *, num_heads: int, feedforward: int, activation: Activation, pre_norm: bool
    ) -> None:
        super().__init__(
            size,
            num_heads=num_heads,
            feedforward=feedforward,
            activation=activation,
            pre_norm=pre_norm,
            num_norms=2,
        )

    def forward(
        self, x: Tensor, *, position: Tensor, known: Tensor | None = None, drop: Drop = keep_all
    ) -> Tensor:
        """[B, L, D]; `position` is added to queries and keys."""

        def attend(x: Tensor) -> Tensor:
            placed = x + position
            attended: Tensor = self.self_attn(placed, placed, x, known=known, drop=drop)
            return attended

        x = self._part(1, x, attend, drop)
        return self._part(2, x, lambda x: self._hidden(x, drop), drop)


class Encoder(nn.Module):
    """Encoder layers, and a last normalization if they normalize before their parts."""

    def __init__(self, layers: Sequence[EncoderLayer], *, last_norm: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.Identity() if last_norm is None else nn.LayerNorm(last_norm)

    def forward(
        self, x: Tensor, *, position: Tensor, known: Tensor | None = None, drop: Drop = keep_all
    ) -> Tensor:
        for layer in self.layers:
            x = layer(x, position=position, known=known, drop=drop)
        normed: Tensor = self.norm(x)
        return normed


class DecoderLayer(_Layer):
    def __init__(
        self, size: int, *, num_heads: int, feedforward: int, activation: Activation, pre_norm: bool
    ) -> None:
        super().__init__(
            size,
            num_heads=num_heads,
            feedforward=feedforward,
            activation=activation,
            pre_norm=pre_norm,
            num_norms=3,
        )
        self.multihead_attn = Attention(size, num_heads=num_heads)

    def forward(
        self, x: Tensor, seen: Tensor, *, position: Tensor, seen_position: Tensor, drop: Drop = keep_all
    ) -> Tensor:
        """[B, H, D] attends to itself, then to `seen` [B, L, D]."""

        def attend(x: Tensor) -> Tensor:
            placed = x + position
            attended: Tensor = self.self_attn(placed, placed, x, drop=drop)
            return attended

        def look(x: Tensor) -> Tensor:
            attended: Tensor = self.multihead_attn(x + position, seen + seen_position, seen, drop=drop)
            return attended

        x = self._part(1, x, attend, drop)
        x = self._part(2, x, look, drop)
        return self._part(3, x, lambda x: self._hidden(x, drop), drop)
