"""A person at a device: starts an episode when asked, moves the first axis for a second, and reports success."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event, HumanInput, Observation


class PersonConfig(Config):
    """A scripted person."""

    num_steps: int = 15
    """Steps until success."""


class Person:
    Config: ClassVar[type[PersonConfig]] = PersonConfig
    demonstrates: ClassVar[bool] = True

    def __init__(self, config: PersonConfig, *, task: Task, robot: RobotSpec) -> None:
        self._config, self._robot, self._num_polls = config, robot, 0

    @property
    def name(self) -> str:
        return "person"

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._num_polls = 0

    def poll(self, observation: Observation) -> HumanInput:
        self._num_polls += 1
        if self._num_polls == 1:
            return HumanInput(event=Event.START)
        event = Event.SUCCESS if self._num_polls > self._config.num_steps else None
        return HumanInput(action=self._action(observation), event=event)

    def _action(self, observation: Observation) -> Any:
        action = np.concatenate((observation.values["joint_pos"], observation.values["gripper"])).astype(
            np.float32
        )
        action[0] += 0.04
        return action
