"""RLPD: soft actor-critic that draws part of every batch from prior data (Ball et al., 2023).

Prior data are demonstrations and human interventions; an intervened step is in both halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from dovetail.core.types import View
from dovetail.learn.algorithms._soft import prior_and_online
from dovetail.learn.algorithms.sac import SAC, SeeingConfig, num_free
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["RLPD", "RLPDConfig"]


class RLPDConfig(SeeingConfig):
    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    bc_weight: float = Field(default=0.0, ge=0.0)
    """Weight of cloning what people did in the actor's loss."""


class RLPD(SAC):
    """See the Algorithm contract: SAC, and prior data."""

    Config: ClassVar[type[RLPDConfig]] = RLPDConfig
    name: ClassVar[str] = "rlpd"

    def __init__(self, config: RLPDConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        self._config = config
        super().__init__(config, policy=policy, seed=seed)

    @staticmethod
    def _usual_entropy(policy: TrainablePolicy) -> float:
        return -float(num_free(policy))

    def _rows(self) -> Mapping[View, int]:
        return prior_and_online(self._config.batch_size, self._config.prior_fraction)

    @property
    def _clone_weight(self) -> float:
        return self._config.bc_weight

    def _extra_loss(self, features: Tensor, actions: Tensor, human: Tensor) -> Tensor | None:
        if not (self._clone_weight and human.any()):
            return None
        rows, mask = human, None
        if self._horizon > 1:
            rows, mask = human[:, 0], human[human[:, 0]]
            actions = actions.view(len(actions), self._horizon, -1)
        cloning = self._policy.imitation_loss(features[rows], actions[rows], mask, generator=self._generator)
        return self._clone_weight * cloning
