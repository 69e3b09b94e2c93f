"""No operator."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import HumanInput, Observation

__all__ = ["NoOperator", "NoOperatorConfig"]


class NoOperatorConfig(Config):
    """No settings."""


class NoOperator:
    """Never takes over and gives no verdicts."""

    Config: ClassVar[type[NoOperatorConfig]] = NoOperatorConfig
    name = "none"

    def __init__(
        self, config: NoOperatorConfig | None = None, *, task: Task | None = None, robot: RobotSpec | None = None
    ) -> None:
        pass

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        pass

    def poll(self, observation: Observation) -> HumanInput:
        return HumanInput()
