"""RLPD: soft actor-critic that draws part of every batch from prior data (Ball et al., 2023).

Prior data are demonstrations and human interventions; an intervened step is in both halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import SampleRequest, Window
from dovetail.learn.algorithms._soft import SoftActorCritic, SoftConfig
from dovetail.learn.batches import side
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["RLPD", "RLPDConfig"]


class RLPDConfig(SoftConfig):
    num_steps: int = Field(default=1, ge=1)
    """Rewards added up before the critic's own estimate takes over: more carry a sparse reward back faster."""
    bc_weight: float = Field(default=0.0, ge=0.0)
    """Weight of cloning what people did in the actor's loss."""
    climb_from: int = Field(default=0, ge=0)
    """The update from which on the actor climbs its critic. Before, it only clones what people do, corrections included: a
    critic that has seen little but successes would lead it astray."""


class RLPD(SoftActorCritic):
    """See the Algorithm contract. One `update` is one critic step, and at times one of the actor."""

    Config: ClassVar[type[RLPDConfig]] = RLPDConfig
    name: ClassVar[str] = "rlpd"

    def __init__(self, config: RLPDConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if policy.spec.horizon > 1:  # said before anything moves
            raise UsageError(
                f"algorithm '{self.name}' trains policies of single actions, but '{policy.spec.name}' gives chunks of "
                f"{policy.spec.horizon}: use algorithm 'imitation', or policy 'gaussian_mlp'"
            )
        self._config = config
        super().__init__(
            config,
            policy=policy,
            actor=policy.components,
            num_actions=policy.spec.action.shape[0],
            target_entropy=self._usual_entropy(policy),
            seed=seed,
        )

    @staticmethod
    def _usual_entropy(policy: TrainablePolicy) -> float:
        return -float(policy.spec.action.shape[0])

    @property
    def wants(self) -> SampleRequest:
        return self._request(
            Window(
                gamma=self._config.gamma,
                num_steps=self._config.num_steps,
                history=self._policy.spec.history,
            )
        )

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        features = self._policy.features(side(batch, "observation"))
        next_features = self._policy.features(side(batch, "next"))
        actions = self._policy.normalize_actions(batch["action"])
        metrics = self._update_critic(features, actions, batch["reward"], batch["discount"], next_features)
        if self._actor_is_due():
            metrics |= self._update_actor(features, actions, human=batch["human"])
        return metrics

    def _update_critic(
        self, features: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_features: Tensor
    ) -> dict[str, float]:
        with torch.no_grad():
            next_actions, next_log_prob = self._policy.sample(next_features, generator=self._generator)
        targets = self._targets(rewards, discounts, next_features, next_actions, next_log_prob)
        return self._fit_critic(features, actions, targets)

    def _update_actor(self, features: Tensor, actions: Tensor, *, human: Tensor) -> dict[str, float]:
        if self._num_updates < self._config.climb_from:
            cloning = self._cloning(features, actions, human)
            return {} if cloning is None else self._follow(cloning)
        new_actions, log_prob = self._policy.sample(features, generator=self._generator)
        value = self._value(self._critic(torch.cat((features, new_actions), 1)))
        return self._climb(value, log_prob, extra_loss=self._cloning(features, actions, human))

    def _cloning(self, features: Tensor, actions: Tensor, human: Tensor) -> Tensor | None:
        if not self._config.bc_weight or not human.any():
            return None
        return self._config.bc_weight * self._policy.imitation_loss(
            features[human], actions[human], generator=self._generator
        )
