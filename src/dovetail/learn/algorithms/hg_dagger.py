"""HG-DAgger: clone demonstrations and an operator's corrections (Kelly et al., 2019).

The operator takes over when the policy errs, so corrections are in states that the policy reaches. Only whole chunks of a
correction are cloned: a chunk that the policy finished is not the operator's plan. If the operator takes over one of two
arms, the axes of that arm are cloned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from dovetail.core.action_parts import drives_in_parts
from dovetail.core.types import SampleRequest, View, Window
from dovetail.learn.algorithms.settings import HGDAggerConfig
from dovetail.learn.batches import only_driven_axes
from dovetail.learn.descent import Descent
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["HGDAgger", "HGDAggerConfig"]


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
            observation_keys=spec.learned_keys,
            rows={View(part="demo"): num_demo, whole_corrections: config.batch_size - num_demo},
            window=Window(horizon=spec.horizon, history=spec.history),
            next_observations=False,
            prompts=spec.prompted,
            human_axes=drives_in_parts(spec.parts),
            when_empty=View(part="prior", min_source_run=spec.horizon),  # while one of the two has no steps
            waits=True,
            shares={"whole_correction": (whole_corrections, View(part="human"))},
        )

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        step = self._minimize(batch, self._loss)
        self._num_updates += 1
        return {"imitation_loss": step[0].item()} if step else {}

    def _loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | float]:
        observations = self._observations(batch)
        features = self._policy.features(observations)
        actions = self._policy.normalize_actions(batch["action"], observations)
        exists = (
            batch["action/mask"] if self._policy.spec.horizon > 1 else None
        )  # false past a demonstration's end
        mask = only_driven_axes(exists, batch)
        loss = self._policy.imitation_loss(features, actions, mask, generator=self._generator)
        return loss, float(len(actions)) if mask is None else mask.sum()
