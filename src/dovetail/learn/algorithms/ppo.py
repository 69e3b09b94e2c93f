"""PPO: proximal policy optimization with generalized advantages (Schulman et al., 2017), on rollouts that may be stale.

A     = GAE of the rollout's rewards and values V, normalized
ratio = pi(a | s) / pi_old(a | s)
pi    maximizes w * min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) + entropy_coef * entropy
V     minimizes (V(s) - returns)^2

With a policy of chunks, one step is a whole executed chunk. Its reward is the discounted sum of its actions' rewards. The
value after it counts by gamma^k for k executed actions, and its density is that of these actions.

The objective is the decoupled one (Hilton et al., 2022): `pi_old` is the policy at the start of the update. The policy that
collected the rollout may be some versions older; w = pi_old / pi_collected corrects for it. On a fresh rollout w is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.core.abilities import FitsActions
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.types import Array, SampleRequest
from dovetail.learn.algorithms.settings import ChunkDensity, PPOConfig
from dovetail.learn.descent import Descent
from dovetail.learn.finite import SkippedUpdate
from dovetail.learn.rollout_steps import rollout_advantages, rollout_steps, rollout_values
from dovetail.learn.rollouts import Moments, RolloutSettings, explained_variance
from dovetail.learn.schedules import OptimizerSettings, lr_factor, optimizer_group
from dovetail.learn.state import load_module, module_state, raise_checkpoint_errors
from dovetail.learn.torch_optimizers import TorchAdam
from dovetail.policies.components import check_component_names, trainable_components
from dovetail.policies.trainable import ExplainsAbilities, HasFlatFeatures, TrainablePolicy, ValuedPolicy

__all__ = ["PPO", "PPOConfig", "RolloutRows", "executed_density", "ppo_loss"]

_LR_FACTOR, _LR_RANGE = 1.2, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRows:
    """Steps of a rollout, [B] each."""

    log_prob_old: Tensor  # log pi_old(a | s)
    weight: Tensor  # pi_old / pi_collected
    advantage: Tensor
    returns: Tensor
    num_executed: Tensor | None = None  # actions of each chunk
    log_prob_start: Tensor | None = None  # log-density of the policy before the first update

    def at(self, index: Tensor) -> RolloutRows:
        """The rows of a minibatch."""
        of: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen: dict[str, Any] = {name: None if values is None else values[index] for name, values in of.items()}
        return RolloutRows(**chosen)


def executed_density(log_prob: Tensor, num_executed: Tensor | None, *, num_axes: int, how: ChunkDensity) -> Tensor:
    """The log-density [B] of the executed actions of chunks, from that of each action [B, H]; [B] stays as it is.

    The mean over actions and axes keeps the ratio of a long chunk near 1, so that it is not clipped at once."""
    if log_prob.ndim == 1 or num_executed is None:
        return log_prob
    is_executed = torch.arange(log_prob.shape[1], device=log_prob.device) < num_executed[:, None]
    total = torch.where(is_executed, log_prob, 0.0).sum(1)
    return total if how == "joint" else total / (num_executed * num_axes)


def ppo_loss(
    config: PPOConfig, rows: RolloutRows, *, log_prob: Tensor, entropy: Tensor, value: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and its metrics."""
    log_ratio = log_prob - rows.log_prob_old
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - config.clip_ratio, 1.0 + config.clip_ratio)
    objective = torch.minimum(ratio * rows.advantage, clipped * rows.advantage)
    policy_loss = -(rows.weight * objective).mean()
    value_loss = (value - rows.returns).square().mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy.mean()
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean()}
    if rows.log_prob_start is not None:  # its gradient is that of the KL divergence (Schulman, 2020)
        metrics["start_kl"] = 0.5 * (log_prob - rows.log_prob_start).square().mean()
        loss = loss + config.start_kl_coef * metrics["start_kl"]
    with torch.no_grad():
        kl = (ratio - 1.0 - log_ratio).mean()  # nonnegative and unbiased (Schulman, 2020)
        clip_fraction = ((ratio - 1.0).abs() > config.clip_ratio).float().mean()
    return loss, {**metrics, "kl": kl, "clip_fraction": clip_fraction}


