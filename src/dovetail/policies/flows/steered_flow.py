"""A flow whose noise is chosen by a small actor of its own: what DSRL trains, while the flow stays as it was cloned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.networks import mlp
from dovetail.policies.tanh_gaussian import LOG_STD_MAX, LOG_STD_MIN, mean_and_log_std, sample_tanh_gaussian

__all__ = ["SteeredFlow", "SteeredFlowConfig", "SteeringActor"]


class SteeredFlowConfig(FlowConfig):
    steering_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    max_noise: float = Field(default=1.5, gt=0.0)
    """How far from 0 the noise may be chosen. The flow was trained on N(0, 1), and knows little beyond 2."""


class SteeringActor(nn.Module):
    """Mean and log of the standard deviation of the noise before tanh, [B, F] -> [B, N] each.

    At first they are 0 wherever the robot is, which tanh and 1.5 make about as wide as the noise that the flow was
    trained on. Until a learner has engaged it, it has no say at all.
    """

    engaged: Tensor

    def __init__(self, *, num_features: int, num_noise: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((num_features, *hidden, 2 * num_noise))
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        middle = 0.5 * (LOG_STD_MIN + LOG_STD_MAX)
        nn.init.constant_(last.bias[num_noise:], math.atanh(-middle / (LOG_STD_MAX - middle)))
        self.register_buffer("engaged", torch.zeros(1))  # travels with the weights

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return mean_and_log_std(self.net(features))


class SteeredFlow(Flow):
    """See the Policy and TrainablePolicy contracts. `imitation` trains the flow, and `dsrl` after it the steering:
    each leaves the other's components as they are, so their weights are stored and sent once."""

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

    def sample_noise(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Noise [B, H, A] with gradients, and its log-density [B], in units of the most that may be chosen."""
        chosen, log_prob = sample_tanh_gaussian(*self.steering(features), generator=generator)
        return self._max_noise * chosen.view(-1, *self._chunk_shape), log_prob

    def chunks_from_noise(self, features: Tensor, noise: Tensor) -> Tensor:
        """What the flow makes of noise, normalised [B, H, A]. Nothing learns through it."""
        with torch.no_grad():
            return self._integrate(features, noise, None).clamp(-1.0, 1.0)

    def _noise(self, features: Tensor, context: ActContext) -> Tensor:
        if not self.steering.engaged:
            return super()._noise(features, context)
        if context.deterministic:
            mean, _ = self.steering(features)
            return self._max_noise * torch.tanh(mean).view(-1, *self._chunk_shape)
        generator = None if context.seed is None else torch.Generator().manual_seed(context.seed)
        return self.sample_noise(features, generator=generator)[0]
