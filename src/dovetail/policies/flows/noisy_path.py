"""Noisy paths of a flow from noise to actions, and their log-density, which a path without noise does not have.

With x_t = (1 - t) noise + t actions and noise from N(0, I), the score of x_t is (t v - x) / (1 - t) for the velocity v. So

    dx = (v + sigma^2 / 2 * score) dt + sigma dW

has the same distribution at each time as dx = v dt, for every sigma that does not depend on x. A path takes K Euler steps
of dt = 1 / K; the last one begins at t = 1 - dt, which avoids a division by 0. Each step is a Gaussian, so the density of a
path is a product of Gaussians:

    path, log_density = noisy_path(velocity, sde_steps(sigma, dt=1 / K), x_0, noise)
    log_density = path_density(velocity, sde_steps(sigma, dt=1 / K), path)

Densities are summed over the last axis: [B] for actions [B, A], [B, H] for chunks [B, H, A].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = [
    "PathVelocity",
    "StepNoise",
    "flow_sde_sigma",
    "log_normal",
    "noisy_path",
    "one_noisy_step",
    "path_density",
    "sde_steps",
    "step_density",
    "velocity_plus_noise",
]

PathVelocity = Callable[[Tensor, Tensor], Tensor]
"""The velocity at the points x [B, ..., A] and the times t [B]."""

StepNoise = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Mean and standard deviation of the next point, from a point x, its velocity and its time [B, 1, ...]."""


def sde_steps(sigma: Callable[[Tensor], Tensor], *, dt: float) -> StepNoise:
    """Steps that keep the flow's distribution at each time. `sigma` is a function of the time, not of x."""

    def step(x: Tensor, v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        s = sigma(t)
        drift = v + 0.5 * s.square() * (t * v - x) / (1.0 - t)
        return x + drift * dt, s * math.sqrt(dt)

    return step


def flow_sde_sigma(level: float, *, dt: float) -> Callable[[Tensor], Tensor]:
    """The noise of Flow-SDE (Chen et al., 2025): level * sqrt((1 - t) / t). It is infinite at t = 0, so the first step has
    the noise of the second one."""

    def sigma(t: Tensor) -> Tensor:
        t = t.clamp(min=dt) if dt < 1.0 else torch.full_like(t, 0.5)  # a single step has no second one
        return level * ((1.0 - t) / t).sqrt()

    return sigma


def velocity_plus_noise(std: Callable[[Tensor, Tensor], Tensor], *, dt: float) -> StepNoise:
    """Steps of Flow-Noise (Zhang et al., 2025): the flow's own step plus noise, whose `std` is a function of x and t. The
    distribution changes with the noise."""

    def step(x: Tensor, v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x + v * dt, std(x, t)

    return step


def noisy_path(
    velocity: PathVelocity,
    steps: StepNoise,
    x: Tensor,
    noise: Tensor,
    axis_mask: Tensor | None = None,
    *,
    counted: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """The points of a noisy path from x_0 [B, ..., A] to x_1, and the log-density of the whole path, start included.

    `noise` is N(0, I) [K, B, ..., A]. Axes outside `axis_mask` [B, A] stay 0 and do not count in the density. Axes outside
    `counted` [A] have noise, but do not count either.
    """
    if axis_mask is not None:
        x, noise = torch.where(axis_mask, x, 0.0), torch.where(axis_mask, noise, 0.0)
    axis_mask = counted if axis_mask is None else axis_mask
    path, log_density = [x], log_normal(x, axis_mask)
    for number, e in enumerate(noise):
        mean, std = _step(velocity, steps, x, _times(x, number / len(noise)))
        x = mean + std * e
        path.append(x)
        log_density = log_density + log_normal(e, axis_mask) - _sum_of_logs(std, x, axis_mask)
    return path, log_density


def path_density(
    velocity: PathVelocity, steps: StepNoise, path: Sequence[Tensor], *, counted: Tensor | None = None
) -> Tensor:
    """The log-density of given points x_0, ..., x_1, as `noisy_path` computes it."""
    log_density = log_normal(path[0], counted)
    for number, (x, following) in enumerate(itertools.pairwise(path)):
        t = _times(x, number / (len(path) - 1))
        log_density = log_density + step_density(velocity, steps, x, following, t, counted=counted)
    return log_density


def one_noisy_step(
    velocity: PathVelocity, steps: StepNoise, x: Tensor, noise: Tensor, *, chosen: Tensor, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A path that has noise [B, ..., A] in one step only, whose number `chosen` [B] is from 0 to K - 1.

    Returns the point before this step, the point after it and the end of the path. The density of the path is that of the
    step (`step_density`): one evaluation of the velocity instead of K.
    """
    before, after = x, x
    for number in range(num_steps):
        t = _times(x, number / num_steps)
        v = velocity(x, t).to(x.dtype)
        mean, std = steps(x, v, _beside(t, x))
        is_chosen = _beside(chosen == number, x)
        following = torch.where(is_chosen, mean + std * noise, x + v / num_steps)
        before, after = torch.where(is_chosen, x, before), torch.where(is_chosen, following, after)
        x = following
    return before, after, x


def step_density(
    velocity: PathVelocity,
    steps: StepNoise,
    x: Tensor,
    following: Tensor,
    t: Tensor,
    *,
    counted: Tensor | None = None,
) -> Tensor:
    """The log-density of a step from x at the times t [B] to the point `following`."""
    mean, std = _step(velocity, steps, x, t)
    return log_normal((following - mean) / std, counted) - _sum_of_logs(std, x, counted)


def log_normal(x: Tensor, axis_mask: Tensor | None = None) -> Tensor:
    """The log-density of N(0, I), summed over the last axis."""
    each = x.square() + math.log(2.0 * math.pi)
    return -0.5 * (each if axis_mask is None else torch.where(axis_mask, each, 0.0)).sum(-1)


def _step(velocity: PathVelocity, steps: StepNoise, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return steps(x, velocity(x, t).to(x.dtype), _beside(t, x))


def _sum_of_logs(std: Tensor, x: Tensor, axis_mask: Tensor | None = None) -> Tensor:
    logs = std.log().expand_as(x)
    return (logs if axis_mask is None else torch.where(axis_mask, logs, 0.0)).sum(-1)


def _times(x: Tensor, t: float) -> Tensor:
    return x.new_full((len(x),), t)


def _beside(t: Tensor, x: Tensor) -> Tensor:
    """[B] as [B, 1, ...], to multiply x with."""
    return t.view(-1, *(1,) * (x.ndim - 1))
