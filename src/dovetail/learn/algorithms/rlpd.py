"""RLPD: soft actor-critic that draws part of every batch from prior data (Ball et al., 2023).

Prior data are demonstrations and human interventions; an intervened step is in both halves.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, SampleRequest, View, Window
from dovetail.learn.batches import side
from dovetail.learn.state import (
    load_module,
    load_optimizer,
    load_policy,
    module_state,
    optimizer_state,
    policy_state,
    refuse_misfits,
)
from dovetail.policies.networks import EnsembleMLP
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["RLPD", "RLPDConfig"]


class RLPDConfig(Config):
    batch_size: int = Field(default=128, ge=2)
    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    gamma: float = Field(default=0.97, gt=0.0, lt=1.0)
    num_steps: int = Field(default=1, ge=1)
    """Rewards added up before the critic's own estimate takes over: more carry a sparse reward back faster."""
    tau: float = Field(default=0.005, gt=0.0, le=1.0)
    lr: float = Field(default=3e-4, gt=0.0)
    num_critics: int = Field(default=2, ge=1)
    num_target_critics: int = Field(default=2, ge=1)
    """A random subset of this size gives the target's minimum."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    actor_every: int = Field(default=4, ge=1)
    """Critic updates per actor update."""
    actor_after: int = Field(default=0, ge=0)
    """Critic updates before the actor moves at all: a cloned actor waits until its critic knows it."""
    actor_q: Literal["mean", "min"] = "min"
    """What the actor climbs: the mean of the critics, or the least of them."""
    temperature: float = Field(default=0.02, gt=0.0)
    target_entropy: float | None = None
    """None: minus the number of action dimensions."""
    backup_entropy: bool = False
    target_range: tuple[float, float] | None = None
    """Returns that are possible at all, [0, 1] for a sparse reward: targets are clipped to it. None: no clipping."""
    bc_weight: float = Field(default=0.0, ge=0.0)
    """Weight of cloning what people did in the actor's loss."""
    actor_average: float = Field(default=0.995, ge=0.0, lt=1.0)
    """The robot gets a running average of the actor, this share of it old at each actor update: it sways less."""
    max_grad_norm: float = Field(default=10.0, gt=0.0)

    @model_validator(mode="after")
    def _enough_critics(self) -> Self:
        if self.num_target_critics > self.num_critics:
            raise ValueError(
                f"num_target_critics ({self.num_target_critics}) exceeds num_critics ({self.num_critics})"
            )
        return self


