"""Networks of a user, for `policy.components.NAME.model_class`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearDenoiser(nn.Module):
    """Predicts the clean chunk of a flow from its features alone."""

    def __init__(self, horizon: int, num_actions: int, num_features: int, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.out = nn.Linear(num_features, horizon * num_actions)

    def forward(self, chunk: Tensor, features: Tensor, t: Tensor) -> Tensor:
        found: Tensor = self.gain * self.out(features).view_as(chunk)
        return found


class LinearMean(nn.Module):
    def __init__(self, num_features: int, num_actions: int) -> None:
        super().__init__()
        self.out = nn.Linear(num_features, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.out(features)
        return found


class TwoLosses(nn.Module):
    """A model with two losses: 3 and 5 times a parameter that starts at 1."""

    def __init__(self, action_dim: int, is_named: bool = True) -> None:
        super().__init__()
        self.action_dim, self.is_named = action_dim, is_named
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, observations) -> Tensor:
        return self.scale * torch.zeros(len(observations), self.action_dim)

    def imitation_loss(self, observations, actions, mask):
        losses = {"actions": 3.0 * self.scale, "contact": 5.0 * self.scale}
        return losses if self.is_named else losses["actions"]
