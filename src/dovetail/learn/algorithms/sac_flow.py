"""SAC-Flow: soft actor-critic with a flow policy of a few steps (Zhang et al., 2025).

An action is tanh(x_K), the end of a path from x_0 ~ N(0, I) with noise in each step (policies/flows/noisy_flow.py):

    x_{k+1} = x_k + b dt + sigma sqrt(dt) e_k,    b = v + sigma^2 / 2 * (t v - x) / (1 - t)

The density of an action is intractable. The density of its path replaces log pi:

    log p = log N(x_0; 0, I) + sum_k log N(x_{k+1}; x_k + b dt, sigma^2 dt) - log |d tanh / d x_K|

Gradients of the critic and of log p reach v and sigma through all K steps. As in RLPD, each batch has prior data, and what
people did may be cloned, here with the flow matching loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import SampleRequest
from dovetail.learn.algorithms._soft_actor_critic import SACFamily, prior_and_online
from dovetail.learn.algorithms.settings import SACFlowConfig
from dovetail.learn.batches import observations_of
from dovetail.policies.flows.flow_actor import FlowActor
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["SACFlow", "SACFlowConfig"]


class SACFlow(SACFamily):
    """See the Algorithm contract."""

    Config: ClassVar[type[SACFlowConfig]] = SACFlowConfig
    name: ClassVar[str] = "sac_flow"
    _config: SACFlowConfig

    def __init__(self, config: SACFlowConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if not isinstance(policy, FlowActor):
            raise UsageError(
                f"algorithm 'sac_flow' trains policy 'flow_actor', not '{policy.spec.name}'. Set policy.type=flow_actor"
            )
        entropy_of_start = 0.5 * math.log(2.0 * math.pi * math.e)
        target_entropy = policy.spec.action.shape[0] * (entropy_of_start - policy.num_flow_steps)
        super().__init__(config, policy=policy, target_entropy=target_entropy, seed=seed)

    @property
    def sample_request(self) -> SampleRequest:
        return self._sample_request(prior_and_online(self._config.batch_size, self._config.prior_fraction))

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        use_q = self._num_updates + 1 >= self._config.actor_q_from_update
        return self._run(self._learn, batch, update_actor=self._actor_is_due(), use_q=use_q)

    def _learn(self, batch: Mapping[str, Tensor], *, update_actor: bool, use_q: bool) -> dict[str, Tensor | float]:
        policy, r, discount = self._policy, batch["reward"], batch["discount"]
        s = policy.features(observations_of(batch, "observation"))
        a = self._executed_actions(batch)

        # critic
        with torch.no_grad():
            s_next = policy.features(observations_of(batch, "next"))
            a_next, log_p_next = policy.sample(s_next, generator=self._generator)
            q_next = self._min_target_q(s_next, a_next)
            if self._config.backup_entropy:
                q_next = q_next - self._log_alpha.exp() * log_p_next
            y = self._clip_target(r + discount * q_next)
        metrics: dict[str, Tensor | float] = {**self._step_critic(s, a, y)}

        if update_actor:
            metrics |= self._update_actor(batch, s.detach(), a, use_q=use_q)

        # gradients may explode or vanish on their way through the steps of the flow
        metrics["critic_grad_norm"] = self._optimizers.grad_norms["critic"]
        if "actor_loss" in metrics:
            metrics["actor_grad_norm"] = self._optimizers.grad_norms["actor"]
        return metrics

    def _update_actor(
        self, batch: Mapping[str, Tensor], s: Tensor, executed: Tensor, *, use_q: bool
    ) -> dict[str, Tensor | float]:
        if not use_q:
            cloning = self._cloning_loss(batch, s, executed, weight=self._config.bc_weight)
            return {} if cloning is None else self._step_actor(cloning)
        alpha = self._log_alpha.exp().detach()
        a, log_p = self._policy.sample(s, generator=self._generator)
        loss = (alpha * log_p - self._actor_q(self._critic, s, a)).mean()
        cloning = self._cloning_loss(batch, s, executed, weight=self._config.bc_weight)
        if cloning is not None:
            loss = loss + cloning
        return {**self._step_actor(loss), **self._step_temperature(alpha, log_p)}
