"""Velocity networks that are trained by gradients through all steps of a flow.

A plain velocity network, applied K times, is a recurrent network with vanishing or exploding gradients (Zhang et al.,
2025). Both networks here predict the end of the path instead. Then a step of dt,

    x <- x + dt * velocity = (1 - u) x + u * end,   u = gate * dt / (1 - t), at most 1,

never overshoots the end.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dovetail.policies.networks import NUM_TIME_FREQUENCIES, mlp, time_embedding

__all__ = ["GatedVelocity", "TransformerVelocity"]

_NUM_HEADS = 4
_NUM_FEATURE_TOKENS = 4


class GatedVelocity(nn.Module):
    """Flow-G: the step of a gated recurrent unit, v = gate * (candidate - x), [B, A] -> [B, A].

    The gate is relative to the maximum 1 / (1 - t): with a gate of 1, the last step reaches the candidate.
    """

    def __init__(self, *, num_features: int, num_actions: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        num_inputs = num_features + num_actions + 2 * NUM_TIME_FREQUENCIES
        self.net = mlp((num_inputs, *(hidden,) * num_layers, 2 * num_actions))

    def forward(self, x: Tensor, features: Tensor, t: Tensor, axis_mask: Tensor | None = None) -> Tensor:
        if axis_mask is not None:  # axes that the arm of a row does not have are 0 and stay 0
            x = torch.where(axis_mask, x, 0.0)
        gate, candidate = self.net(torch.cat((features, x, time_embedding(t)), dim=1)).chunk(2, dim=1)
        velocity: Tensor = torch.sigmoid(gate) * (candidate - x) / (1.0 - t)[:, None]
        return velocity if axis_mask is None else torch.where(axis_mask, velocity, 0.0)


class TransformerVelocity(nn.Module):
    """Flow-T: a transformer decoder with one token per action axis, which attends to the others and to the features,
    [B, A] -> [B, A]. It normalizes before each layer and has residual connections, so that values do not grow."""

    def __init__(self, *, num_features: int, num_actions: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.action = nn.Linear(1, hidden)
        self.places = nn.Parameter(torch.randn(num_actions, hidden))
        self.time = nn.Linear(2 * NUM_TIME_FREQUENCIES, hidden)
        self.seen = nn.Sequential(
            nn.Linear(num_features, _NUM_FEATURE_TOKENS * hidden),
            nn.Unflatten(1, (_NUM_FEATURE_TOKENS, hidden)),
            nn.LayerNorm(hidden),
        )
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(
                hidden, _NUM_HEADS, 2 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(num_layers)
        )
        self.end = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 1))

    def forward(self, x: Tensor, features: Tensor, t: Tensor, axis_mask: Tensor | None = None) -> Tensor:
        if axis_mask is not None:
            x = torch.where(axis_mask, x, 0.0)
        tokens = self.action(x[..., None]) + self.places + self.time(time_embedding(t))[:, None]  # [B, A, hidden]
        seen = self.seen(features)
        for layer in self.layers:
            tokens = layer(tokens, seen, tgt_key_padding_mask=None if axis_mask is None else ~axis_mask)
        end: Tensor = self.end(tokens).squeeze(-1)
        velocity = (end - x) / (1.0 - t)[:, None]
        return velocity if axis_mask is None else torch.where(axis_mask, velocity, 0.0)
