"""RLPD: soft actor-critic that draws part of every batch from prior data (Ball et al., 2023).

Prior data are demonstrations and human interventions; an intervened step is in both halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dovetail.core.types import View
from dovetail.learn.algorithms._soft import prior_and_online
from dovetail.learn.algorithms.sac import SAC, SeeingConfig, num_real
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["RLPD", "RLPDConfig"]


class RLPDConfig(SeeingConfig):
    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    bc_weight: float = Field(default=0.0, ge=0.0)
    """Weight of cloning what people did in the actor's loss."""
    climb_from: int = Field(default=0, ge=0)
    """The update from which on the actor climbs its critic. Before, it only clones what people do, corrections included: a
    critic that has seen little but successes would lead it astray."""

    @model_validator(mode="after")
    def _something_to_clone_with(self) -> Self:
        if self.climb_from and not self.bc_weight:
            raise ValueError("climb_from is how long the actor only clones: set bc_weight too")
        return self


class RLPD(SAC):
    """See the Algorithm contract: SAC, and prior data."""

    Config: ClassVar[type[RLPDConfig]] = RLPDConfig
    name: ClassVar[str] = "rlpd"

    def __init__(self, config: RLPDConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        self._config = config
        super().__init__(config, policy=policy, seed=seed)

    @staticmethod
    def _usual_entropy(policy: TrainablePolicy) -> float:
        return -float(num_real(policy))

    def _rows(self) -> Mapping[View, int]:
        return prior_and_online(self._config.batch_size, self._config.prior_fraction)

    @property
    def _clone_weight(self) -> float:
        return self._config.bc_weight

    def _update_actor(self, features: Tensor, actions: Tensor, *, human: Tensor) -> dict[str, Tensor | float]:
        if self._num_updates >= self._config.climb_from:
            return super()._update_actor(features, actions, human=human)
        cloning = self._extra_loss(features, actions, human)
        return {} if cloning is None else {**self._follow(cloning)}

    @property
    def _replays(self) -> bool:
        # what is replayed stays the same
        return self._config.graphs and self._num_updates + 1 >= self._config.climb_from

    def _extra_loss(self, features: Tensor, actions: Tensor, human: Tensor) -> Tensor | None:
        """The mean over what people did, in all processes' batches; None where nobody did anything."""
        weight, policy = self._clone_weight, self._policy
        if not weight:
            return None
        began = human
        if self._horizon > 1:
            began, actions = human[:, 0], actions.view(len(actions), self._horizon, -1)
        if self._config.graphs:  # by a mask: whether there are any is not to be asked
            people = human & began[:, None] if self._horizon > 1 else human
            return weight * policy.imitation_loss(features, actions, people, generator=self._generator)
        if self._spread.alone:
            if not human.any():
                return None
            mask = human[began] if self._horizon > 1 else None
            return weight * policy.imitation_loss(features[began], actions[began], mask, generator=self._generator)
        mask = human & began[:, None] if self._horizon > 1 else human
        count = mask.sum(dtype=torch.float32)
        total = count.clone()
        self._spread.add_up([total])
        if not total:
            return None
        # by a mask, so that all draw as much; counted so that the mean of the processes' gradients is that of one
        loss = policy.imitation_loss(features, actions, mask, generator=self._generator)
        return weight * loss * count * self._spread.size / total
