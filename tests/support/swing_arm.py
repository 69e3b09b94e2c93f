"""A task and a policy that swing an arm forever, so that a robot moves in every tick. The policy is `swing_policy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from dovetail.config.model import Config
from dovetail.core.contracts import Robot
from dovetail.core.specs import TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict

_SPAN = 6  # steps to each side


class SwingArmConfig(Config):
    """What the arm obeys."""

    kind: Literal["ee_delta", "joint_target"]
    """End effector deltas with a gripper, or joint targets."""
    fingers: str = "finger_pos"
    """Joint targets: the observation with grippers or fingers, which stay where they are."""
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


class Swing:
    """The next actions: onward until the arm is far enough from where it was first, then back."""

    def __init__(self, *, kind: str, fingers: str, step: float) -> None:
        self._kind, self._fingers, self._step = kind, fingers, step
        self._middle: float | None = None
        self._direction = 1.0

    def actions(self, values: Mapping[str, Array], num_steps: int) -> Array:
        """[num_steps, A]"""
        here = float(values["ee_pose"][1] if self._kind == "ee_delta" else values["joint_pos"][0])
        self._middle = here if self._middle is None else self._middle
        if abs(here - self._middle) > _SPAN * self._step:
            self._direction = -float(np.sign(here - self._middle))
        step = self._direction * self._step
        if self._kind == "ee_delta":
            return np.tile(np.array([0.0, step, 0.0, 0.0, 0.0, 0.0, 1.0], np.float32), (num_steps, 1))
        joints = values["joint_pos"] + step * np.arange(1, num_steps + 1)[:, None]
        grippers = np.tile(values[self._fingers], (num_steps, 1))
        return np.concatenate((joints, grippers), 1).astype(np.float32)


class SwingExpert:
    def __init__(self, config: SwingArmConfig) -> None:
        self._swing = Swing(kind=config.kind, fingers=config.fingers, step=config.step)

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        pass

    def act(self, observation: Observation) -> Array:
        return self._swing.actions(observation.values, 1)[0]

    def progress(self, observation: Observation) -> float:
        return 0.0
