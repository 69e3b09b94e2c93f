"""A task whose expert swings an arm forever: `dovetail collect` then moves a robot in every tick, without a policy."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from dovetail.config.model import Config
from dovetail.core.contracts import Robot
from dovetail.core.specs import TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict

_HALF_PERIOD_NS = 1_000_000_000


class SwingArmConfig(Config):
    """What the arm obeys."""

    kind: Literal["ee_delta", "joint_target"]
    """End effector deltas with a gripper, or joint targets."""
    gripper: str = "finger_pos"
    """Joint targets: the observation with the grippers or fingers, which stay where they are."""
    step: float
    """Meters or rad per tick."""


class SwingArm:
    Config: ClassVar[type[SwingArmConfig]] = SwingArmConfig

    def __init__(self, config: SwingArmConfig) -> None:
        self._config = config

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name="swing_arm")

    @property
    def prompt(self) -> str:
        return "swing"

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        pass

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        return Verdict(outcome=Outcome.TIMEOUT if num_steps >= 100_000 else None, rewards={"success": 0.0})

    def expert(self) -> SwingExpert:
        return SwingExpert(self._config)


class SwingExpert:
    def __init__(self, config: SwingArmConfig) -> None:
        self._config = config

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        pass

    def act(self, observation: Observation) -> Array:
        step = self._config.step * (1 if observation.time_ns // _HALF_PERIOD_NS % 2 else -1)
        if self._config.kind == "ee_delta":
            return np.array([0.0, step, 0.0, 0.0, 0.0, 0.0, 1.0], np.float32)
        values = observation.values
        return np.concatenate((values["joint_pos"] + step, values[self._config.gripper])).astype(np.float32)

    def progress(self, observation: Observation) -> float:
        return 0.0
