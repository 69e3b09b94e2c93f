"""A Gaussian over single actions whose spread is the same everywhere, and a value: what PPO trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.random_draws import normal
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.components import NetworkPolicyConfig
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["ActorCritic", "ActorCriticConfig", "ValuedPolicy", "value_mlp"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@runtime_checkable
class ValuedPolicy(TrainablePolicy, Protocol):
    """A trainable policy that also says what an observation is worth and how likely an action was.

    Besides actions, its `act` gives the extras `drawn` [B, D] (what was drawn, before the robot's limits), its `log_prob`
    [B] and the `value` [B]. Ratios are of what was drawn: a limit is the robot's, not the distribution's.
    """

    @property
    def num_drawn(self) -> int:
        """D: as many as an action has, or more, where an action is made of other draws."""

    def value(self, features: Tensor) -> Tensor:
        """What the rest of the episode is expected to give, [B]."""

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-density and entropy of the distribution that `drawn` [B, D] came from, and the value: [B] each."""


class ActorCriticConfig(NetworkPolicyConfig):
    inputs: tuple[str, ...] = ()
    """Observation keys to look at; none: every low-dimensional one the robot gives."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Layers of the actor."""
    value_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Layers of the value."""
    std: float = Field(default=0.5, gt=0.0, le=2.0)
    """The spread of the first actions, where 1 is half of the robot's range; it is learned from there."""


class ActorCritic(NetworkPolicy):
    """See the Policy, TrainablePolicy and ValuedPolicy contracts."""

    Config: ClassVar[type[ActorCriticConfig]] = ActorCriticConfig

    def __init__(self, config: ActorCriticConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(policy_spec("actor_critic", robot, inputs=config.inputs, history={}), config.components)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._actor = _Gaussian((self.num_features, *config.hidden, robot.action.shape[0]), std=config.std)
            self._critic = value_mlp((self.num_features, *config.value_hidden, 1))

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            # copies: views are read-only
            features = self.features(
                {key: torch.tensor(value, device=self._device) for key, value in observations.items()}
            )
            if context.deterministic:
                drawn = self._actor(features)
                log_prob, _, value = self.evaluate_actions(features, drawn)
            else:
                generator = None if context.seed is None else torch.Generator().manual_seed(context.seed)
                drawn, log_prob = self.sample(features, generator=generator)
                value = self.value(features)
        chunk = self._chunk(drawn.clamp(-1.0, 1.0)[:, None])
        extras = {
            name: v.cpu().numpy() for name, v in (("drawn", drawn), ("log_prob", log_prob), ("value", value))
        }
        return ActionChunk(
            actions=chunk.actions, observed_ns=0, policy_version=chunk.policy_version, extras=extras
        )

    # ---- TrainablePolicy and ValuedPolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self._actor, "critic": self._critic}

    @property
    def num_drawn(self) -> int:
        return self._spec.action.shape[0]

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        mean = self._actor(features)
        drawn = mean + self._actor.log_std.exp() * normal(mean.shape, generator=generator, device=mean.device)
        return drawn, self._log_prob(mean, drawn)

    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self._critic(features)
        return value.squeeze(-1)

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob = self._log_prob(self._actor(features), drawn)
        entropy = (self._actor.log_std + 0.5 + _HALF_LOG_2PI).sum()  # the same wherever the mean is
        return log_prob, entropy.expand_as(log_prob), self.value(features)

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        mean: Tensor = self._actor(features)
        return masked_mse(mean, actions.view_as(mean), None if mask is None else mask.view(-1))

    def _log_prob(self, mean: Tensor, drawn: Tensor) -> Tensor:
        log_std = self._actor.log_std
        surprise = (drawn - mean) * torch.exp(-log_std)
        return (-0.5 * surprise.square() - log_std - _HALF_LOG_2PI).sum(-1)


class _Gaussian(nn.Module):
    """Features [B, F] -> mean [B, A]; one log_std [A] for all."""

    def __init__(self, sizes: tuple[int, ...], *, std: float) -> None:
        super().__init__()
        # a mean near 0 everywhere: what the first actions are is left to chance alone
        self.mean = _mlp(sizes, last_gain=0.01)
        self.log_std = nn.Parameter(torch.full((sizes[-1],), math.log(std)))

    def forward(self, features: Tensor) -> Tensor:
        mean: Tensor = self.mean(features)
        return mean


def value_mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Features [B, F] -> values [B, 1], near 0: rewards are small, and first guesses should not drown them."""
    return _mlp(sizes, last_gain=0.1)


def _mlp(sizes: tuple[int, ...], *, last_gain: float) -> nn.Sequential:
    """Orthogonal weights and no biases to start from: on-policy learning is sensitive to where it begins."""
    network = mlp(sizes)
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, math.sqrt(2.0) if layer is not layers[-1] else last_gain)
        nn.init.zeros_(layer.bias)
    return network
