"""A Gaussian squashed by tanh, as soft actor-critics use it."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional

from dovetail.policies.random_draws import normal

__all__ = [
    "LOG_STD_MAX",
    "LOG_STD_MIN",
    "log_tanh_derivative",
    "mean_and_log_std",
    "sample_tanh_gaussian",
    "soft_clamp",
    "unclamped_log_std",
]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 1.0


def soft_clamp(values: Tensor, low: float, high: float) -> Tensor:
    """Map values to (low, high) by tanh, and 0 to the middle. A hard clamp has no gradient outside its limits."""
    return low + 0.5 * (high - low) * (torch.tanh(values) + 1.0)


def mean_and_log_std(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split a network's outputs [..., 2 A] into mean and log standard deviation, [..., A] each."""
    mean, log_std = outputs.chunk(2, dim=-1)
    return mean, soft_clamp(log_std, LOG_STD_MIN, LOG_STD_MAX)


def unclamped_log_std(std: float) -> float:
    """The network's output for which `mean_and_log_std` returns this standard deviation."""
    middle = 0.5 * (LOG_STD_MIN + LOG_STD_MAX)
    return math.atanh((math.log(std) - middle) / (LOG_STD_MAX - middle))


def log_tanh_derivative(raw: Tensor) -> Tensor:
    """log |d tanh / d raw|, in its numerically stable form."""
    return 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))


def sample_tanh_gaussian(
    mean: Tensor, log_std: Tensor, *, generator: Generator | None, axis_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A sample [..., A] with gradients and its log-density [...]: log N(raw) - log |d tanh / d raw|. Axes outside
    `axis_mask` are 0 and do not count in the density."""
    noise = normal(mean.shape, generator=generator, device=mean.device)
    raw = mean + log_std.exp() * noise
    log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_prob = log_prob - log_tanh_derivative(raw)
    if axis_mask is not None:
        raw, log_prob = torch.where(axis_mask, raw, 0.0), torch.where(axis_mask, log_prob, 0.0)
    return torch.tanh(raw), log_prob.sum(-1)
