"""Residual RL: correct a frozen policy by a bounded action (Policy Decorator, ResiP, HiL-ResRL).

    a = clip(a_base + lambda * u),   u = tanh(...) ~ pi(o, a_base)
    Q(o, a_base, a)  takes the total action, so steps of the base, of the corrected policy and of people all teach it
    pi               minimizes alpha log pi(u) - Q(o, a_base, a) + bc_weight * imitation loss of what people did

The update is that of RLPD. What is added is the schedule of lambda: 0 for the first `base_updates` updates, in which the
base acts alone and the critic learns from it, then growing to its limit over `growth_updates`. a_base comes from the
replay: no update calls the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import SampleRequest, View
from dovetail.learn.algorithms._soft_actor_critic import prior_and_online
from dovetail.learn.algorithms.rlpd import RLPD
from dovetail.learn.algorithms.settings import ResidualRLConfig
from dovetail.policies.residual import ResidualPolicy
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["ResidualRL", "ResidualRLConfig"]


class ResidualRL(RLPD):
    """See the Algorithm contract."""

    Config: ClassVar[type[ResidualRLConfig]] = ResidualRLConfig
    name: ClassVar[str] = "residual"
    _config: ResidualRLConfig

    def __init__(self, config: ResidualRLConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if not isinstance(policy, ResidualPolicy):
            raise UsageError(
                f"algorithm 'residual' trains policy 'residual', not '{policy.spec.name}'. Set policy.type=residual"
            )
        super().__init__(config, policy=policy, seed=seed)
        self._residual = policy.residual

    @property
    def sample_request(self) -> SampleRequest:
        config = self._config
        rows = prior_and_online(config.batch_size, config.prior_fraction)
        num_successful = round(config.batch_size * config.success_fraction)
        rows[View(part="online")] -= num_successful
        rows[View(part="accepted")] = num_successful
        return self._sample_request(rows)

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        share = self.share_after(self._num_updates + 1)
        for actor in (self._residual, self._averaged["residual"]):
            actor.get_buffer("share").fill_(share)
        return {**super().update(batch), "correction_share": share}

    def share_after(self, num_updates: int) -> float:
        """The share of the largest correction after this many updates."""
        grown = (num_updates - self._config.base_updates) / self._config.growth_updates
        return min(max(grown, 0.0), 1.0)

    def _actor_is_due(self) -> bool:
        """Not while the base acts alone."""
        return super()._actor_is_due() and self._num_updates + 1 > self._config.base_updates
