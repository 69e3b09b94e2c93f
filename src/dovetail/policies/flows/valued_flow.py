"""A flow over action chunks with a log-density and a value function, so that PPO can improve a cloned flow (pi_RL, Chen et
al., 2025).

While it explores, the path from noise to a chunk is noisy, and PPO's ratios are of paths (`path_sampling`). A deterministic
chunk has no noise: evaluation sees the plain flow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.actor_critic import value_mlp
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.noisy_path import PathVelocity
from dovetail.policies.flows.path_sampling import NoisyPaths, PathNoise, PathSample
from dovetail.policies.random_draws import seeded_generator
from dovetail.policies.settings import ValuedFlowConfig

__all__ = ["ValuedFlow", "ValuedFlowConfig"]


class ValuedFlow(Flow):
    """See the Policy, TrainablePolicy and ValuedPolicy contracts. `drawn` is a path: see PathSample."""

    Config: ClassVar[type[FlowConfig]] = ValuedFlowConfig
    name: ClassVar[str] = "valued_flow"

    def __init__(self, config: ValuedFlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._value_trains_encoder = config.value_trains_encoder
        self._noise_std: PathNoise | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critic = value_mlp((self.num_features, *config.value_hidden, 1))
            if config.path_noise.type == "learned":
                self._noise_std = PathNoise(
                    chunk=self._chunk_shape,
                    num_features=self.num_features,
                    hidden=config.hidden,
                    std_range=config.path_noise.std_range,
                )
        self._paths = NoisyPaths(
            config.path_noise,
            chunk_shape=self._chunk_shape,
            num_steps=config.num_flow_steps,
            std=self._noise_std,
        )

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        if context.deterministic or context.prefix is not None:
            return super().act(observations, context)
        with torch.no_grad():
            inputs = self._tensors(observations)
            features = self.features(inputs)
            sample = self._draw(features, context)
            value = self.value(features)
        normalized = sample.chunk.clamp(-1.0, 1.0)
        return self._chunk(normalized, inputs, drawn=sample.drawn, log_prob=sample.log_prob, value=value)

    def _draw(self, features: Tensor, context: ActContext) -> PathSample:
        generator = seeded_generator(context.seed)
        return self._paths.draw(
            self._path_velocity(features),
            features,
            randn=lambda shape: self._randn(features, shape, generator),
            generator=generator,
        )

    # ---- ValuedPolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        noise = {} if self._noise_std is None else {"path_noise": self._noise_std}
        return {**super().components, **noise, "critic": self._critic}

    @property
    def num_drawn(self) -> int:
        return self._paths.num_drawn

    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self._critic(features if self._value_trains_encoder else features.detach())
        return value.squeeze(-1)

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob = self._paths.density(self._path_velocity(features), features, drawn)
        return log_prob, self._paths.entropy(features, drawn), self.value(features)

    def _path_velocity(self, features: Tensor) -> PathVelocity:
        return lambda x, t: self._velocity(x, features, t)
