"""SAC-Flow: soft actor-critic whose actor is a flow of a few steps (Zhang et al., 2025).

An action is tanh(x_K), at the end of a path from x_0 ~ N(0, I) with noise on its way (policies/velocity.py):

    x_{k+1} = x_k + b dt + sigma sqrt(dt) e_k,    b = v + sigma^2 / 2 * (t v - x) / (1 - t)

The density of such an action is not to be had, that of the path to it is:

    log p = log N(x_0; 0, I) + sum_k log N(x_{k+1}; x_k + b dt, sigma^2 dt) - log |d tanh / d x_K|

and takes the place of log pi. All else is RLPD, with the flow's own matching loss where people are cloned. Gradients
of the critic and of the density reach v and sigma through all K steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.policies.flow_actor import FlowActor
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["SACFlow", "SACFlowConfig"]


class SACFlowConfig(RLPDConfig):
    target_entropy: float | None = None
    """Of a whole path. None: that of x_0, which nothing can change, and minus the number of action dimensions for each
    step, which is what SAC asks of its one."""


class SACFlow(RLPD):
    """See the Algorithm contract."""

    Config: ClassVar[type[RLPDConfig]] = SACFlowConfig
    name: ClassVar[str] = "sac_flow"

    def __init__(self, config: SACFlowConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        if not isinstance(policy, FlowActor):  # said before anything moves
            raise UsageError(
                f"algorithm 'sac_flow' trains policy 'flow_actor', which knows the density of its paths, and not "
                f"'{policy.spec.name}'"
            )
        super().__init__(config, policy=policy, seed=seed)

    @staticmethod
    def _usual_entropy(policy: TrainablePolicy) -> float:
        assert isinstance(policy, FlowActor)
        of_start = 0.5 * math.log(2.0 * math.pi * math.e)
        return policy.spec.action.shape[0] * (of_start - policy.num_flow_steps)

    def _learn(self, batch: Mapping[str, Tensor], *, variant: bool | None = None) -> dict[str, Tensor | float]:
        """The norms tell whether gradients stay tame on their way through the steps: the actor's own, before clipping."""
        metrics = super()._learn(batch, variant=variant)
        metrics["critic_grad_norm"] = self._grad_norms["critic"]
        if "actor_loss" in metrics:
            metrics["actor_grad_norm"] = self._grad_norms["actor"]
        return metrics
