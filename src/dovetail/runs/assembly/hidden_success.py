"""A task that hides its success from online episodes, so that only labels show it: for `labeling.hide_success`.

A simulated task detects success, a real one does not. To measure what labels alone achieve, success must not end the
episode, stop a scripted operator, or give a reward. A failure and the time limit still end the episode.
"""

from __future__ import annotations

import numpy as np

from dovetail.core.abilities import ChangesPrompt, DrawsPrompt, LimitsSteps
from dovetail.core.contracts import Expert, Robot, Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict

__all__ = ["HiddenSuccess"]

_MAX_PROGRESS = 0.99


class HiddenSuccess:
    """See the Task contract. The task needs a `max_steps`: a successful episode continues until then, unless a labeler ends
    it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        if not isinstance(task, LimitsSteps):
            raise UsageError(
                f"task '{task.spec.name}' has no max_steps, so its success cannot be hidden. Set labeling.hide_success=false"
            )
        self._max_steps = int(task.max_steps)

    @property
    def spec(self) -> TaskSpec:
        return self._task.spec

    @property
    def prompt(self) -> str:
        return self._task.prompt

    def draw_prompt(self, *, rng: np.random.Generator) -> None:
        if isinstance(self._task, DrawsPrompt):
            self._task.draw_prompt(rng=rng)

    @property
    def stage_prompt(self) -> str:
        return self._task.stage_prompt if isinstance(self._task, ChangesPrompt) else self._task.prompt

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        self._task.reset(robot, rng=rng)

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        """The verdict of the task without success and rewards."""
        verdict = self._task.judge(robot, observation, num_steps=num_steps)
        outcome = verdict.outcome
        if outcome is Outcome.SUCCESS:
            outcome = Outcome.TIMEOUT if num_steps >= self._max_steps else None
        return Verdict(outcome=outcome, rewards=dict.fromkeys(verdict.rewards, 0.0), metrics=verdict.metrics)

    def expert(self) -> Expert:
        return _HiddenProgress(self._task.expert())


class _HiddenProgress:
    """An expert that acts as before and never reports that the task is done."""

    def __init__(self, expert: Expert) -> None:
        self._expert = expert

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        self._expert.reset(rng, noise=noise)

    def act(self, observation: Observation) -> Array:
        return self._expert.act(observation)

    def progress(self, observation: Observation) -> float:
        return min(_MAX_PROGRESS, self._expert.progress(observation))
