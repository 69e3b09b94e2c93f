"""HG-DAgger: clone what a person did where they took over, beside the demonstrations (Kelly et al., 2019).

Who watches decides when the policy errs, so corrections lie where the policy goes and must not. Of those only whole
chunks are learned from: a chunk that a person began and the policy ended is nobody's plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.types import SampleRequest, View, Window
from dovetail.learn.descent import Descent
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
    average: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The robot gets a running average of the policy, this share of it old at each update: 0.999 sways less than the
    latest step. 0: no average."""


class HGDAgger(Descent):
    """See the Algorithm contract. Before the first whole correction all of a batch are demonstrations; without any,
    nothing is learned until somebody takes over."""

    Config: ClassVar[type[HGDAggerConfig]] = HGDAggerConfig
    name: ClassVar[str] = "hg_dagger"
    learns_from_running: ClassVar[bool] = True  # a correction is one, however the episode ends

    def __init__(self, config: HGDAggerConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(
            policy,
            seed=seed,
            max_grad_norm=config.max_grad_norm,
            average=config.average,
            lr=config.lr,
            weight_decay=config.weight_decay,
        )
        self._config = config

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
        done = self._descend(batch, self._loss)
        self._num_updates += 1
        return {"imitation_loss": done[0].item()} if done else {}

    def _loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | float]:
        features = self._policy.features(self._seen(batch))
        actions = self._policy.normalize_actions(batch["action"])
        mask = batch["action/mask"] if self._policy.spec.horizon > 1 else None  # past the end of a demonstration
        loss = self._policy.imitation_loss(features, actions, mask, generator=self._generator)
        return loss, float(len(actions)) if mask is None else mask.sum()
