"""RLPD: soft actor-critic with prior data in every batch (Ball et al., 2023).

Prior data are demonstrations and interventions; an intervention is also online data. Rows are drawn from both, and then

y     = sum_i gamma^i r_i + gamma^n (min_{j in subset} Q'_j(s', a') - alpha log pi(a' | s')),   a' ~ pi(s')
Q     minimizes (Q(s, a) - y)^2 and trains the image encoder
pi    minimizes alpha log pi(a | s) - Q(s, a) + bc_weight * imitation loss of what people did
alpha keeps the entropy of pi at its target
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.core.types import SampleRequest
from dovetail.learn.algorithms._soft_actor_critic import (
    SACFamily,
    num_action_dims,
    prior_and_online,
)
from dovetail.learn.algorithms.settings import RLPDConfig
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["RLPD", "RLPDConfig"]


class RLPD(SACFamily):
    """See the Algorithm contract."""

    Config: ClassVar[type[RLPDConfig]] = RLPDConfig
    name: ClassVar[str] = "rlpd"
    _config: RLPDConfig

    def __init__(self, config: RLPDConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(config, policy=policy, target_entropy=-float(num_action_dims(policy)), seed=seed)

    @property
    def sample_request(self) -> SampleRequest:
        return self._sample_request(prior_and_online(self._config.batch_size, self._config.prior_fraction))

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        use_q = self._num_updates + 1 >= self._config.actor_q_from_update
        return self._run(self._learn, batch, update_actor=self._actor_is_due(), use_q=use_q)

    def _learn(self, batch: Mapping[str, Tensor], *, update_actor: bool, use_q: bool) -> dict[str, Tensor | float]:
        policy, config, r, discount = self._policy, self._config, batch["reward"], batch["discount"]
        metrics: dict[str, Tensor | float] = {}
        s = policy.features(self._observations(batch, "observation"))
        with torch.no_grad():
            s_next = policy.features(self._observations(batch, "next"), encoder=self._target_encoder)
        executed = a = self._executed_actions(batch)
        if self._grasp is not None:  # a discrete gripper has its own critic
            metrics |= self._grasp.update(
                self._optimizers, batch, s.detach(), executed, s_next, bc_weight=config.bc_weight
            )
            a = self._grasp.without_gripper(executed)

        # critic
        with torch.no_grad():
            a_next, log_pi_next = policy.sample(s_next, generator=self._generator)
            q_next = self._min_target_q(s_next, a_next)
            if config.backup_entropy:
                q_next = q_next - self._log_alpha.exp() * log_pi_next
            y = self._clip_target(r + discount * q_next)
        metrics |= self._step_critic(s, a, y)

        if update_actor:
            metrics |= self._update_actor(batch, s.detach(), executed, use_q=use_q)
        return metrics

    def _update_actor(
        self, batch: Mapping[str, Tensor], s: Tensor, executed: Tensor, *, use_q: bool
    ) -> dict[str, Tensor | float]:
        if not use_q:
            cloning = self._cloning_loss(batch, s, executed, weight=self._config.bc_weight)
            return {} if cloning is None else self._step_actor(cloning)
        alpha = self._log_alpha.exp().detach()
        a, log_pi = self._policy.sample(s, generator=self._generator)
        loss = (alpha * log_pi - self._actor_q(self._critic, s, a)).mean()
        cloning = self._cloning_loss(batch, s, executed, weight=self._config.bc_weight)
        if cloning is not None:
            loss = loss + cloning
        return {**self._step_actor(loss), **self._step_temperature(alpha, log_pi)}
