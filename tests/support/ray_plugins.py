"""What runs on Ray are made of in tests that harm them: quick, over only when the test says so, and ill when it says so.

A test gives a sign by a file in a folder, `signs/hang` say; whoever takes it (the file is gone then) does it, once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import ClassVar

from dovetail.core.errors import RobotError
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler
from dovetail.testing.fakes import FakeArm, FakeArmConfig, FakeTask, FakeTaskConfig
from dovetail.testing.live import LiveArm, LiveArmConfig

__all__ = ["Faulty", "Hangs", "Slow", "UntilTold", "taken"]


def taken(signs: str, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        (Path(signs) / name).rename(Path(signs) / f"{name}.taken")
        return True
    return False


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


class FaultyConfig(LiveArmConfig):
    signs: str


class Faulty(LiveArm):
    """`fault`: the arm refuses a command. `broken`: it cannot even be found."""

    Config: ClassVar = FaultyConfig

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        self._signs = config.signs
        if (Path(self._signs) / "broken").exists():
            raise RobotError("no arm at the other end of the cable: plug it in")

    def send(self, action):
        if taken(self._signs, "fault"):
            raise RobotError("the elbow is stuck")
        return super().send(action)


class SlowConfig(FakeArmConfig):
    tick_s: float


class Slow(FakeArm):
    """In simulated time, and yet not over at once."""

    Config: ClassVar = SlowConfig

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        self._tick_s = config.tick_s

    def send(self, action):
        time.sleep(self._tick_s)
        return super().send(action)


class HangsConfig(OutcomeConfig):
    signs: str


class Hangs(OutcomeLabeler):
    """`hang`: whoever is asked next never answers."""

    Config: ClassVar = HangsConfig
    max_concurrent = 2

    def label(self, episode):
        if taken(self._config.signs, "hang"):
            threading.Event().wait()
        return super().label(episode)
