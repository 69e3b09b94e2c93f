"""A Gaussian policy with one standard deviation for all states, and a value function. Trained by PPO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.random_draws import normal, seeded_generator
from dovetail.policies.settings import ActorCriticConfig

__all__ = ["ActorCritic", "ActorCriticConfig", "value_mlp"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class ActorCritic(NetworkPolicy):
    """See the Policy, TrainablePolicy and ValuedPolicy contracts."""

    Config: ClassVar[type[ActorCriticConfig]] = ActorCriticConfig
    replaceable: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})
    activated: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})

    def __init__(self, config: ActorCriticConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(policy_spec("actor_critic", robot, inputs=config.inputs, history={}), config.components)
        num_features, num_actions = self.num_features, robot.action.shape[0]
        actor_sizes = (num_features, *config.hidden, num_actions)
        critic_sizes = (num_features, *config.value_hidden, 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # a small gain, so that the first means are near 0
            mean = self._network(
                "actor",
                lambda: _orthogonal_mlp(actor_sizes, last_gain=0.01, activation=self._activation("actor")),
                num_features=num_features,
                num_actions=num_actions,
            )
            self._actor = _Gaussian(mean, num_actions=num_actions, std=config.initial_std)
            self._critic = self._network(
                "critic",
                lambda: value_mlp(critic_sizes, activation=self._activation("critic")),
                num_features=num_features,
            )

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            features = self.features(self._tensors(observations))
            if context.deterministic:
                drawn = self._actor(features)
                log_prob, _, value = self.evaluate_actions(features, drawn)
            else:
                drawn, log_prob = self.sample(features, generator=seeded_generator(context.seed))
                value = self.value(features)
        return self._chunk(drawn.clamp(-1.0, 1.0)[:, None], drawn=drawn, log_prob=log_prob, value=value)

    # ---- TrainablePolicy and ValuedPolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self._actor, "critic": self._critic}

    @property
    def num_drawn(self) -> int:
        return self._spec.action.shape[0]

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        mean = self._actor(features)
        drawn = mean + self._actor.log_std.exp() * normal(mean.shape, generator=generator, device=mean.device)
        return drawn, self._log_prob(mean, drawn)

    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self._critic(features)
        return value.squeeze(-1)

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob = self._log_prob(self._actor(features), drawn)
        entropy = (self._actor.log_std + 0.5 + _HALF_LOG_2PI).sum()  # does not depend on the mean
        return log_prob, entropy.expand_as(log_prob), self.value(features)

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        mean: Tensor = self._actor(features)
        return masked_mse(mean, actions.view_as(mean), None if mask is None else mask.view(-1))

    def _log_prob(self, mean: Tensor, drawn: Tensor) -> Tensor:
        log_std = self._actor.log_std
        standardized = (drawn - mean) * torch.exp(-log_std)
        return (-0.5 * standardized.square() - log_std - _HALF_LOG_2PI).sum(-1)


class _Gaussian(nn.Module):
    """Features [B, F] -> mean [B, A]; one log_std [A] for all rows."""

    def __init__(self, mean: nn.Module, *, num_actions: int, std: float) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((num_actions,), math.log(std)))

    def forward(self, features: Tensor) -> Tensor:
        mean: Tensor = self.mean(features)
        return mean


def value_mlp(sizes: tuple[int, ...], *, activation: str = "tanh") -> nn.Sequential:
    """Features [B, F] -> values [B, 1]. They start near 0, because rewards are small."""
    return _orthogonal_mlp(sizes, last_gain=0.1, activation=activation)


def _orthogonal_mlp(sizes: tuple[int, ...], *, last_gain: float, activation: str = "tanh") -> nn.Sequential:
    """Orthogonal initial weights and zero biases: PPO is sensitive to its initialization."""
    network = mlp(sizes, activation=activation)
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, math.sqrt(2.0) if layer is not layers[-1] else last_gain)
        nn.init.zeros_(layer.bias)
    return network
