"""HG-DAgger: clone what a person did where they took over, beside the demonstrations (Kelly et al., 2019).

Who watches decides when the policy errs, so corrections lie where the policy goes and must not. Of those only whole
chunks are learned from: a chunk that a person began and the policy ended is nobody's plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.types import Array, SampleRequest, View, Window
from dovetail.learn.batches import side
from dovetail.learn.state import (
    load_optimizer,
    load_policy,
    optimizer_state,
    policy_state,
    refuse_misfits,
)
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["HGDAgger", "HGDAggerConfig"]


class HGDAggerConfig(Config):
    batch_size: int = Field(default=64, ge=1)
    demo_share: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of each batch that is drawn from demonstrations; the rest are corrections."""
    lr: float = Field(default=1e-4, gt=0.0)
    """1e-5 for a large pretrained policy, up to 1e-3 for a small one."""
    weight_decay: float = Field(default=1e-4, ge=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)


class HGDAgger:
    """See the Algorithm contract. Before the first whole correction all of a batch are demonstrations; without any,
    nothing is learned until somebody takes over."""

    Config: ClassVar[type[HGDAggerConfig]] = HGDAggerConfig

    def __init__(self, config: HGDAggerConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        self._config = config
        self._policy = policy
        self._parameters = [p for module in policy.components.values() for p in module.parameters()]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._num_updates = 0

    @property
    def wants(self) -> SampleRequest:
        config, spec = self._config, self._policy.spec
        whole = View(part="human", min_run=spec.horizon)
        num_demo = round(config.batch_size * config.demo_share)
        return SampleRequest(
            observation_keys=tuple(spec.observation),
            rows={View(part="demo"): num_demo, whole: config.batch_size - num_demo},
            window=Window(horizon=spec.horizon, history=spec.history),
            next_observations=False,
            prompts=spec.prompted,
            when_empty=View(part="prior", min_run=spec.horizon),  # of the two kinds, the one that there is
            waits=True,
            shares={"whole_correction": (whole, View(part="human"))},  # from the rest no whole chunk follows
        )

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        seen = side(batch, "observation")
        if self._policy.spec.prompted:
            seen["prompt"] = batch["prompt"]
        features = self._policy.features(seen)
        actions = self._policy.normalize_actions(batch["action"])
        mask = batch["action/mask"] if self._policy.spec.horizon > 1 else None  # past the end of a demonstration
        loss = self._policy.imitation_loss(features, actions, mask, generator=self._generator)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        self._optimizer.step()
        self._num_updates += 1
        return {"imitation_loss": loss.item()}

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._policy.weights()

    def state_dict(self) -> Mapping[str, Array]:
        return {
            "num_updates": np.array(self._num_updates, np.int64),
            "generator": self._generator.get_state().numpy().copy(),
            **policy_state(self._policy),
            **optimizer_state("imitation", self._optimizer),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        with refuse_misfits("hg_dagger"):
            load_policy(self._policy, state)
            load_optimizer("imitation", self._optimizer, state)
            self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
            self._num_updates = int(state["num_updates"])
