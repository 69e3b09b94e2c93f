"""Plugins for Ray runs that fail on command.

A test creates a file such as `signs/hang`; one plugin takes it (the file is renamed) and fails once.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import ClassVar

from dovetail.config.model import Config
from dovetail.core.errors import RobotError
from dovetail.core.types import Event, HumanInput
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler
from dovetail.testing.fakes import FakeArm, FakeArmConfig, FakeTask, FakeTaskConfig
from dovetail.testing.far_arm import hide_stop_of_run
from dovetail.testing.live import LiveArm, LiveArmConfig

__all__ = ["FaultyArm", "HangingLabeler", "PadOperator", "Slow", "UntilSignaled", "taken"]


if os.environ.get("FAR_ARMS"):  # as if each arm was on another machine
    hide_stop_of_run()


def taken(signs: str, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        (Path(signs) / name).rename(Path(signs) / f"{name}.taken")
        return True
    return False


class UntilSignaledConfig(FakeTaskConfig):
    enough: str
    """Once this file exists, every position is the goal."""


class UntilSignaled(FakeTask):
    """A task without success until a file exists; with `stop_when_solved` that ends the run."""

    Config: ClassVar = UntilSignaledConfig

    def judge(self, robot, observation, *, num_steps):
        if Path(self._config.enough).exists():
            self._config = self._config.model_copy(update={"tolerance": 1e9})
        return super().judge(robot, observation, num_steps=num_steps)


class FaultyArmConfig(LiveArmConfig):
    signs: str


class FaultyArm(LiveArm):
    """`fault`: a command fails. `broken`: the arm cannot be connected."""

    Config: ClassVar = FaultyArmConfig

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        self._signs = config.signs
        if (Path(self._signs) / "broken").exists():
            raise RobotError("no arm at the other end of the cable: plug it in")

    def send(self, action):
        if taken(self._signs, "fault"):
            raise RobotError("the elbow is stuck")
        return super().send(action)


class PadOperatorConfig(Config):
    signs: str
    sign: str = "pad"


class PadOperator:
    """A device with an emergency stop, which a sign presses."""

    Config: ClassVar = PadOperatorConfig
    name = "pad"

    def __init__(self, config, *, task=None, robot=None):
        self._config = config

    def reset(self, *, rng, robot_minutes):
        pass

    def poll(self, observation):
        pressed = taken(self._config.signs, self._config.sign)
        return HumanInput(event=Event.EMERGENCY if pressed else None)


class SlowConfig(FakeArmConfig):
    tick_s: float


class Slow(FakeArm):
    """A simulated arm whose ticks take real time."""

    Config: ClassVar = SlowConfig

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        self._tick_s = config.tick_s

    def send(self, action):
        time.sleep(self._tick_s)
        return super().send(action)


class HangingLabelerConfig(OutcomeConfig):
    signs: str


class HangingLabeler(OutcomeLabeler):
    """`hang`: the next call never returns."""

    Config: ClassVar = HangingLabelerConfig
    max_concurrent = 2

    def label(self, episode):
        if taken(self._config.signs, "hang"):
            threading.Event().wait()
        return super().label(episode)
