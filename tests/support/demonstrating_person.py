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
        """Targets stay where they are measured, all else is zero; the first axis moves."""
        robot = self._robot
        action = np.zeros(robot.action.shape, np.float32)
        for part in robot.parts:
            if part.measured and part.kind in ("joint_target", "gripper"):
                here = observation.values[part.measured_key].reshape(-1)[part.measured_slice]
                action[robot.slice_of(part.name)] = here
        action[0] += robot.parts[0].high[0] if robot.parts[0].is_delta else 0.04
        return action
