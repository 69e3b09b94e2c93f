"""PPO: proximal policy optimisation with generalised advantages (Schulman et al., 2017), on rollouts that may be stale.

The objective is the decoupled one (Hilton et al., 2022). What is kept near is the *proximal* policy, the one that the update
begins with; the policy that *behaved*, some versions older where rollouts are collected meanwhile, only weighs the samples.
On fresh rollouts the two are the same, every weight is 1, and this is PPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.types import Array, SampleRequest
from dovetail.learn.batches import side
from dovetail.learn.descent import Descent
from dovetail.learn.finite import SkippedUpdate
from dovetail.learn.rollouts import Moments, Practice, explained_variance, gae
from dovetail.learn.state import refuse_misfits
from dovetail.policies.actor_critic import ValuedPolicy
from dovetail.policies.parts import trained
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["PPO", "PPOConfig", "Rows", "ppo_loss"]

_LR_FACTOR, _LR_RANGE = 1.2, 10.0


class PPOConfig(Config):
    num_envs: int = Field(default=4, ge=1, le=1024)
    """Simulated worlds that practise side by side."""
    rollout_steps: int = Field(default=256, ge=2)
    """Ticks of each world between two updates."""
    asynchronous: bool = False
    """Collect the next rollout in a process of its own while this one is learned from."""
    max_staleness: int = Field(default=1, ge=0)
    """Versions that an asynchronous collector's weights may be behind the learner's; then it waits for newer ones."""
    record: bool = False
    """Write each episode of practice to the run's log, to be looked at; it is not learned from again."""
    lr: float = Field(default=3e-4, gt=0.0)
    value_lr: float | None = Field(default=None, gt=0.0)
    """Of the critic, which has no reason to be as careful as the actor; null: the same."""
    std_lr: float | None = Field(default=None, gt=0.0)
    """Of a Gaussian's spread: at the actor's rate it takes a million steps to become exact; null: the same."""
    actor_after: int = Field(default=0, ge=0)
    """Rollouts before the actor moves at all: a cloned actor waits until its critic knows it."""
    num_epochs: int = Field(default=10, ge=1)
    """How often each rollout is gone through."""
    batch_size: int = Field(default=128, ge=2)
    gamma: float = Field(default=0.99, gt=0.0, le=1.0)
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0)
    clip: float = Field(default=0.2, gt=0.0)
    """An action gains nothing by becoming more likely, or less, than by this share."""
    entropy_coef: float = Field(default=0.01, ge=0.0)
    value_coef: float = Field(default=0.5, ge=0.0)
    max_grad_norm: float = Field(default=0.5, gt=0.0)
    max_weight: float = Field(default=5.0, ge=1.0)
    """The most that a stale sample may weigh."""
    target_kl: float | None = Field(default=None, gt=0.0)
    """No further epoch once the policy is half as much again from where the update began; null: all of them."""
    adapt_lr: bool = False
    """Let the learning rate follow: less after an update that went beyond `target_kl`, more after one far below."""
    normalize: bool = True
    """Standardise observations by all that practice has seen so far; false: by the demonstrations, as they were fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Steps of a rollout, in any order, [B] each: what the loss compares the policy with."""

    proximal: Tensor  # log-density of the drawn action when the update began
    weight: Tensor  # how much likelier it was then than when it was drawn
    advantage: Tensor
    returns: Tensor

    def at(self, index: Tensor) -> Rows:
        return Rows(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def ppo_loss(
    config: PPOConfig, rows: Rows, *, log_prob: Tensor, entropy: Tensor, value: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """What is minimised, and what to say of it."""
    log_ratio = log_prob - rows.proximal
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    gain = torch.minimum(ratio * rows.advantage, clipped * rows.advantage)
    policy_loss = -(rows.weight * gain).mean()
    value_loss = (value - rows.returns).square().mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy.mean()
    with torch.no_grad():
        kl = (ratio - 1.0 - log_ratio).mean()  # never negative, and without bias (Schulman, 2020)
        clip_fraction = ((ratio - 1.0).abs() > config.clip).float().mean()
    facts = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean()}
    return loss, {**facts, "kl": kl, "clip_fraction": clip_fraction}


class PPO(Descent):
    """See the OnPolicyAlgorithm contract. One `update` is all epochs over one rollout."""

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    name: ClassVar[str] = "ppo"
    _policy: ValuedPolicy

    def __init__(self, config: PPOConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        spec = policy.spec
        if not isinstance(policy, ValuedPolicy) or spec.horizon > 1 or spec.history or spec.prompted:
            raise UsageError(
                f"algorithm 'ppo' needs a policy of single actions, without history, that knows values; '{spec.name}' is "
                "not one: use policy 'actor_critic' or 'flow_actor_critic'"
            )
        super().__init__(policy, torch.optim.Adam, seed=seed, lr=config.lr, eps=1e-5)
        if config.adapt_lr and config.target_kl is None:
            raise UsageError("algorithm.adapt_lr needs a distance to aim for: set algorithm.target_kl, e.g. 0.015")
        self._config = config
        rates = {"mean": config.lr, "spread": config.std_lr or config.lr, "critic": config.value_lr or config.lr}
        groups: dict[str, list[torch.nn.Parameter]] = {name: [] for name in rates}
        for component, module in trained(policy.components, algorithm=self.name).items():
            for name, parameter in module.named_parameters():
                kind = "critic" if component == "critic" else "spread" if name == "log_std" else "mean"
                groups[kind].append(parameter)
        self._optimizer.param_groups.clear()
        for kind, parameters in groups.items():  # an empty one keeps its place
            self._optimizer.add_param_group({"params": parameters, "lr": rates[kind]})
        self._norms: dict[str, Tensor] = {}  # of the gradients of the latest step, before they were clipped
        low_dimensional = {key: s.shape[0] for key, s in spec.observation.items() if not s.is_image}
        self._moments = {key: Moments(size) for key, size in low_dimensional.items()}

    @property
    def practice(self) -> Practice:
        config = self._config
        return Practice(
            num_envs=config.num_envs,
            num_steps=config.rollout_steps,
            asynchronous=config.asynchronous,
            max_staleness=config.max_staleness if config.asynchronous else 0,
            record=config.record,
        )

    @property
    def wants(self) -> SampleRequest:
        """Of a replay, nothing: see `practice`."""
        return SampleRequest(observation_keys=tuple(self._policy.spec.observation), rows={})

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        try:
            return self._learn(batch)
        finally:
            self._num_updates += 1  # whatever came of it: a version follows every rollout

    def _learn(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        config = self._config
        bad = [
            name for name, values in batch.items() if values.is_floating_point() and not values.isfinite().all()
        ]
        if bad:  # before it reaches the normaliser
            raise SkippedUpdate(f"a rollout is not finite in {', '.join(bad)}")
        staleness = self._num_updates - batch["version"]
        if int(staleness.max()) > self.practice.max_staleness:
            raise FailureError(
                f"a rollout is {int(staleness.max())} versions old, and {self.practice.max_staleness} are allowed"
            )
        waits = self._num_updates < config.actor_after
        seen = {key: rows[:, :-1].flatten(0, 1) for key, rows in side(batch, "observation").items()}
        drawn = batch["action"].flatten(0, 1)
        rows, metrics = self._prepare(batch, seen, drawn)
        totals: dict[str, list[Tensor]] = {}
        num_epochs = num_passes = 0
        while num_epochs < config.num_epochs:
            num_epochs += 1
            order = torch.randperm(len(drawn), generator=self._generator, device=self._device)
            pieces = [order[i : i + config.batch_size] for i in range(0, len(order), config.batch_size)]
            said = [self._step(seen, drawn, rows, index) for index in pieces]
            num_passes += len(said)
            totals = {name: [facts[name] for facts in said] for name in said[0]}  # of the last epoch
            if config.target_kl is not None and _mean(totals["kl"]) > 1.5 * config.target_kl:
                break
        if config.adapt_lr and not waits:
            self._adapt(_mean(totals["kl"]))
        self._fit_normalizer(batch)  # from the next version on; the one that behaved saw as this update did
        metrics |= {name: _mean(values) for name, values in totals.items()}
        return {
            **metrics,
            "epochs": float(num_epochs),
            "passes": float(num_passes),
            "lr": self._lr,
            "staleness": float(staleness.float().mean()),
            "staleness_max": float(staleness.max()),
        }

    def _prepare(
        self, batch: Mapping[str, Tensor], seen: Mapping[str, Tensor], drawn: Tensor
    ) -> tuple[Rows, dict[str, float]]:
        """Values, advantages and log-densities by the policy as it is now, whoever collected the rollout."""
        config, policy = self._config, self._policy
        num_envs, num_steps = batch["reward"].shape
        with torch.no_grad():
            everything = {key: rows.flatten(0, 1) for key, rows in side(batch, "observation").items()}
            values = policy.value(policy.features(everything)).view(num_envs, num_steps + 1)
            next_values = values[:, 1:].clone()
            truncated = torch.zeros(num_envs * num_steps, dtype=torch.bool, device=self._device)
            if len(batch["final_at"]):
                truncated[batch["final_at"]] = True
                last = policy.value(policy.features(side(batch, "final")))
                next_values.view(-1)[batch["final_at"]] = last
            proximal, _, _ = policy.evaluate_actions(policy.features(seen), drawn)
            drift = proximal - batch["log_prob"].flatten()
        advantages = gae(
            rewards=batch["reward"].cpu().numpy(),
            values=values[:, :-1].cpu().numpy(),
            next_values=next_values.cpu().numpy(),
            terminated=batch["terminated"].cpu().numpy(),
            truncated=truncated.view(num_envs, num_steps).cpu().numpy(),
            gamma=config.gamma,
            lam=config.gae_lambda,
        )
        returns = advantages + values[:, :-1].cpu().numpy()
        advantage = torch.from_numpy(advantages).to(self._device).flatten()
        rows = Rows(
            proximal=proximal,
            weight=drift.exp().clamp(max=config.max_weight),
            advantage=(advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8),
            returns=torch.from_numpy(returns).to(self._device).flatten(),
        )
        facts = {
            "explained_variance": explained_variance(values[:, :-1].cpu().numpy(), returns),
            "value": float(values.mean()),
            "behaviour_kl": float((drift.exp() - 1.0 - drift).mean()),
        }
        return rows, facts

    def _step(self, seen: Mapping[str, Tensor], drawn: Tensor, rows: Rows, index: Tensor) -> dict[str, Tensor]:
        said: list[dict[str, Tensor]] = []

        def loss_of(piece: Mapping[str, Tensor]) -> tuple[Tensor, float]:
            index = piece["index"]
            features = self._policy.features({key: values[index] for key, values in seen.items()})
            log_prob, entropy, value = self._policy.evaluate_actions(features, drawn[index])
            loss, facts = ppo_loss(self._config, rows.at(index), log_prob=log_prob, entropy=entropy, value=value)
            if self._num_updates < self._config.actor_after:
                loss = (
                    self._config.value_coef * facts["value_loss"]
                )  # the actor has no part in it, and so no gradient
            said.append({name: value.detach() for name, value in facts.items()})
            return loss, float(len(index))

        self._descend({"index": index}, loss_of)
        return {**{name: torch.stack([f[name] for f in said]).mean() for name in said[0]}, **self._norms}

    def _clip(self, norm: Tensor) -> None:
        """Each component by itself: what a critic has to learn at first would leave the actor no steps."""
        self._norms = {
            f"{name}_grad_norm": torch.nn.utils.clip_grad_norm_(module.parameters(), self._config.max_grad_norm)
            for name, module in self._policy.components.items()
            if any(parameter.grad is not None for parameter in module.parameters())
        }

    @property
    def _lr(self) -> float:
        """Of the actor's mean, which is the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    @_lr.setter
    def _lr(self, lr: float) -> None:
        self._optimizer.param_groups[0]["lr"] = lr

    def _adapt(self, kl: float) -> None:
        """As Schulman et al. did for the penalty: between two updates, by a fixed factor, and never far."""
        target = self._config.target_kl
        assert target is not None
        if kl > 1.5 * target:
            self._lr = max(self._lr / _LR_FACTOR, self._config.lr / _LR_RANGE)
        elif kl < target / 1.5:
            self._lr = min(self._lr * _LR_FACTOR, self._config.lr * _LR_RANGE)

    def _fit_normalizer(self, batch: Mapping[str, Tensor]) -> None:
        if not self._config.normalize:
            return
        columns: dict[str, Array] = {}
        for key, moments in self._moments.items():
            moments.add(batch[f"observation/{key}"][:, :-1].flatten(0, 1).cpu().numpy())
            # two rows that have this mean and this spread stand for all that were seen
            columns[key] = np.stack((moments.mean - moments.std, moments.mean + moments.std))
        self._policy.fit_normalizer(columns)

    def state_dict(self) -> Mapping[str, Array]:
        moments = {f"moments/{key}": moments.to_array() for key, moments in self._moments.items()}
        return {**super().state_dict(), **moments, "lr": np.array(self._lr)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        with refuse_misfits(self.name):
            for key, moments in self._moments.items():
                moments.load_array(state[f"moments/{key}"])
            self._lr = float(state["lr"])


def _mean(values: list[Tensor]) -> float:
    return float(torch.stack(values).mean())
