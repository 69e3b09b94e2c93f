"""Velocity networks that are trained by gradients through all steps of a flow, and sampling of noisy paths.

A plain velocity network, applied K times, is a recurrent network with vanishing or exploding gradients (Zhang et al.,
2025). Both networks here predict the end of the path instead. Then a step of dt,

    x <- x + dt * velocity = (1 - u) x + u * end,   u = gate * dt / (1 - t), at most 1,

never overshoots the end.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from dovetail.policies.flows.guidance import Velocity
from dovetail.policies.networks import NUM_TIME_FREQUENCIES, mlp, time_embedding

__all__ = ["GatedVelocity", "TransformerVelocity", "noisy_path", "path_density"]

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


def noisy_path(
    velocity: Velocity, x: Tensor, *, sigma: Tensor, noise: Tensor, axis_mask: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """The points of a noisy path from x_0 [B, A] to x_1, and the log-density [B] of the whole path.

    With x_t = (1 - t) x_0 + t x_1 and x_0 from N(0, I), the score of x_t is (t v - x) / (1 - t). So

        dx = (v + sigma^2 / 2 * score) dt + sigma dW

    has the same distribution at each time as dx = v dt, for every sigma that does not depend on x. The last Euler step
    begins at t = 1 - dt, which avoids a division by 0. `sigma` is [B, A], and `noise` is N(0, I) [K, B, A].
    Axes outside `axis_mask` [B, A] stay 0 and do not count in the density.
    """
    if axis_mask is not None:
        x, noise = torch.where(axis_mask, x, 0.0), torch.where(axis_mask, noise, 0.0)
    dt = 1.0 / len(noise)
    step_std = sigma * math.sqrt(dt)
    path, log_density = [x], _log_normal(x, axis_mask)
    log_std = step_std.log() if axis_mask is None else torch.where(axis_mask, step_std.log(), 0.0)
    for step, e in enumerate(noise):
        x = _step_mean(velocity, x, step, dt=dt, sigma=sigma) + step_std * e
        path.append(x)
        log_density = log_density + _log_normal(e, axis_mask) - log_std.sum(-1)
    return path, log_density


def path_density(velocity: Velocity, path: Tensor, *, sigma: Tensor) -> Tensor:
    """The log-density [B] of a given path [K + 1, B, A], as `noisy_path` computes it."""
    dt = 1.0 / (len(path) - 1)
    step_std = sigma * math.sqrt(dt)
    log_density = _log_normal(path[0])
    for step, (x, following) in enumerate(itertools.pairwise(path)):
        e = (following - _step_mean(velocity, x, step, dt=dt, sigma=sigma)) / step_std
        log_density = log_density + _log_normal(e) - step_std.log().sum(-1)
    return log_density


def _step_mean(velocity: Velocity, x: Tensor, step: int, *, dt: float, sigma: Tensor) -> Tensor:
    """The end of a step without its noise."""
    t = step * dt
    v = velocity(x, t)
    drift = v + 0.5 * sigma.square() * (t * v - x) / (1.0 - t)
    return x + drift * dt


def _log_normal(x: Tensor, axis_mask: Tensor | None = None) -> Tensor:
    each = x.square() + math.log(2.0 * math.pi)
    return -0.5 * (each if axis_mask is None else torch.where(axis_mask, each, 0.0)).sum(-1)
