"""The flow of SAC-Flow with a value beside it, so that PPO can train it too.

Nobody can compute how likely an action was that a flow gave, but how likely the path to it was is a product of Gaussians.
So what was drawn is the whole path, and ratios are of paths (as in ReinFlow, Zhang et al., 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.actor_critic import value_mlp
from dovetail.policies.flows.flow_actor import FlowActor, FlowActorConfig
from dovetail.policies.flows.noisy_flow import path_density

__all__ = ["FlowActorCritic", "FlowActorCriticConfig"]

_ENTROPY = 0.5 + 0.5 * math.log(2.0 * math.pi)  # of N(0, 1)


class FlowActorCriticConfig(FlowActorConfig):
    value_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Layers of the value."""


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
            path, log_density, features = self._walk(observations, context)
            value = self.value(features)
        chunk = self._chunk(torch.tanh(path[-1])[:, None])
        drawn = torch.stack(path, dim=1).flatten(1)
        extras = {
            "drawn": drawn.cpu().numpy(),
            "log_prob": log_density.cpu().numpy(),
            "value": value.cpu().numpy(),
        }
        return ActionChunk(actions=chunk.actions, observed_ns=0, policy_version=self._version, extras=extras)

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
        path = drawn.view(len(drawn), -1, self._num_actions).transpose(0, 1)
        sigma = self.sigma(features)
        log_density = path_density(self._flow(features), path, sigma=sigma)
        # a start from N(0, I), then steps whose spread does not depend on where the path is: no need to draw any
        spread = sigma / math.sqrt(self.num_flow_steps)
        entropy = self.num_drawn * _ENTROPY + self.num_flow_steps * spread.log().sum(-1)
        return log_density, entropy, self.value(features)
