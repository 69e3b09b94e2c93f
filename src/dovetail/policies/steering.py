"""A small actor that chooses the initial noise of a frozen flow: see algorithm `dsrl`."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from dovetail.policies.networks import mlp
from dovetail.policies.tanh_gaussian import mean_and_log_std, sample_tanh_gaussian, unclamped_log_std

__all__ = ["SteeringActor"]

_MIN_STD, _MAX_FEATURE = 0.01, 5.0


class SteeringActor(nn.Module):
    """Mean and log standard deviation of the noise before tanh, [B, F] -> [B, N] each.

    Both start at 0 for all observations. After tanh and a limit of 1.5 that is about as wide as the noise that the flow
    was trained on. The policy ignores this actor until the algorithm sets `engaged`.
    """

    engaged: Tensor
    center: Tensor
    scale: Tensor  # 0 before `fit`

    def __init__(
        self,
        *,
        num_features: int,
        num_noise: int,
        hidden: tuple[int, ...],
        max_noise: float,
        standardizes: bool = False,
    ) -> None:
        """`standardizes`: for features with large constant parts, such as a mean of embeddings. See `fit`."""
        super().__init__()
        self.standardizes = standardizes
        if standardizes:
            self.register_buffer("center", torch.zeros(num_features))
            self.register_buffer("scale", torch.zeros(num_features))
        self.max_noise = max_noise
        self.net = mlp((num_features, *hidden, 2 * num_noise))
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        nn.init.constant_(last.bias[num_noise:], unclamped_log_std(1.0))
        self.register_buffer("engaged", torch.zeros(1))  # a buffer, so that it is part of the weights

    @property
    def needs_fit(self) -> bool:
        return self.standardizes and not bool(self.scale.any())

    def fit(self, center: Tensor, std: Tensor) -> None:
        """Remember the mean and the standard deviation of the features, [F] each."""
        self.center.copy_(center)
        self.scale.copy_(std.clamp(min=_MIN_STD))

    def standardize(self, features: Tensor) -> Tensor:
        """What the other methods and the critics take: features [B, F] with mean 0 and standard deviation 1."""
        if not self.standardizes or self.needs_fit:
            return features
        return ((features - self.center) / self.scale).clamp(-_MAX_FEATURE, _MAX_FEATURE)

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
