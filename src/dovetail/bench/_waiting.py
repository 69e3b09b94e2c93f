"""Parts that take as long as large ones: they wait, as one does for an accelerator, and leave the cores to others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

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
from dovetail.policies.flow import Flow, FlowConfig
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["Corrector", "WaitingFlow", "WaitingHGDAgger", "WaitingRLPD", "WaitingSAC"]

_UPDATE_S = Field(default=0.0, ge=0.0)  # added to each update


class WaitingSACConfig(SACConfig):
    update_s: float = _UPDATE_S


class WaitingRLPDConfig(RLPDConfig):
    update_s: float = _UPDATE_S


class WaitingHGDAggerConfig(HGDAggerConfig):
    update_s: float = _UPDATE_S


class WaitingSAC(SAC):
    Config: ClassVar[type[WaitingSACConfig]] = WaitingSACConfig

    def __init__(self, config: WaitingSACConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(config, policy=policy, seed=seed)
        self._update_s = config.update_s

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        time.sleep(self._update_s)
        return super().update(batch)


class WaitingRLPD(RLPD):
    Config: ClassVar[type[WaitingRLPDConfig]] = WaitingRLPDConfig

    def __init__(self, config: WaitingRLPDConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(config, policy=policy, seed=seed)
        self._update_s = config.update_s

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        time.sleep(self._update_s)
        return super().update(batch)


class WaitingHGDAgger(HGDAgger):
    Config: ClassVar[type[WaitingHGDAggerConfig]] = WaitingHGDAggerConfig

    def __init__(self, config: WaitingHGDAggerConfig, *, policy: TrainablePolicy, seed: int = 0) -> None:
        super().__init__(config, policy=policy, seed=seed)
        self._update_s = config.update_s

    def update(self, batch: Mapping[str, Tensor]) -> Mapping[str, float]:
        time.sleep(self._update_s)
        return super().update(batch)


class WaitingFlowConfig(FlowConfig):
    act_s: float = Field(default=0.0, ge=0.0)
    """Added to each inference."""


class WaitingFlow(Flow):
    Config: ClassVar[type[WaitingFlowConfig]] = WaitingFlowConfig

    def __init__(self, config: WaitingFlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._act_s = config.act_s

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        time.sleep(self._act_s)
        return super().act(observations, context)


class CorrectorConfig(Config):
    every_steps: int = Field(default=44, ge=1)
    """Ticks from the beginning of one correction to that of the next; the policy has the first half of them."""


class Corrector:
    """Somebody who takes over by the clock, so that every episode holds as many corrections, and is as long."""

    Config: ClassVar[type[CorrectorConfig]] = CorrectorConfig
    name = "corrector"

    def __init__(self, config: CorrectorConfig, *, task: Task, robot: RobotSpec | None = None) -> None:
        self._every, self._expert = config.every_steps, task.expert()
        self._tick = 0

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._tick = 0
        self._expert.reset(rng)

    def poll(self, observation: Observation) -> HumanInput:
        self._tick += 1
        corrects = (self._tick - 1) % self._every >= self._every // 2
        return HumanInput(action=self._expert.act(observation)) if corrects else HumanInput()
