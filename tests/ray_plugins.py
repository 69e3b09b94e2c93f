"""What runs on Ray are made of in tests that kill them: quick, and over only when the test says so."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from dovetail.testing.fakes import FakeTask, FakeTaskConfig

__all__ = ["UntilTold"]


class UntilToldConfig(FakeTaskConfig):
    enough: str
    """Once there is such a file, wherever the arm stands is the goal."""


class UntilTold(FakeTask):
    """A task that nobody solves before somebody says that it is enough; with `stop_when_solved` that ends a run."""

    Config: ClassVar = UntilToldConfig

    def judge(self, robot, observation, *, num_steps):
        if Path(self._config.enough).exists():
            self._config = self._config.model_copy(update={"tolerance": 1e9})
        return super().judge(robot, observation, num_steps=num_steps)
