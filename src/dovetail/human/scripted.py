"""The task's expert as a person: shows the task, or watches, takes over when nothing moves on, and judges."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event, HumanInput, Observation

__all__ = ["Demonstrator", "ScriptedConfig", "ScriptedOperator"]


class ScriptedConfig(Config):
    share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the episodes that the person watches at first; falls to none over `fade_minutes`."""
    fade_minutes: float = Field(default=10.0, gt=0.0)
    patience_steps: int = Field(default=10, ge=1)
    """Ticks without progress before taking over."""
    min_progress: float = Field(default=0.03, ge=0.0)
    """Progress within `patience_steps` below which the person thinks the policy is stuck."""
    min_steps: int = Field(default=8, ge=1)
    max_steps: int = Field(default=20, ge=1)
    """A correction lasts this many ticks, drawn anew each time: short corrections, often."""
    noise: float = Field(default=0.3, ge=0.0)


class ScriptedOperator:
    """Watches some of the episodes, fewer as the robot grows up, and helps where the policy is stuck."""

    Config: ClassVar[type[ScriptedConfig]] = ScriptedConfig
    name = "scripted"

    def __init__(self, config: ScriptedConfig, *, task: Task, robot: RobotSpec | None = None) -> None:
        self._config = config
        self._expert = task.expert()
        self._rng = np.random.default_rng(0)
        self._watching = False
        self._steps_left = 0
        self._recent: deque[float] = deque(maxlen=config.patience_steps + 1)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        config = self._config
        self._rng = rng
        share = config.share * max(0.0, 1.0 - robot_minutes / config.fade_minutes)
        self._watching = bool(rng.random() < share)
        self._steps_left = 0
        self._recent.clear()
        self._expert.reset(rng, noise=config.noise)

    def poll(self, observation: Observation) -> HumanInput:
        progress = self._expert.progress(observation)
        if progress >= 1.0:
            return HumanInput(event=Event.SUCCESS)
        if not self._watching:
            return HumanInput()
        self._recent.append(progress)
        if self._steps_left == 0 and self._stuck():
            self._steps_left = int(self._rng.integers(self._config.min_steps, self._config.max_steps + 1))
        if self._steps_left == 0:
            return HumanInput()
        self._steps_left -= 1
        if self._steps_left == 0:
            self._recent.clear()  # handed back: the policy gets its full patience again
        return HumanInput(action=self._expert.act(observation))

    def _stuck(self) -> bool:
        full = len(self._recent) == self._recent.maxlen
        return full and self._recent[-1] - self._recent[0] < self._config.min_progress


class Demonstrator:
    """The expert from beginning to end, as `collect` uses it."""

    name = "scripted"

    def __init__(self, *, task: Task, noise: float) -> None:
        self._expert = task.expert()
        self._noise = noise

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._expert.reset(rng, noise=self._noise)

    def poll(self, observation: Observation) -> HumanInput:
        if self._expert.progress(observation) >= 1.0:
            return HumanInput(event=Event.SUCCESS)
        return HumanInput(action=self._expert.act(observation))
