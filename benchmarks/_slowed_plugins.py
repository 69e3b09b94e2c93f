"""Plugins that are as slow as large models: they sleep, as one waits for a GPU, and leave the CPU to other processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, HumanInput, Observation
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.flows.flow import Flow, FlowConfig

__all__ = ["PeriodicCorrector", "SlowActorCritic", "SlowFlow", "SlowHGDAgger", "SlowRLPD", "SlowSAC"]

_SECONDS = Field(default=0.0, ge=0.0)


class _SlowUpdates:
    """Mixin of an algorithm: sleeps before each update."""

    def __init__(self, config: Any, **arguments: Any) -> None:
        super().__init__(config, **arguments)  # type: ignore[call-arg]
        self._update_s = float(config.update_s)

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        time.sleep(self._update_s)
        metrics: Mapping[str, float] = super().update(batch)  # type: ignore[misc]
        return metrics


class SlowSACConfig(SACConfig):
    update_s: float = _SECONDS
    """Seconds added to each update."""


class SlowSAC(_SlowUpdates, SAC):
    Config: ClassVar[type[SlowSACConfig]] = SlowSACConfig


class SlowRLPDConfig(RLPDConfig):
    update_s: float = _SECONDS
    """Seconds added to each update."""


class SlowRLPD(_SlowUpdates, RLPD):
    Config: ClassVar[type[SlowRLPDConfig]] = SlowRLPDConfig


class SlowHGDAggerConfig(HGDAggerConfig):
    update_s: float = _SECONDS
    """Seconds added to each update."""


class SlowHGDAgger(_SlowUpdates, HGDAgger):
    Config: ClassVar[type[SlowHGDAggerConfig]] = SlowHGDAggerConfig


class SlowFlowConfig(FlowConfig):
    act_s: float = _SECONDS
    """Seconds added to each inference."""


class SlowFlow(Flow):
    Config: ClassVar[type[SlowFlowConfig]] = SlowFlowConfig

    def __init__(self, config: SlowFlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._act_s = config.act_s

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        time.sleep(self._act_s)
        return super().act(observations, context)


class SlowActorCriticConfig(ActorCriticConfig):
    act_s: float = _SECONDS
    """Seconds added to each inference of training rollouts, for any number of environments; evaluations add none."""
    learn_s: float = _SECONDS
    """Seconds added to each pass of an update."""


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


class PeriodicCorrectorConfig(Config):
    every_steps: int = Field(default=44, ge=1)
    """Ticks from the start of one correction to the start of the next. The policy acts in the first half of them."""


class PeriodicCorrector:
    """An operator who takes over at fixed ticks: every episode has as many corrections and the same length."""

    Config: ClassVar[type[PeriodicCorrectorConfig]] = PeriodicCorrectorConfig
    name = "corrector"

    def __init__(self, config: PeriodicCorrectorConfig, *, task: Task, robot: RobotSpec | None = None) -> None:
        self._every, self._expert = config.every_steps, task.expert()
        self._tick = 0

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._tick = 0
        self._expert.reset(rng)

    def poll(self, observation: Observation) -> HumanInput:
        self._tick += 1
        corrects = (self._tick - 1) % self._every >= self._every // 2
        return HumanInput(action=self._expert.act(observation)) if corrects else HumanInput()
