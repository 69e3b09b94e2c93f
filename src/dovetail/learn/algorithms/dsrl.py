"""DSRL: a frozen flow is steered by choosing the noise that it starts from (Wagenmaker et al., 2025).

Three networks learn, each from the one before it:

    Q(s, a)     a critic of executed chunks:  sum_i gamma^i r_i + gamma^H Q'(s', flow(s', w')),  w' ~ pi(s')
    Q(s, w)     a critic of noise, distilled: Q(s, flow(s, w)) for any w, so that what was learned of one action holds
                for every noise that leads there, and people's actions count, of which nobody knows the noise
    pi(w | s)   a soft actor on it:           alpha * log pi(w | s) - Q(s, w)

Nothing is differentiated through the flow. Any contiguous window of executed actions is a chunk, whoever chose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import View
from dovetail.learn.adam import Adam
from dovetail.learn.algorithms._soft import SoftActorCritic, SoftConfig, prior_and_online
from dovetail.learn.batches import side
from dovetail.learn.graphs import told
from dovetail.policies.chance import normal
from dovetail.policies.networks import EnsembleMLP
from dovetail.policies.steered import Steered
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["DSRL", "DSRLConfig"]


class DSRLConfig(SoftConfig):
    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    target_entropy: float | None = None
    """Of the noise, in units of the most that may be chosen. None: minus half of its dimensions."""


class DSRL(SoftActorCritic):
    """See the Algorithm contract. The flow is cloned before, and execution takes whole chunks."""

    Config: ClassVar[type[DSRLConfig]] = DSRLConfig
    name: ClassVar[str] = "dsrl"

    def __init__(self, config: DSRLConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if not isinstance(policy, Steered):  # said before anything moves
            raise UsageError(f"algorithm 'dsrl' trains policy 'steered', and not '{policy.spec.name}'")
        self._config, self._steered = config, policy
        num_noise = policy.spec.horizon * policy.spec.action.shape[0]
        super().__init__(
            config,
            policy=policy,
            actor={"steering": policy.steering},
            target_entropy=-0.5 * num_noise,
            seed=seed,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self._noise_critic = EnsembleMLP(
                (policy.num_features + num_noise, *config.hidden, 1), num_members=config.num_critics
            ).to(self._device)
        self._modules["noise_critic"] = self._noise_critic
        self._noise_critic_parameters: list[Tensor] = list(self._noise_critic.parameters())
        self._optimizers["noise_critic"] = Adam(self._noise_critic_parameters, lr=config.lr)

    def _rows(self) -> Mapping[View, int]:
        return prior_and_online(self._config.batch_size, self._config.prior_fraction)

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        with torch.no_grad():  # frozen, encoders and all
            features, next_features = self._features(batch, "observation"), self._features(batch, "next")
        metrics: dict[str, Tensor | float] = {}
        metrics |= self._update_critic(
            features, self._executed(batch), batch["reward"], batch["discount"], next_features
        )
        metrics |= self._distill(features)
        if self._actor_is_due():
            metrics |= self._update_actor(features)
        return told(metrics)

    def _features(self, batch: Mapping[str, Tensor], name: str) -> Tensor:
        seen = side(batch, name)
        if self._policy.spec.prompted:
            seen["prompt"] = batch["prompt"]
        return self._policy.features(seen)

    def _update_critic(
        self, features: Tensor, chunks: Tensor, rewards: Tensor, discounts: Tensor, next_features: Tensor
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            next_noise, next_log_prob = self._steered.steer(next_features, generator=self._generator)
            next_chunks = self._steered.chunks(next_features, next_noise).flatten(1)
        targets = self._targets(rewards, discounts, next_features, next_chunks, next_log_prob)
        return self._fit_critic(features, chunks, targets)

    def _distill(self, features: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            noise, _ = self._steered.steer(features, generator=self._generator)
            # every other one as the flow was trained: the actor's choice narrows, and what it left must not be forgotten
            fresh = normal(noise.shape, generator=self._generator, device=noise.device)
            rows = self._spread.size * torch.arange(len(noise), device=noise.device) + self._spread.rank
            noise = torch.where((rows % 2 == 0).view(-1, *(1,) * (noise.ndim - 1)), fresh, noise)
            chunks = self._steered.chunks(features, noise).flatten(1)
            value = self._value(self._critic(torch.cat((features, chunks), 1)))
        _, loss = self._noise_critic.errors(torch.cat((features, noise.flatten(1)), 1), value)
        self._step(loss, {"noise_critic": self._noise_critic_parameters})
        return {"noise_critic_loss": loss.detach() / self._soft.num_critics}

    def _update_actor(self, features: Tensor) -> dict[str, Tensor | float]:
        for steering in (self._steered.steering, self._averaged["steering"]):
            steering.get_buffer("engaged").fill_(1.0)
        noise, log_prob = self._steered.steer(features, generator=self._generator)
        value = self._judged(self._noise_critic, features, noise.flatten(1))
        return self._climb(value, log_prob)
