"""The task's scripted expert as an operator: demonstrates, takes over when the policy is stuck, and gives verdicts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.abilities import TakesOverPart
from dovetail.core.contracts import Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation

__all__ = ["Demonstrator", "ScriptedConfig", "ScriptedOperator"]


class ScriptedConfig(Config):
    """A scripted operator."""

    BASIC: ClassVar[Collection[str]] = ("watched_share", "fade_out_minutes")
    RENAMED: ClassVar[Mapping[str, str]] = {
        "share": "watched_share",
        "fade_minutes": "fade_out_minutes",
        "patience_steps": "stuck_after_steps",
        "min_steps": "min_takeover_steps",
        "max_steps": "max_takeover_steps",
    }

    watched_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Initial fraction of the episodes in which the operator may take over."""
    fade_out_minutes: float = Field(default=10.0, gt=0.0)
    """Robot time in minutes over which `watched_share` falls to zero."""
    stuck_after_steps: int = Field(default=10, ge=1)
    """Control steps over which progress is measured."""
    min_progress: float = Field(default=0.03, ge=0.0)
    """The operator takes over if progress within `stuck_after_steps` is below this."""
    min_takeover_steps: int = Field(default=8, ge=1)
    """Shortest takeover in control steps. Each length is random."""
    max_takeover_steps: int = Field(default=20, ge=1)
    """Longest takeover in control steps."""
    noise: float = Field(default=0.3, ge=0.0)
    """Noise of the expert during a takeover; 0 is exact."""


class ScriptedOperator:
    """Takes over in some of the episodes when the policy is stuck; in fewer episodes as robot time grows."""

    Config: ClassVar[type[ScriptedConfig]] = ScriptedConfig
    name = "scripted"

    def __init__(self, config: ScriptedConfig, *, task: Task, robot: RobotSpec | None = None) -> None:
        self._config = config
        self._expert = task.expert()
        self._rng = np.random.default_rng(0)
        self._watching = False
        self._steps_left = 0
        self._axes: Array | None = None  # that the takeover drives; None: all
        self._recent: deque[float] = deque(maxlen=config.stuck_after_steps + 1)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        config = self._config
        self._rng = rng
        share = config.watched_share * max(0.0, 1.0 - robot_minutes / config.fade_out_minutes)
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
            self._steps_left = int(
                self._rng.integers(self._config.min_takeover_steps, self._config.max_takeover_steps + 1)
            )
            self._axes = self._takeover_axes(observation)
        if self._steps_left == 0:
            return HumanInput()
        self._steps_left -= 1
        if self._steps_left == 0:
            self._recent.clear()  # measure the policy's progress from here
        return HumanInput(action=self._expert.act(observation), axes=self._axes)

    def _takeover_axes(self, observation: Observation) -> Array | None:
        """Axes of a takeover. They stay the same until its end."""
        return self._expert.takeover_axes(observation) if isinstance(self._expert, TakesOverPart) else None

    def _stuck(self) -> bool:
        full = len(self._recent) == self._recent.maxlen
        return full and self._recent[-1] - self._recent[0] < self._config.min_progress


class Demonstrator:
    """The expert during the whole episode, for demonstrations."""

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
