"""A fake task with stages, to test prompts that change while an episode runs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.core.contracts import Robot
from dovetail.core.types import Observation, Verdict
from dovetail.testing.fakes import FakeTask, FakeTaskConfig

__all__ = ["StagedTask", "StagedTaskConfig"]


class StagedTaskConfig(FakeTaskConfig):
    """Reach a goal, in stages."""

    stages: tuple[str, ...] = Field(default=("open the lid", "put the cube into the box"), min_length=1)
    """Prompts of the stages."""
    steps_per_stage: int = Field(default=4, ge=1)
    """Steps until the next stage begins. The last stage lasts to the end."""


class StagedTask(FakeTask):
    """Like FakeTask; its prompt changes every `steps_per_stage` steps."""

    Config: ClassVar[type[StagedTaskConfig]] = StagedTaskConfig

    def __init__(self, config: StagedTaskConfig) -> None:
        super().__init__(config)
        self._stages, self._steps_per_stage = config.stages, config.steps_per_stage
        self._stage = 0

    @property
    def prompt(self) -> str:
        return self._stages[0]

    @property
    def stage_prompt(self) -> str:
        return self._stages[self._stage]

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        super().reset(robot, rng=rng)
        self._stage = 0

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        self._stage = min(num_steps // self._steps_per_stage, len(self._stages) - 1)
        return super().judge(robot, observation, num_steps=num_steps)
