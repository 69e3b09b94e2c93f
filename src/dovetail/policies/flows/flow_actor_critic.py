"""The flow actor of SAC-Flow with a value function, so that PPO can train it.

The density of a flow's action cannot be computed, but the density of the path to it is a product of Gaussians. So the
sample is the whole path, and PPO's ratios are of paths (as in ReinFlow, Zhang et al., 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.actor_critic import value_mlp
from dovetail.policies.flows.flow_actor import FlowActor
from dovetail.policies.flows.noisy_path import path_density
from dovetail.policies.settings import FlowActorCriticConfig

__all__ = ["FlowActorCritic", "FlowActorCriticConfig"]

_NORMAL_ENTROPY = 0.5 + 0.5 * math.log(2.0 * math.pi)  # of N(0, 1)


class FlowActorCritic(FlowActor):
    """See the Policy, TrainablePolicy and ValuedPolicy contracts. `drawn` is a path, [B, (K + 1) A]."""

    Config: ClassVar[type[FlowActorCriticConfig]] = FlowActorCriticConfig
    name: ClassVar[str] = "flow_actor_critic"

    def __init__(self, config: FlowActorCriticConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critic = value_mlp((self.num_features, *config.value_hidden, 1))

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            path, log_density, features = self._sample_path(observations, context)
            value = self.value(features)
        drawn = torch.stack(path, dim=1).flatten(1)
        return self._chunk(torch.tanh(path[-1])[:, None], drawn=drawn, log_prob=log_density, value=value)

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {**super().components, "critic": self._critic}

    @property
    def num_drawn(self) -> int:
        return (1 + self.num_flow_steps) * self._num_actions

    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self._critic(features)
        return value.squeeze(-1)

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        path = drawn.view(len(drawn), -1, self._num_actions).unbind(1)
        log_density = path_density(self._flow(features), self._steps(features), path)
        # exact: the start is from N(0, I), and the noise of a step does not depend on x
        step_std = self.sigma(features) / math.sqrt(self.num_flow_steps)
        entropy = self.num_drawn * _NORMAL_ENTROPY + self.num_flow_steps * step_std.log().sum(-1)
        return log_density, entropy, self.value(features)
