"""What soft actor-critics share (Haarnoja et al., 2018): critics with slow targets, a temperature, a checkpoint.

targets = self._targets(...)                        r + discount * least of the targets' values
metrics = self._fit_critic(features, actions, targets)
metrics |= self._climb(value, log_prob)             alpha * log pi - value, then the temperature
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dovetail.config.model import Config
from dovetail.core.types import Array, SampleRequest, View, Window
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

__all__ = ["SoftActorCritic", "SoftConfig"]


class SoftConfig(Config):
    batch_size: int = Field(default=128, ge=2)
    prior_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    gamma: float = Field(default=0.97, gt=0.0, lt=1.0)
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


class SoftActorCritic:
    """All of an Algorithm but `update`. `actor` names the parts of the policy that learn, `num_actions` what a critic
    sees of an action, and `target_entropy` what holds where the config names none."""

    name: ClassVar[str]

    def __init__(
        self,
        config: SoftConfig,
        *,
        policy: TrainablePolicy,
        actor: Mapping[str, nn.Module],
        num_actions: int,
        target_entropy: float,
        seed: int,
    ) -> None:
        self._soft, self._policy = config, policy
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critic = EnsembleMLP(
                (policy.num_features + num_actions, *config.hidden, 1), num_members=config.num_critics
            )
        self._target = copy.deepcopy(self._critic).requires_grad_(False)
        self._modules: dict[str, nn.Module] = {"critic": self._critic, "target": self._target}
        self._critic_parameters: list[Tensor] = list(self._critic.parameters())
        self._target_parameters: list[Tensor] = list(self._target.parameters())
        self._log_alpha = torch.tensor(float(np.log(config.temperature)), requires_grad=True)
        self._target_entropy = target_entropy if config.target_entropy is None else config.target_entropy
        self._averaged = {n: copy.deepcopy(m).requires_grad_(False) for n, m in actor.items()}
        self._actor_parameters: list[Tensor] = [p for m in actor.values() for p in m.parameters()]
        self._averaged_parameters: list[Tensor] = [p for m in self._averaged.values() for p in m.parameters()]
        self._optimizers = {
            "critic": torch.optim.Adam(self._critic.parameters(), lr=config.lr, fused=True),
            "actor": torch.optim.Adam(self._actor_parameters, lr=config.lr, fused=True),
            "alpha": torch.optim.Adam([self._log_alpha], lr=config.lr, fused=True),
        }
        self._grad_norms: dict[str, Tensor] = {}  # of each one's latest step, before clipping
        self._generator = torch.Generator().manual_seed(seed)
        self._num_updates = 0

    def _request(self, window: Window) -> SampleRequest:
        """Part of every batch is prior data: demonstrations and interventions."""
        num_prior = round(self._soft.batch_size * self._soft.prior_fraction)
        return SampleRequest(
            observation_keys=tuple(self._policy.spec.observation),
            rows={View(part="prior"): num_prior, View(part="online"): self._soft.batch_size - num_prior},
            window=window,
            prompts=self._policy.spec.prompted,
            when_empty=View(),  # before the first online step, or without demonstrations, one side has nothing
        )

    def _actor_is_due(self) -> bool:
        """Counts an update of the critic, and says whether one of the actor follows it."""
        self._num_updates += 1
        return self._num_updates > self._soft.actor_after and self._num_updates % self._soft.actor_every == 0

    # ---- the critic

    def _targets(
        self,
        rewards: Tensor,
        discounts: Tensor,
        next_features: Tensor,
        next_actions: Tensor,
        next_log_prob: Tensor,
    ) -> Tensor:
        config = self._soft
        with torch.no_grad():
            next_q = self._target(torch.cat((next_features, next_actions), 1))  # [E, B]
            if config.num_target_critics < config.num_critics:
                subset = torch.randperm(config.num_critics, generator=self._generator)
                next_q = next_q[subset[: config.num_target_critics]]
            next_value = next_q.amin(0)
            if config.backup_entropy:
                next_value = next_value - self._log_alpha.exp() * next_log_prob
            targets: Tensor = rewards + discounts * next_value
            return targets if config.target_range is None else targets.clamp(*config.target_range)

    def _fit_critic(self, features: Tensor, actions: Tensor, targets: Tensor) -> dict[str, float]:
        q = self._critic(torch.cat((features, actions), 1))  # [E, B]
        loss = (q - targets).square().mean(1).sum()
        self._step("critic", loss, self._critic_parameters)
        with torch.no_grad():
            torch._foreach_lerp_(self._target_parameters, self._critic_parameters, self._soft.tau)
        return {"critic_loss": loss.item() / self._soft.num_critics, "q": q.mean().item()}

    # ---- the actor

    def _value(self, q: Tensor) -> Tensor:
        """What the actor climbs, [B], of what the critics say, [E, B]."""
        return q.mean(0) if self._soft.actor_q == "mean" else q.amin(0)

    def _climb(self, value: Tensor, log_prob: Tensor, *, extra_loss: Tensor | None = None) -> dict[str, float]:
        alpha = self._log_alpha.exp().detach()
        loss = (alpha * log_prob - value).mean()
        if extra_loss is not None:
            loss = loss + extra_loss
        metrics = self._follow(loss)
        entropy = -log_prob.detach().mean()
        self._step("alpha", self._log_alpha.exp() * (entropy - self._target_entropy), [self._log_alpha])
        return {**metrics, "entropy": entropy.item(), "alpha": alpha.item()}

    def _follow(self, loss: Tensor) -> dict[str, float]:
        """One step of the actor down a loss, and its running average after it."""
        self._step("actor", loss, self._actor_parameters)
        with torch.no_grad():
            torch._foreach_lerp_(self._averaged_parameters, self._actor_parameters, 1.0 - self._soft.actor_average)
        return {"actor_loss": loss.item()}

    def _step(self, name: str, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        # gradients of exactly these parameters: the actor's loss flows through the critic without touching it
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)  # cloning says nothing of a flow's noise
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self._grad_norms[name] = torch.nn.utils.clip_grad_norm_(parameters, self._soft.max_grad_norm, foreach=True)
        self._optimizers[name].step()

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._policy.weights({**self._policy.components, **self._averaged})

    # ---- everything a resumed run needs to go on exactly where this one stopped

    def state_dict(self) -> Mapping[str, Array]:
        state = {
            "num_updates": np.array(self._num_updates, np.int64),
            "log_alpha": self._log_alpha.detach().numpy().copy(),
            "generator": self._generator.get_state().numpy().copy(),
            **policy_state(self._policy),
        }
        for name, module in self._kept().items():
            state |= module_state(name, module)
        for name, optimizer in self._optimizers.items():
            state |= optimizer_state(name, optimizer)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        with refuse_misfits(self.name):
            load_policy(self._policy, state)
            for name, module in self._kept().items():
                load_module(name, module, state)
            for name, optimizer in self._optimizers.items():
                load_optimizer(name, optimizer, state)
            with torch.no_grad():
                self._log_alpha.copy_(torch.tensor(state["log_alpha"]))
            self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
            self._num_updates = int(state["num_updates"])

    def _kept(self) -> dict[str, nn.Module]:
        return {**self._modules, **{f"averaged/{name}": module for name, module in self._averaged.items()}}
