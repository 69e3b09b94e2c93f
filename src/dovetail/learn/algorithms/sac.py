"""SAC: soft actor-critic (Haarnoja et al., 2018), on uniformly drawn replay steps.

y     = sum_i gamma^i r_i + gamma^n (min_j Q'_j(s', a') - alpha log pi(a' | s')),   a' ~ pi(s')
Q     minimizes (Q(s, a) - y)^2 and trains the image encoder
pi    minimizes alpha log pi(a | s) - Q(s, a)
alpha keeps the entropy of pi at its target
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.core.types import SampleRequest, View
from dovetail.learn.algorithms._soft_actor_critic import SACFamily, num_action_dims
from dovetail.learn.algorithms.settings import SACConfig
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["SAC", "SACConfig"]


class SAC(SACFamily):
    """See the Algorithm contract."""

    Config: ClassVar[type[SACConfig]] = SACConfig
    name: ClassVar[str] = "sac"
    _config: SACConfig

    def __init__(self, config: SACConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(config, policy=policy, target_entropy=-0.5 * num_action_dims(policy), seed=seed)

    @property
    def sample_request(self) -> SampleRequest:
        return self._sample_request({View(): self._config.batch_size})

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        return self._run(self._learn, batch, update_actor=self._actor_is_due())

    def _learn(self, batch: Mapping[str, Tensor], *, update_actor: bool) -> dict[str, Tensor | float]:
        policy, r, discount = self._policy, batch["reward"], batch["discount"]
        metrics: dict[str, Tensor | float] = {}
        s = policy.features(self._observations(batch, "observation"))
        with torch.no_grad():
            s_next = policy.features(self._observations(batch, "next"), encoder=self._target_encoder)
        a = self._executed_actions(batch)
        if self._grasp is not None:  # a discrete gripper has its own critic
            metrics |= self._grasp.update(self._optimizers, batch, s.detach(), a, s_next)
            a = self._grasp.without_gripper(a)

        # critic
        with torch.no_grad():
            a_next, log_pi_next = policy.sample(s_next, generator=self._generator)
            q_next = self._min_target_q(s_next, a_next)
            if self._config.backup_entropy:
                q_next = q_next - self._log_alpha.exp() * log_pi_next
            y = self._clip_target(r + discount * q_next)
        metrics |= self._step_critic(s, a, y)

        if update_actor:
            metrics |= self._update_actor(s.detach())
        return metrics

    def _update_actor(self, s: Tensor) -> dict[str, Tensor | float]:
        alpha = self._log_alpha.exp().detach()
        a, log_pi = self._policy.sample(s, generator=self._generator)
        loss = (alpha * log_pi - self._actor_q(self._critic, s, a)).mean()
        return {**self._step_actor(loss), **self._step_temperature(alpha, log_pi)}
