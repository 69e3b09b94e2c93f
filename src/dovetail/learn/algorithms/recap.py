"""RECAP: imitate everything, with the advantage of each step as an input, and act as if it were high (pi*0.6, 2025).

    V(s)   value model:   distribution of -(steps to success) / max_steps, from all episodes; failures have a large penalty
    A(s)   advantage:     -n / max_steps + V(s_n) - V(s)
    I(s)   indicator:     1 if A(s) is among the highest 30 % of its prompt, or a person acted; else -1
    pi     policy:        its own imitation loss on all steps, given I; I is left out in 30 % of the rows

The robot acts with I = 1. Nothing is differentiated through the value model, so the policy may be of any kind that reads I.

The paper alternates: collect, train the value model, train the policy from the same starting weights. Here the robot
collects while the learner learns, so both are updated continuously on all data so far. The threshold follows the newest
advantages, as a new iteration would set it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import Array, SampleRequest, View, Window
from dovetail.learn.adam import Optimizers
from dovetail.learn.algorithms._step_values import (
    StepValues,
    Thresholds,
    advantages,
    prompt_numbers,
    steps_to_returns,
)
from dovetail.learn.algorithms.settings import RECAPConfig
from dovetail.learn.batches import observations_of
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.descent import Descent
from dovetail.learn.state import load_module, module_state, raise_checkpoint_errors
from dovetail.policies.random_draws import uniform
from dovetail.policies.trainable import ADVANTAGE, AdvantageConditioned, TrainablePolicy, flat_features

__all__ = ["RECAP", "RECAPConfig"]


class RECAP(Descent):
    """See the Algorithm contract. Before the first online step, batches are all demonstrations."""

    Config: ClassVar[type[RECAPConfig]] = RECAPConfig
    name: ClassVar[str] = "recap"

    def __init__(self, config: RECAPConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if not isinstance(policy, AdvantageConditioned) or not policy.takes_advantage:
            raise UsageError(
                f"algorithm 'recap' needs a policy that reads an advantage indicator, and '{policy.spec.name}' does not. "
                "Use policy 'flow', 'pi0', 'pi05' or 'smolvla' with policy.advantage_input=true"
            )
        super().__init__(
            policy,
            seed=seed,
            max_grad_norm=config.max_grad_norm,
            average=config.average,
            lr=config.lr,
            weight_decay=config.weight_decay,
        )
        self._config = config
        self._num_demo = round(config.batch_size * config.demo_share)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._values = StepValues(
                num_features=policy.num_features, hidden=config.value_hidden, num_bins=config.num_bins
            ).to(self._device)
        self._value_optimizer = Optimizers(lr=config.value_lr, max_grad_norm=config.max_grad_norm)
        self._value_optimizer.add("values", list(self._values.parameters()))
        self._thresholds = Thresholds(positive_share=config.positive_share, num_recent=config.num_recent)

    @property
    def sample_request(self) -> SampleRequest:
        config, spec = self._config, self._policy.spec
        return SampleRequest(
            observation_keys=spec.learned_keys,
            rows={View(part="demo"): self._num_demo, View(part="online"): config.batch_size - self._num_demo},
            window=Window(num_steps=config.num_steps, horizon=spec.horizon, history=spec.history),
            outcomes=True,
            prompts=spec.prompted,
            when_empty=View(),
        )

    def set_parallel(self, parallel: DataParallel) -> None:
        if parallel.size > 1:  # each process would have thresholds of its own
            raise UsageError("algorithm 'recap' learns in one process only. Set learner.ranks=1")
        super().set_parallel(parallel)

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        config, chunked = self._config, self._policy.spec.horizon > 1
        with torch.no_grad():  # the policy's loss alone trains its encoders
            s, s_after = (self._flat_features(batch, side) for side in ("observation", "next"))
        returns = steps_to_returns(
            batch["steps_to_end"],
            batch["success"],
            max_steps=config.max_steps,
            failure_steps=config.max_steps if config.failure_steps is None else config.failure_steps,
        )
        with torch.no_grad():
            v, v_after = self._values(s), self._values(s_after)
        advantage = advantages(
            returns, batch["steps_to_end"], v, v_after, num_steps=config.num_steps, max_steps=config.max_steps
        )
        human = batch["human"][:, 0] if chunked else batch["human"]  # a person began the chunk
        indicator = self._indicators(batch, advantage, human)
        dropped = uniform((len(indicator),), generator=self._generator, device=self._device) < config.dropped_share
        tensors = {name: batch[name] for name in batch.keys()}  # noqa: SIM118 - a TensorDict is not a dict
        step = self._minimize({**tensors, ADVANTAGE: torch.where(dropped, 0, indicator)}, self._loss)
        value_loss = self._values.loss(s, returns)
        self._value_optimizer.step(value_loss, "values")
        self._num_updates += 1
        return {
            "value_loss": value_loss.item(),
            "value_error": (v - returns).abs().mean().item(),
            "positive_share": (indicator > 0).float().mean().item(),
            **({"imitation_loss": step[0].item()} if step else {}),
        }

    def _indicators(self, batch: Mapping[str, Tensor], advantage: Tensor, human: Tensor) -> Tensor:
        """1 or -1 for each row, and new thresholds from the rows that people did not decide."""
        prompts = torch.zeros(len(advantage), dtype=torch.int64, device=self._device)
        if self._policy.spec.prompted:
            prompts = prompt_numbers(batch["prompt"])
        certain = human.clone()
        if not self._config.demos_positive:
            certain[: self._num_demo] = False
        self._thresholds.add(advantage[~certain], prompts[~certain])
        positive = certain | (advantage >= self._thresholds.of(prompts))
        return torch.where(positive, 1, -1)

    def _loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | float]:
        observations = {**self._inputs(batch, "observation"), ADVANTAGE: batch[ADVANTAGE]}
        features = self._policy.features(observations)
        actions = self._policy.normalize_actions(batch["action"], observations)
        mask = None
        if self._policy.spec.horizon > 1:  # up to the end, or to where control changed between person and policy
            human = batch["human"]
            mask = batch["action/mask"] & (human == human[:, :1]).cumprod(dim=1).bool()
        loss = self._policy.imitation_loss(features, actions, mask, generator=self._generator)
        return loss, float(len(actions)) if mask is None else mask.sum()

    def _flat_features(self, batch: Mapping[str, Tensor], side: str) -> Tensor:
        return flat_features(self._policy, self._policy.features(self._inputs(batch, side)))

    def _inputs(self, batch: Mapping[str, Tensor], side: str) -> dict[str, Tensor]:
        observations = observations_of(batch, side)
        if self._policy.spec.prompted:
            observations["prompt"] = batch["prompt"]
        return observations

    # ---- checkpoints

    def state_dict(self) -> Mapping[str, Array]:
        return {
            **super().state_dict(),
            **module_state("values", self._values),
            **self._value_optimizer.state_dict(),
            **self._thresholds.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        with raise_checkpoint_errors(self.name):
            load_module("values", self._values, state)
            self._value_optimizer.load_state_dict(state)
            self._thresholds.load_state_dict(state)
