"""A flow whose initial noise is chosen by a small actor. DSRL trains this actor; the cloned flow stays fixed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.networks import mlp
from dovetail.policies.random_draws import seeded_generator
from dovetail.policies.settings import SteeredFlowConfig
from dovetail.policies.tanh_gaussian import mean_and_log_std, sample_tanh_gaussian, unclamped_log_std

__all__ = ["SteeredFlow", "SteeredFlowConfig", "SteeringActor"]


class SteeringActor(nn.Module):
    """Mean and log standard deviation of the noise before tanh, [B, F] -> [B, N] each.

    Both start at 0 for all observations. After tanh and a limit of 1.5 that is about as wide as the noise that the flow
    was trained on. The policy ignores this actor until the algorithm sets `engaged`.
    """

    engaged: Tensor

    def __init__(self, *, num_features: int, num_noise: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((num_features, *hidden, 2 * num_noise))
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        nn.init.constant_(last.bias[num_noise:], unclamped_log_std(1.0))
        self.register_buffer("engaged", torch.zeros(1))  # a buffer, so that it is part of the weights

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return mean_and_log_std(self.net(features))


class SteeredFlow(Flow):
    """See the Policy and TrainablePolicy contracts. `imitation` trains the flow, then `dsrl` trains the steering actor.
    Neither changes the other's components, so unchanged weights are stored and sent once."""

    Config: ClassVar[type[FlowConfig]] = SteeredFlowConfig
    name: ClassVar[str] = "steered"

    def __init__(self, config: SteeredFlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._max_noise = config.max_noise
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.steering = SteeringActor(
                num_features=self.num_features,
                num_noise=math.prod(self._chunk_shape),
                hidden=config.steering_hidden,
            )

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {**super().components, "steering": self.steering}

    def sample_noise(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Noise [B, H, A] with gradients, and the log-density [B] of noise / max_noise."""
        chosen, log_prob = sample_tanh_gaussian(*self.steering(features), generator=generator)
        return self._max_noise * chosen.view(-1, *self._chunk_shape), log_prob

    def chunks_from_noise(self, features: Tensor, noise: Tensor) -> Tensor:
        """The flow's normalized chunks [B, H, A] for this noise, without gradients."""
        with torch.no_grad():
            return self._integrate(features, noise, None).clamp(-1.0, 1.0)

    def _noise(self, features: Tensor, context: ActContext) -> Tensor:
        if not self.steering.engaged:
            return super()._noise(features, context)
        if context.deterministic:
            mean, _ = self.steering(features)
            return self._max_noise * torch.tanh(mean).view(-1, *self._chunk_shape)
        return self.sample_noise(features, generator=seeded_generator(context.seed))[0]
