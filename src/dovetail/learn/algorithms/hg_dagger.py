"""HG-DAgger: clone demonstrations and an operator's corrections (Kelly et al., 2019).

The operator takes over when the policy errs, so corrections are in states that the policy reaches. Only whole chunks of a
correction are cloned: a chunk that the policy finished is not the operator's plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.types import SampleRequest, View, Window
from dovetail.learn.descent import Descent
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["HGDAgger", "HGDAggerConfig"]


class HGDAggerConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("batch_size", "lr")

    batch_size: int = Field(default=64, ge=1)
    """Steps, or chunks, in one batch."""
    demo_share: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of each batch drawn from demonstrations; the rest are corrections."""
    lr: float = Field(default=1e-4, gt=0.0)
    """Learning rate: 1e-5 for a large pretrained policy, up to 1e-3 for a small one."""
    weight_decay: float = Field(default=1e-4, ge=0.0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Norm to which the gradient is clipped."""
    average: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The robot gets a moving average of the weights; this share of it is kept at each update, for example 0.999. 0: the
    latest weights."""


class HGDAgger(Descent):
    """See the Algorithm contract. Before the first whole correction, batches are all demonstrations. Without demonstrations,
    learning waits for the first correction."""

    Config: ClassVar[type[HGDAggerConfig]] = HGDAggerConfig
    name: ClassVar[str] = "hg_dagger"
    learns_from_running: ClassVar[bool] = True  # a correction does not depend on the episode's outcome

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
    def sample_request(self) -> SampleRequest:
        config, spec = self._config, self._policy.spec
        whole_corrections = View(part="human", min_source_run=spec.horizon)
        num_demo = round(config.batch_size * config.demo_share)
        return SampleRequest(
            observation_keys=tuple(spec.observation),
            rows={View(part="demo"): num_demo, whole_corrections: config.batch_size - num_demo},
            window=Window(horizon=spec.horizon, history=spec.history),
            next_observations=False,
            prompts=spec.prompted,
            when_empty=View(part="prior", min_source_run=spec.horizon),  # while one of the two has no steps
            waits=True,
            shares={"whole_correction": (whole_corrections, View(part="human"))},
        )

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        step = self._minimize(batch, self._loss)
        self._num_updates += 1
        return {"imitation_loss": step[0].item()} if step else {}

    def _loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | float]:
        features = self._policy.features(self._observations(batch))
        actions = self._policy.normalize_actions(batch["action"])
        mask = batch["action/mask"] if self._policy.spec.horizon > 1 else None  # false past a demonstration's end
        loss = self._policy.imitation_loss(features, actions, mask, generator=self._generator)
        return loss, float(len(actions)) if mask is None else mask.sum()
