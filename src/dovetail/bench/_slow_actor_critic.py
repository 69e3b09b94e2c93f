"""An actor-critic that takes as long as a large one: it waits at each pass, as one does for an accelerator."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig

__all__ = ["SlowActorCritic"]


class SlowActorCriticConfig(ActorCriticConfig):
    act_s: float = Field(default=0.0, ge=0.0)
    """Added to each inference while practising, whatever the number of worlds; evaluations are as fast as they are."""
    learn_s: float = Field(default=0.0, ge=0.0)
    """Added to each pass of an update."""


class SlowActorCritic(ActorCritic):
    Config: ClassVar[type[SlowActorCriticConfig]] = SlowActorCriticConfig

    def __init__(self, config: SlowActorCriticConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._act_s, self._learn_s = config.act_s, config.learn_s
        self._acting = False

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        if not context.deterministic and self._act_s:
            time.sleep(self._act_s)
        self._acting = True
        try:
            return super().act(observations, context)
        finally:
            self._acting = False

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self._acting and self._learn_s:
            time.sleep(self._learn_s)
        return super().evaluate_actions(features, drawn)
