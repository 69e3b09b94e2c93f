"""A Gaussian squashed by tanh: what soft actor-critics choose with."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from dovetail.policies.random_draws import normal

__all__ = ["LOG_STD_MAX", "LOG_STD_MIN", "mean_and_log_std", "log_tanh_derivative", "sample_tanh_gaussian", "soft_clamp"]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 1.0


def soft_clamp(values: Tensor, low: float, high: float) -> Tensor:
    """Into (low, high), 0 to the middle: a hard clamp has no gradient to come back by."""
    return low + 0.5 * (high - low) * (torch.tanh(values) + 1.0)


def mean_and_log_std(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log of the standard deviation, [..., A] each, from a network's outputs [..., 2 A]."""
    mean, log_std = outputs.chunk(2, dim=-1)
    return mean, soft_clamp(log_std, LOG_STD_MIN, LOG_STD_MAX)


def log_tanh_derivative(raw: Tensor) -> Tensor:
    """log |d tanh / d raw|, in its stable form."""
    return 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))


def sample_tanh_gaussian(
    mean: Tensor, log_std: Tensor, *, generator: torch.Generator | None, real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A draw [..., A] with gradients, and its log-density [...]: log N(raw) - log |d tanh / d raw|. Axes that are not
    `real` are 0, and their log-density is."""
    noise = normal(mean.shape, generator=generator, device=mean.device)
    raw = mean + log_std.exp() * noise
    log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_prob = log_prob - log_tanh_derivative(raw)
    if real is not None:
        raw, log_prob = torch.where(real, raw, 0.0), torch.where(real, log_prob, 0.0)
    return torch.tanh(raw), log_prob.sum(-1)
