"""A flow whose initial noise is chosen by a small actor. DSRL trains this actor; the cloned flow stays fixed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.random_draws import seeded_generator
from dovetail.policies.settings import SteeredFlowConfig
from dovetail.policies.steering import SteeringActor

__all__ = ["SteeredFlow", "SteeredFlowConfig"]


class SteeredFlow(Flow):
    """See the Policy and TrainablePolicy contracts. `imitation` trains the flow, then `dsrl` trains the steering actor.
    Neither changes the other's components, so unchanged weights are stored and sent once."""

    Config: ClassVar[type[FlowConfig]] = SteeredFlowConfig
    name: ClassVar[str] = "steered"

    def __init__(self, config: SteeredFlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.steering = SteeringActor(
                num_features=self.num_features,
                num_noise=math.prod(self._chunk_shape),
                hidden=config.steering_hidden,
                max_noise=config.max_noise,
            )

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {**super().components, "steering": self.steering}

    # ---- Steerable

    @property
    def num_noise(self) -> int:
        return math.prod(self._chunk_shape)

    def steering_inputs(self, observations: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        features = self.features(observations)
        return features, features

    def chunks_from_noise(self, inputs: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            return self._integrate(inputs, noise.view(-1, *self._chunk_shape), None).clamp(-1.0, 1.0)

    def _noise(self, features: Tensor, context: ActContext) -> Tensor:
        if not self.steering.engaged:
            return super()._noise(features, context)
        if context.deterministic:
            noise = self.steering.most_likely(features)
        else:
            noise, _ = self.steering.sample(features, generator=seeded_generator(context.seed))
        return noise.view(-1, *self._chunk_shape)
