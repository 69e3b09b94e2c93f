"""Velocities of flows that are trained by gradients through all their steps, and such a flow with noise on its way.

A plain velocity network, stepped K times, is a recurrent network, and its gradients vanish or explode like one's
(Zhang et al., 2025). Both networks here name the end of the way instead, so that a step of dt,

    x <- x + dt * velocity = (1 - u) x + u * end,   u = gate * dt / (1 - t), at most 1,

goes part of the way there and never beyond.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dovetail.policies.networks import NUM_TIME_FREQUENCIES, mlp, time_embedding

__all__ = ["GatedVelocity", "TransformerVelocity", "noisy_path", "path_density"]

_NUM_HEADS = 4
_NUM_SEEN = 4  # tokens that an observation is told in


class GatedVelocity(nn.Module):
    """Flow-G: the step of a gated recurrent unit, v = gate * (candidate - x), [B, A] -> [B, A].

    The gate is a share of what is possible in the time left, 1 / (1 - t): wide open, the last step arrives.
    """

    def __init__(self, *, num_features: int, num_actions: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        num_inputs = num_features + num_actions + 2 * NUM_TIME_FREQUENCIES
        self.net = mlp((num_inputs, *(hidden,) * num_layers, 2 * num_actions))

    def forward(self, x: Tensor, features: Tensor, t: Tensor, real: Tensor | None = None) -> Tensor:
        if real is not None:  # axes [B, A] that a row's arm has not are neither seen nor moved
            x = torch.where(real, x, 0.0)
        gate, candidate = self.net(torch.cat((features, x, time_embedding(t)), dim=1)).chunk(2, dim=1)
        velocity: Tensor = torch.sigmoid(gate) * (candidate - x) / (1.0 - t)[:, None]
        return velocity if real is None else torch.where(real, velocity, 0.0)


class TransformerVelocity(nn.Module):
    """Flow-T: a transformer decoder whose tokens are the numbers of the action, which attend to each other and to what
    was seen, [B, A] -> [B, A]. Normalised before each layer, with a way past it: nothing grows from step to step."""

    def __init__(self, *, num_features: int, num_actions: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.action = nn.Linear(1, hidden)
        self.places = nn.Parameter(torch.randn(num_actions, hidden))
        self.time = nn.Linear(2 * NUM_TIME_FREQUENCIES, hidden)
        self.seen = nn.Sequential(
            nn.Linear(num_features, _NUM_SEEN * hidden), nn.Unflatten(1, (_NUM_SEEN, hidden)), nn.LayerNorm(hidden)
        )
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(
                hidden, _NUM_HEADS, 2 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(num_layers)
        )
        self.end = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 1))

    def forward(self, x: Tensor, features: Tensor, t: Tensor, real: Tensor | None = None) -> Tensor:
        if real is not None:
            x = torch.where(real, x, 0.0)
        tokens = self.action(x[..., None]) + self.places + self.time(time_embedding(t))[:, None]  # [B, A, hidden]
        seen = self.seen(features)
        for layer in self.layers:
            tokens = layer(tokens, seen, tgt_key_padding_mask=None if real is None else ~real)
        end: Tensor = self.end(tokens).squeeze(-1)
        velocity = (end - x) / (1.0 - t)[:, None]
        return velocity if real is None else torch.where(real, velocity, 0.0)


def noisy_path(
    velocity: Callable[[Tensor, float], Tensor],
    x: Tensor,
    *,
    sigma: Tensor,
    noise: Tensor,
    real: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """A flow with noise on its way: where it was, from x_0 [B, A] to x_1, and the log-density [B] of the whole path.

    With x_t = (1 - t) x_0 + t x_1 and x_0 from N(0, I), a velocity tells the score of x_t, (t v - x) / (1 - t), and so

        dx = (v + sigma^2 / 2 * score) dt + sigma dW

    has at each time the distribution of dx = v dt, whatever sigma is, as long as it does not depend on x. The last
    Euler step begins at t = 1 - dt, so nothing is divided by 0. `sigma` is [B, A], and `noise` from N(0, I) [K, B, A].
    Axes that are not `real` [B, A] stay at 0 and have no density; their velocity is 0.
    """
    if real is not None:
        x, noise = torch.where(real, x, 0.0), torch.where(real, noise, 0.0)
    dt = 1.0 / len(noise)
    spread = sigma * math.sqrt(dt)
    path, log_density = [x], _log_normal(x, real)
    steps = spread.log() if real is None else torch.where(real, spread.log(), 0.0)
    for step, e in enumerate(noise):
        x = _without_noise(velocity, x, step, dt=dt, sigma=sigma) + spread * e
        path.append(x)
        log_density = log_density + _log_normal(e, real) - steps.sum(-1)  # of this x, given the one before it
    return path, log_density


def path_density(velocity: Callable[[Tensor, float], Tensor], path: Tensor, *, sigma: Tensor) -> Tensor:
    """The log-density [B] that `noisy_path` has for a path [K + 1, B, A] that somebody took, with these networks or
    with others."""
    dt = 1.0 / (len(path) - 1)
    spread = sigma * math.sqrt(dt)
    log_density = _log_normal(path[0])
    for step, (x, following) in enumerate(itertools.pairwise(path)):
        e = (following - _without_noise(velocity, x, step, dt=dt, sigma=sigma)) / spread
        log_density = log_density + _log_normal(e) - spread.log().sum(-1)
    return log_density


def _without_noise(
    velocity: Callable[[Tensor, float], Tensor], x: Tensor, step: int, *, dt: float, sigma: Tensor
) -> Tensor:
    """Where a step leads but for its noise."""
    t = step * dt
    v = velocity(x, t)
    drift = v + 0.5 * sigma.square() * (t * v - x) / (1.0 - t)
    return x + drift * dt


def _log_normal(x: Tensor, real: Tensor | None = None) -> Tensor:
    each = x.square() + math.log(2.0 * math.pi)
    return -0.5 * (each if real is None else torch.where(real, each, 0.0)).sum(-1)
