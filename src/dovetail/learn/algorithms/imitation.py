"""Behavior cloning: the policy's imitation loss on what people did, on the axes that they drove."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from dovetail.core.action_parts import drives_in_parts
from dovetail.core.types import SampleRequest, View, Window
from dovetail.learn.algorithms.settings import ImitationConfig
from dovetail.learn.batches import only_driven_axes
from dovetail.learn.descent import Descent
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["Imitation", "ImitationConfig"]


class Imitation(Descent):
    """See the Algorithm contract."""

    Config: ClassVar[type[ImitationConfig]] = ImitationConfig
    name: ClassVar[str] = "imitation"

    def __init__(self, config: ImitationConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(
            policy, seed=seed, max_grad_norm=config.max_grad_norm, lr=config.lr, weight_decay=config.weight_decay
        )
        self._config = config

    @property
    def sample_request(self) -> SampleRequest:
        return SampleRequest(
            observation_keys=self._policy.spec.learned_keys,
            rows={View(part="prior"): self._config.batch_size},
            window=Window(horizon=self._policy.spec.horizon, history=self._policy.spec.history),
            next_observations=False,
            prompts=self._policy.spec.prompted,
            human_axes=drives_in_parts(self._policy.spec.parts),
        )

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        self._set_lr(self._scheduled_lr())
        step = self._minimize(batch, self._loss)
        self._num_updates += 1
        return {"imitation_loss": step[0].item()} if step else {}

    def _loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | float]:
        observations = self._observations(batch)
        features = self._policy.features(observations)
        actions = self._policy.normalize_actions(batch["action"], observations)
        mask = None
        if (
            self._policy.spec.horizon > 1
        ):  # up to the episode's end, or to where control changed between person and policy
            human = batch["human"]
            mask = batch["action/mask"] & (human == human[:, :1]).cumprod(dim=1).bool()
        mask = only_driven_axes(mask, batch)
        loss = self._policy.imitation_loss(features, actions, mask, generator=self._generator)
        return loss, float(len(actions)) if mask is None else mask.sum()

    def _scheduled_lr(self) -> float:
        if self._config.lr_decay_updates is None:
            return self._config.lr
        progress = min(self._num_updates / self._config.lr_decay_updates, 1.0)
        return self._config.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
