"""A tanh-squashed Gaussian over single actions, from low-dimensional observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies._base import NetworkPolicy, policy_spec
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.parts import PartsConfig
from dovetail.policies.squashed import gaussian, sample_squashed

__all__ = ["GaussianMLP", "GaussianMLPConfig"]


class GaussianMLPConfig(PartsConfig):
    inputs: tuple[str, ...] = ()
    """Observation keys to look at; none: every low-dimensional one the robot gives."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    history: dict[str, int] = Field(default_factory=dict)
    """Control ticks of history per key; a key not named is seen once."""


class GaussianMLP(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts."""

    Config: ClassVar[type[GaussianMLPConfig]] = GaussianMLPConfig

    def __init__(self, config: GaussianMLPConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        spec = policy_spec("gaussian_mlp", robot, inputs=config.inputs, history=config.history)
        super().__init__(spec, config.components)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._actor = mlp((self.num_features, *config.hidden, 2 * robot.action.shape[0]))

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            # copies: views are read-only
            inputs = {key: torch.tensor(value, device=self._device) for key, value in observations.items()}
            features = self.features(inputs)
            mean, log_std = self._distribution(features)
            if not context.deterministic:
                generator = None
                if context.seed is not None:
                    generator = torch.Generator().manual_seed(context.seed)
                mean = mean + log_std.exp() * self._randn(features, tuple(mean.shape), generator)
        return self._chunk(torch.tanh(mean)[:, None])

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self._actor}

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        return sample_squashed(*self._distribution(features), generator=generator, real=self._real(features))

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        mean, _ = self._distribution(features)
        there = None if mask is None else mask.view(-1)
        return masked_mse(torch.tanh(mean), actions.view_as(mean), there, self._real(features))

    def _distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return gaussian(self._actor(features))
