"""A small actor that chooses the initial noise of a frozen flow: see algorithm `dsrl`."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from dovetail.policies.networks import mlp
from dovetail.policies.tanh_gaussian import mean_and_log_std, sample_tanh_gaussian, unclamped_log_std

__all__ = ["SteeringActor"]


class SteeringActor(nn.Module):
    """Mean and log standard deviation of the noise before tanh, [B, F] -> [B, N] each.

    Both start at 0 for all observations. After tanh and a limit of 1.5 that is about as wide as the noise that the flow
    was trained on. The policy ignores this actor until the algorithm sets `engaged`.
    """

    engaged: Tensor

    def __init__(self, *, num_features: int, num_noise: int, hidden: tuple[int, ...], max_noise: float) -> None:
        super().__init__()
        self.max_noise = max_noise
        self.net = mlp((num_features, *hidden, 2 * num_noise))
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        nn.init.constant_(last.bias[num_noise:], unclamped_log_std(1.0))
        self.register_buffer("engaged", torch.zeros(1))  # a buffer, so that it is part of the weights

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return mean_and_log_std(self.net(features))

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Noise [B, N] with gradients, and the log-density [B] of noise / max_noise."""
        chosen, log_prob = sample_tanh_gaussian(*self(features), generator=generator)
        return self.max_noise * chosen, log_prob

    def most_likely(self, features: Tensor) -> Tensor:
        """The noise [B, N] of the mean before tanh."""
        mean, _ = self(features)
        return self.max_noise * torch.tanh(mean)
