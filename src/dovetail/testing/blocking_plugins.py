"""A task and a labeler for the emulated arm that block on request, without a simulator. The policy is `blocking_policy`.

Each one blocks in a call while the file `block_file` names that call: `reset` (task) or `label` (labeler).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Robot
from dovetail.core.specs import TaskSpec
from dovetail.core.types import Array, Episode, Labels, Observation, Outcome, Verdict
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler
from dovetail.testing.socket_arm import block_while, is_named

__all__ = ["BlockingLabeler", "BlockingTask", "Swing", "SwingExpert"]

_STEP = 0.02  # rad or m
_TURN = 0.3


class BlockingTaskConfig(Config):
    """Swing back and forth."""

    max_steps: int = Field(default=1_000_000, ge=1)
    """Steps until an episode ends."""
    block_file: str | None = None
    """File that names the calls that block: reset. With `solve` in it, episodes end as a success. Null: none."""


class BlockingTask:
    """Swing the arm back and forth, so that the arm moves in every tick."""

    Config: ClassVar[type[BlockingTaskConfig]] = BlockingTaskConfig

    def __init__(self, config: BlockingTaskConfig) -> None:
        self._config, self._swing = config, Swing()

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name="swing", observation_keys=("gripper",))

    @property
    def prompt(self) -> str:
        return "swing back and forth"

    @property
    def max_steps(self) -> int:
        return self._config.max_steps

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        """Move one step, so that a blocked reset leaves the arm in motion."""
        robot.send(self._swing.actions(robot.observe().values, 1)[0])
        block_while(self._config.block_file, "reset")

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        outcome = None
        if num_steps >= self._config.max_steps:
            outcome = Outcome.SUCCESS if is_named(self._config.block_file, "solve") else Outcome.TIMEOUT
        return Verdict(
            outcome=outcome, rewards={"success": float(outcome is Outcome.SUCCESS)}, metrics={"steps": num_steps}
        )

    def expert(self) -> SwingExpert:
        return SwingExpert()


class Swing:
    """The next actions: a step onward until the arm is far enough from zero, then back."""

    def __init__(self) -> None:
        self._direction = 1.0

    def actions(self, values: Mapping[str, Array], num_steps: int) -> Array:
        """[num_steps, A], the gripper included."""
        measured = values["ee_pose" if "ee_pose" in values else "joint_pos"]
        if abs(float(measured[0])) > _TURN:
            self._direction = -float(np.sign(measured[0]))
        step = self._direction * _STEP
        if "ee_pose" in values:
            arm = np.repeat([[step, 0.0, 0.0, 0.0, 0.0, 0.0]], num_steps, 0)
        else:
            arm = measured[None] + step * np.arange(1, num_steps + 1)[:, None]
        return np.concatenate((arm, np.full((num_steps, 1), 0.5)), 1).astype(np.float32)


class SwingExpert:
    """Demonstrates the swing."""

    def __init__(self) -> None:
        self._swing = Swing()

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        self._swing = Swing()

    def act(self, observation: Observation) -> Array:
        return np.asarray(self._swing.actions(observation.values, 1)[0])

    def progress(self, observation: Observation) -> float:
        return 0.0


class BlockingLabelerConfig(OutcomeConfig):
    """Labels episodes by their outcome."""

    block_file: str | None = None
    """File that names the calls that block: label. Null: none."""


class BlockingLabeler(OutcomeLabeler):
    """Labels by outcome."""

    Config: ClassVar[type[BlockingLabelerConfig]] = BlockingLabelerConfig
    max_concurrent = 1  # a slow labeler: on Ray it has a process of its own

    def __init__(self, config: BlockingLabelerConfig) -> None:
        super().__init__(config)
        self._block_file = config.block_file

    def label(self, episode: Episode) -> Labels:
        block_while(self._block_file, "label")
        return super().label(episode)