class RLPD:
    """See the Algorithm contract. One `update` is one critic step, and at times one of the actor."""

    Config: ClassVar[type[RLPDConfig]] = RLPDConfig

    def __init__(self, config: RLPDConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if policy.spec.horizon > 1:  # said before anything moves
            raise UsageError(
                f"algorithm 'rlpd' trains policies of single actions, but '{policy.spec.name}' gives chunks of "
                f"{policy.spec.horizon}: use algorithm 'imitation', or policy 'gaussian_mlp'"
            )
        self._config = config
        self._policy = policy
        num_actions = policy.spec.action.shape[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critic = EnsembleMLP(
                (policy.num_features + num_actions, *config.hidden, 1), num_members=config.num_critics
            )
        self._target = copy.deepcopy(self._critic).requires_grad_(False)
        self._critic_parameters: list[Tensor] = list(self._critic.parameters())
        self._target_parameters: list[Tensor] = list(self._target.parameters())
        self._log_alpha = torch.tensor(float(np.log(config.temperature)), requires_grad=True)
        self._target_entropy = -float(num_actions) if config.target_entropy is None else config.target_entropy
        self._averaged = {n: copy.deepcopy(m).requires_grad_(False) for n, m in policy.components.items()}
        self._actor_parameters: list[Tensor] = [p for m in policy.components.values() for p in m.parameters()]
        self._averaged_parameters: list[Tensor] = [p for m in self._averaged.values() for p in m.parameters()]
        self._optimizers = {
            "critic": torch.optim.Adam(self._critic.parameters(), lr=config.lr, fused=True),
            "actor": torch.optim.Adam(self._actor_parameters, lr=config.lr, fused=True),
            "alpha": torch.optim.Adam([self._log_alpha], lr=config.lr, fused=True),
        }
        self._generator = torch.Generator().manual_seed(seed)
        self._num_updates = 0

    @property
    def wants(self) -> SampleRequest:
        num_prior = round(self._config.batch_size * self._config.prior_fraction)
        return SampleRequest(
            observation_keys=tuple(self._policy.spec.observation),
            rows={View(part="prior"): num_prior, View(part="online"): self._config.batch_size - num_prior},
            window=Window(
                gamma=self._config.gamma,
                num_steps=self._config.num_steps,
                history=self._policy.spec.history,
            ),
            when_empty=View(),  # before the first online step, or without demonstrations, one side has nothing
        )

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        features = self._policy.features(side(batch, "observation"))
        next_features = self._policy.features(side(batch, "next"))
        actions = self._policy.normalize_actions(batch["action"])
        metrics = self._update_critic(features, actions, batch["reward"], batch["discount"], next_features)
        self._num_updates += 1
        if self._num_updates > self._config.actor_after and self._num_updates % self._config.actor_every == 0:
            metrics |= self._update_actor(features, actions, human=batch["human"])
        return metrics

    def _update_critic(
        self, features: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_features: Tensor
    ) -> dict[str, float]:
        config = self._config
        with torch.no_grad():
            next_actions, next_log_prob = self._policy.sample(next_features, generator=self._generator)
            next_q = self._target(torch.cat((next_features, next_actions), 1))  # [E, B]
            if config.num_target_critics < config.num_critics:
                subset = torch.randperm(config.num_critics, generator=self._generator)
                next_q = next_q[subset[: config.num_target_critics]]
            next_value = next_q.amin(0)
            if config.backup_entropy:
                next_value = next_value - self._log_alpha.exp() * next_log_prob
            targets = rewards + discounts * next_value
            if config.target_range is not None:
                targets = targets.clamp(*config.target_range)
        q = self._critic(torch.cat((features, actions), 1))  # [E, B]
        loss = (q - targets).square().mean(1).sum()
        self._step("critic", loss, self._critic_parameters)
        with torch.no_grad():
            torch._foreach_lerp_(self._target_parameters, self._critic_parameters, config.tau)
        return {"critic_loss": loss.item() / config.num_critics, "q": q.mean().item()}

    def _update_actor(self, features: Tensor, actions: Tensor, *, human: Tensor) -> dict[str, float]:
        config = self._config
        new_actions, log_prob = self._policy.sample(features, generator=self._generator)
        q = self._critic(torch.cat((features, new_actions), 1))
        value = q.mean(0) if config.actor_q == "mean" else q.amin(0)
        alpha = self._log_alpha.exp().detach()
        loss = (alpha * log_prob - value).mean()
        if config.bc_weight and human.any():
            cloning = self._policy.imitation_loss(features[human], actions[human], generator=self._generator)
            loss = loss + config.bc_weight * cloning
        self._step("actor", loss, self._actor_parameters)
        with torch.no_grad():
            torch._foreach_lerp_(self._averaged_parameters, self._actor_parameters, 1.0 - config.actor_average)
        entropy = -log_prob.detach().mean()
        self._step("alpha", self._log_alpha.exp() * (entropy - self._target_entropy), [self._log_alpha])
        return {"actor_loss": loss.item(), "entropy": entropy.item(), "alpha": alpha.item()}

    def _step(self, name: str, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        # gradients of exactly these parameters: the actor's loss flows through the critic without touching it
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm, foreach=True)
        self._optimizers[name].step()

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._policy.weights(self._averaged)

    # ---- everything a resumed run needs to go on exactly where this one stopped

    def state_dict(self) -> Mapping[str, Array]:
        state = {
            "num_updates": np.array(self._num_updates, np.int64),
            "log_alpha": self._log_alpha.detach().numpy().copy(),
            "generator": self._generator.get_state().numpy().copy(),
            **policy_state(self._policy),
            **module_state("critic", self._critic),
            **module_state("target", self._target),
        }
        for name, module in self._averaged.items():
            state |= module_state(f"averaged/{name}", module)
        for name, optimizer in self._optimizers.items():
            state |= optimizer_state(name, optimizer)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        with refuse_misfits("rlpd"):
            load_policy(self._policy, state)
            load_module("critic", self._critic, state)
            load_module("target", self._target, state)
            for name, module in self._averaged.items():
                load_module(f"averaged/{name}", module, state)
            for name, optimizer in self._optimizers.items():
                load_optimizer(name, optimizer, state)
            with torch.no_grad():
                self._log_alpha.copy_(torch.tensor(state["log_alpha"]))
            self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
            self._num_updates = int(state["num_updates"])
