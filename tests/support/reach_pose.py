"""A task on a table that an arm can judge by itself: bring all joints to a marked pose and stay there."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dovetail.core.contracts import Robot
from dovetail.core.types import Observation, Outcome, Verdict
from dovetail.tasks.table import TableConfig, TableTask


class ReachPoseConfig(TableConfig):
    """The table's settings, and the pose."""

    needs_verdict: ClassVar[bool] = False

    goal: tuple[float, ...]
    """Joint positions to reach, in rad."""
    tolerance_rad: float = 0.06
    """Largest difference of a joint."""
    hold_s: float = 0.4
    """Seconds for which all joints must be there."""


class ReachPose(TableTask):
    """Success: every joint is within the tolerance of its goal for `hold_s`."""

    Config: ClassVar[type[TableConfig]] = ReachPoseConfig
    needs_verdict: ClassVar[bool] = False

    def __init__(self, config: ReachPoseConfig) -> None:
        super().__init__(config)
        self._settings = config
        self._num_there = 0

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        error_rad = float(np.abs(observation.values["joint_pos"] - np.array(self._settings.goal)).max())
        is_there = error_rad <= self._settings.tolerance_rad
        self._num_there = self._num_there + 1 if is_there and num_steps > 0 else 0
        verdict = super().judge(robot, observation, num_steps=num_steps)
        if self._num_there > self._settings.hold_s * robot.spec.control_hz:
            self._num_there = 0
            return Verdict(outcome=Outcome.SUCCESS, rewards={"success": 1.0}, metrics={"error_rad": error_rad})
        return Verdict(outcome=verdict.outcome, rewards=verdict.rewards, metrics={"error_rad": error_rad})
