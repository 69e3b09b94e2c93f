"""A person as an operator plugin: presses start, drives in demonstrations, and judges after some polls."""

from typing import ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.types import Event, HumanInput


class TablePersonConfig(Config):
    """When the person does what, in polls."""

    start_at: int = 2
    """Poll at which start is pressed."""
    judge_at: int = 8
    """Poll at which the verdict is pressed."""
    verdict: str = "success"
    """The pressed event; empty: none."""
    drives: bool = True
    """Whether the person drives after start."""


class TablePerson:
    Config: ClassVar[type[TablePersonConfig]] = TablePersonConfig
    demonstrates: ClassVar[bool] = True
    name = "table_person"

    def __init__(self, config, *, task=None, robot=None):
        self._config, self._robot, self._num_polls = config, robot, 0

    def reset(self, *, rng, robot_minutes):
        self._num_polls = 0

    def poll(self, observation):
        self._num_polls += 1
        config = self._config
        if self._num_polls == config.start_at:
            return HumanInput(event=Event.START)
        if config.verdict and self._num_polls >= config.judge_at:
            return HumanInput(event=Event(config.verdict))
        if self._num_polls > config.start_at and config.drives:
            low, high = self._robot.action.bounds
            action = np.clip(np.zeros(low.shape, np.float32), low, high)
            for part in self._robot.parts:
                if part.kind in ("joint_target",):
                    action[self._robot.slice_of(part.name)] = observation.values[part.measured_key][
                        part.measured_slice
                    ]
            return HumanInput(action=action)
        return HumanInput()