class PPO(Descent):
    """See the OnPolicyAlgorithm contract. One `update` is all epochs over one rollout."""

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    name: ClassVar[str] = "ppo"
    _policy: ValuedPolicy

    def __init__(self, config: PPOConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        spec = policy.spec
        if isinstance(policy, ExplainsAbilities) and (why := policy.why_not(ValuedPolicy)):
            raise UsageError(
                f"algorithm 'ppo' cannot train policy '{spec.name}': {why}. Add it to the class (docs/vla.md)"
            )
        if not isinstance(policy, ValuedPolicy):
            raise UsageError(
                f"algorithm 'ppo' needs a policy with a value and a log-density, not '{spec.name}'. Use policy "
                "'actor_critic', 'valued_flow' (chunks, images, prompts, history), 'flow_actor_critic', or for a VLA "
                "'valued_pi0', 'valued_pi05' or 'valued_smolvla'"
            )
        if config.normalize and isinstance(policy, FitsActions) and policy.fits_actions:
            raise UsageError(
                f"policy '{spec.name}' has statistics of its own, which algorithm.normalize=true would replace. Set it to "
                "false"
            )
        # the critic's large first gradients would leave the actor no step, so each network is clipped by itself
        super().__init__(
            policy,
            TorchAdam,
            seed=seed,
            max_grad_norm=config.max_grad_norm,
            clip_each_component=True,
            lr=config.lr,
            eps=1e-5,
        )
        if config.adapt_lr and config.target_kl is None:
            raise UsageError("algorithm.adapt_lr needs a target. Set algorithm.target_kl, for example 0.015")
        self._config = config
        self._start: dict[str, dict[str, Array]] = {}  # weights before the first update, for `start_kl_coef`
        groups = self._group_parameters()
        for setting, given, group in (("value_lr", config.value_lr, "critic"), ("std_lr", config.std_lr, "std")):
            if given is not None and not groups[group]:
                what = "component 'critic'" if group == "critic" else "parameter 'log_std'"
                raise UsageError(
                    f"algorithm.{setting} is for a {what}, which policy '{spec.name}' does not train. Remove it"
                )
        low_dimensional = {key: s.shape[0] for key, s in spec.observation.items() if not s.is_picture}
        self._moments = {key: Moments(size) for key, size in low_dimensional.items()}

    def _group_parameters(self) -> dict[str, list[torch.nn.Parameter]]:
        """Give the mean, the standard deviation, the value and components with settings of their own their rates."""
        config, own = self._config, self._own_optimizers
        lrs = {"mean": config.lr, "std": config.std_lr or config.lr, "critic": config.value_lr or config.lr}
        groups: dict[str, list[torch.nn.Parameter]] = {name: [] for name in lrs}
        of_components: list[dict[str, Any]] = []
        for component, module in trainable_components(self._policy.components, algorithm=self.name).items():
            if component in own:
                base_lr = own[component].lr or lrs["critic" if component == "critic" else "mean"]
                settings = {**optimizer_group(own[component]), "lr": base_lr, "base_lr": base_lr}
                of_components.append({"params": list(module.parameters()), "component": component, **settings})
                continue
            for name, parameter in module.named_parameters():
                is_std = name.rpartition(".")[2] == "log_std"
                group = "critic" if component == "critic" else "std" if is_std else "mean"
                groups[group].append(parameter)
        self._optimizer.param_groups.clear()
        for group, parameters in groups.items():  # an empty group keeps its place
            self._optimizer.add_param_group({"params": parameters, "lr": lrs[group]})
        for settings in of_components:
            self._optimizer.add_param_group(settings)
        return groups

    def set_optimizers(self, optimizers: Mapping[str, OptimizerSettings]) -> None:
        """See SetsOptimizers. Schedules count rollouts."""
        if self._config.adapt_lr and optimizers.keys() - {"critic"}:
            raise UsageError(
                "algorithm.adapt_lr chooses the actor's learning rate, and learner.optimizers sets it. Remove one of them"
            )
        trained = trainable_components(self._policy.components, algorithm=self.name)
        check_component_names(optimizers, trained, policy=self._policy.spec.name)
        self._own_optimizers = optimizers
        self._group_parameters()

    def _set_lr(self, lr: float) -> None:
        """Components with settings of their own follow their schedules; the others keep their rates."""
        for group in self._optimizer.param_groups:
            if own := self._own_optimizers.get(group.get("component", "")):
                group["lr"] = group["base_lr"] * lr_factor(own, self._num_updates)

    @property
    def rollout_settings(self) -> RolloutSettings:
        config = self._config
        return RolloutSettings(
            num_envs=config.num_envs,
            num_steps=config.rollout_steps,
            gamma=config.gamma,
            num_processes=config.num_processes,
            asynchronous=config.asynchronous,
            max_staleness=config.max_staleness if config.asynchronous else 0,
            record=config.record_episodes,
        )

    @property
    def sample_request(self) -> SampleRequest:
        """PPO samples nothing from a replay: see `rollout_settings`."""
        return SampleRequest(observation_keys=tuple(self._policy.spec.observation), rows={})

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        try:
            return self._learn(batch)
        finally:
            self._num_updates += 1  # also after a skipped update: each rollout is followed by a new version

    def _learn(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        config = self._config
        staleness = self._check_rollout(batch)
        steps = rollout_steps(batch).flatten()
        s, a = dict(steps["observation"].items()), steps["action"]
        rows, metrics = self._evaluate_rollout(batch, s, a)

        per_minibatch: dict[str, list[Tensor]] = {}  # metrics of the last epoch
        num_epochs = num_minibatches = 0
        while num_epochs < config.num_epochs:
            num_epochs += 1
            order = torch.randperm(len(a), generator=self._generator, device=self._device)
            steps = [self._step(s, a, rows, index) for index in torch.split(order, config.batch_size)]
            num_minibatches += len(steps)
            per_minibatch = {name: [step[name] for step in steps] for name in steps[0]}
            if config.target_kl is not None and _mean(per_minibatch["kl"]) > 1.5 * config.target_kl:
                break

        if config.adapt_lr and self._num_updates >= config.actor_after:
            self._adapt_lr(_mean(per_minibatch["kl"]))
        self._fit_normalizer(batch)  # for the next version: this update normalized as the rollout did
        metrics |= {name: _mean(values) for name, values in per_minibatch.items()}
        return {
            **metrics,
            "epochs": float(num_epochs),
            "passes": float(num_minibatches),
            "lr": self._lr,
            "staleness": float(staleness.float().mean()),
            "staleness_max": float(staleness.max()),
        }

    def _check_rollout(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Raise for a rollout that is not finite or too old; return the staleness of each step in versions."""
        bad = [
            name for name, values in batch.items() if values.is_floating_point() and not values.isfinite().all()
        ]
        if bad:
            raise SkippedUpdate(f"the rollout is not finite in {', '.join(bad)}")
        staleness = self._num_updates - batch["version"]
        if int(staleness.max()) > self.rollout_settings.max_staleness:
            raise FailureError(
                f"the rollout is {int(staleness.max())} versions old, but at most {self.rollout_settings.max_staleness} "
                "are allowed (algorithm.max_staleness)"
            )
        return staleness

    def _evaluate_rollout(
        self, batch: Mapping[str, Tensor], s: Mapping[str, Tensor], a: Tensor
    ) -> tuple[RolloutRows, dict[str, float]]:
        """Compute values, advantages and log-densities with the policy at the start of the update."""
        config, policy = self._config, self._policy
        num_executed = batch["num_executed"].flatten() if policy.spec.horizon > 1 else None
        with torch.no_grad():
            values, next_values = rollout_values(batch, lambda seen: self._in_parts(self._values, seen))
            log_prob_old = self._densities(s, a, num_executed)
            log_weight = log_prob_old - self._density(batch["log_prob"].flatten(0, 1), num_executed)
            log_prob_start = self._start_densities(s, a, num_executed)
        advantage = rollout_advantages(
            rollout_steps(batch), values, next_values, gamma=config.gamma, lam=config.gae_lambda
        )
        returns = advantage + values
        normalized = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        rows = RolloutRows(
            log_prob_old=log_prob_old,
            weight=log_weight.exp().clamp(max=config.max_importance_weight),
            advantage=normalized.flatten(),
            returns=returns.flatten(),
            num_executed=num_executed,
            log_prob_start=log_prob_start,
        )
        metrics = {
            "explained_variance": explained_variance(values.cpu().numpy(), returns.cpu().numpy()),
            "value": float(values.mean()),
            "behaviour_kl": float((log_weight.exp() - 1.0 - log_weight).mean()),
        }
        return rows, metrics

    def _values(self, s: Mapping[str, Tensor]) -> Tensor:
        return self._policy.value(self._policy.features(s))

    def _density(self, log_prob: Tensor, num_executed: Tensor | None) -> Tensor:
        num_axes = self._policy.spec.action.shape[0]
        return executed_density(log_prob, num_executed, num_axes=num_axes, how=self._config.chunk_density)

    def _densities(self, s: Mapping[str, Tensor], a: Tensor, num_executed: Tensor | None) -> Tensor:
        def density_of(part: Mapping[str, Tensor], drawn: Tensor) -> Tensor:
            return self._policy.evaluate_actions(self._policy.features(part), drawn)[0]

        return self._density(self._in_parts(density_of, s, a), num_executed)

    def _in_parts(self, function: Callable[..., Tensor], s: Mapping[str, Tensor], *more: Tensor) -> Tensor:
        """A function of all rows. A VLA computes one minibatch after another, because its tokens need much memory."""
        num_rows = len(next(iter(s.values())))
        if not isinstance(self._policy, HasFlatFeatures):
            return function(s, *more)
        parts = (
            slice(first, first + self._config.batch_size) for first in range(0, num_rows, self._config.batch_size)
        )
        found = [function({key: v[rows] for key, v in s.items()}, *(v[rows] for v in more)) for rows in parts]
        return torch.cat(found)

    def _start_densities(self, s: Mapping[str, Tensor], a: Tensor, num_executed: Tensor | None) -> Tensor | None:
        """Under the weights before the first update, which are put into the policy for a moment."""
        if not self._config.start_kl_coef:
            return None
        modules = trainable_components(self._policy.components, algorithm=self.name)
        newest = {name: module_state(name, module) for name, module in modules.items()}
        if not self._start:
            self._start = newest
        try:
            for name, module in modules.items():
                load_module(name, module, self._start[name])
            return self._densities(s, a, num_executed)
        finally:
            for name, module in modules.items():
                load_module(name, module, newest[name])

    def _step(self, s: Mapping[str, Tensor], a: Tensor, rows: RolloutRows, index: Tensor) -> dict[str, Tensor]:
        """Take one step on the minibatch of the rows `index`. Each process computes its share of them."""
        parts: list[tuple[dict[str, Tensor], float]] = []  # metrics and weight of each micro-batch
        own = index[self._parallel.rank :: self._parallel.size]
        weight = 1.0 if len(own) else 0.0  # a process without rows computes one for nothing, to have all metrics
        own = own if len(own) else index[:1]

        def loss_of(part: Mapping[str, Tensor]) -> tuple[Tensor, float]:
            index = part["index"]
            features = self._policy.features({key: values[index] for key, values in s.items()})
            log_prob, entropy, value = self._policy.evaluate_actions(features, a[index])
            part_rows = rows.at(index)
            log_prob = self._density(log_prob, part_rows.num_executed)
            loss, metrics = ppo_loss(self._config, part_rows, log_prob=log_prob, entropy=entropy, value=value)
            if self._num_updates < self._config.actor_after:  # the actor gets no gradient yet
                loss = self._config.value_coef * metrics["value_loss"]
            parts.append(({name: value.detach() for name, value in metrics.items()}, weight * len(index)))
            return loss, weight * len(index)

        self._minimize({"index": own}, loss_of)
        norms = {f"{name}_grad_norm": norm for name, norm in self._grad_norms.items()}
        return {**self._mean_metrics(parts), **norms}

    def _mean_metrics(self, parts: Sequence[tuple[dict[str, Tensor], float]]) -> dict[str, Tensor]:
        """Over all micro-batches and processes: all of them must agree on the KL divergence, which ends an update."""
        if self._parallel.is_single:
            return parts[0][0]
        totals = torch.stack([weight * torch.stack(list(metrics.values())) for metrics, weight in parts]).sum(0)
        total_weight = totals.new_tensor([sum(weight for _, weight in parts)])
        self._parallel.sum_([totals, total_weight])
        return dict(zip(parts[0][0], totals / total_weight, strict=True))

    @property
    def _lr(self) -> float:
        """The learning rate of the actor's mean, which is the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    @_lr.setter
    def _lr(self, lr: float) -> None:
        self._optimizer.param_groups[0]["lr"] = lr

    def _adapt_lr(self, kl: float) -> None:
        """Change the learning rate by a fixed factor, within a range around the configured one."""
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
            seen = batch[f"observation/{key}"][:, :-1]
            if key in self._policy.spec.history:
                seen = seen[..., -1, :]  # the newest tick
            moments.add(seen.flatten(0, 1).cpu().numpy())
            # two rows with the mean and standard deviation of all rollouts
            columns[key] = np.stack((moments.mean - moments.std, moments.mean + moments.std))
        self._policy.fit_normalizer(columns)

    def state_dict(self) -> Mapping[str, Array]:
        moments = {f"moments/{key}": moments.to_array() for key, moments in self._moments.items()}
        start = {f"start/{name}": v.copy() for arrays in self._start.values() for name, v in arrays.items()}
        return {**super().state_dict(), **moments, **start, "lr": np.array(self._lr)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        with raise_checkpoint_errors(self.name):
            for key, moments in self._moments.items():
                moments.load_array(state[f"moments/{key}"])
            self._lr = float(state["lr"])
            self._start = {}
            for name in (name for name in state if name.startswith("start/")):
                inner = name.removeprefix("start/")
                self._start.setdefault(inner.partition("/")[0], {})[inner] = state[name]


def _mean(values: list[Tensor]) -> float:
    return float(torch.stack(values).mean())
