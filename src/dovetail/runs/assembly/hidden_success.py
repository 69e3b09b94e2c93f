"""A task whose success is kept from practice, so that nothing but labels can tell it: for `labeling.hide_success`.

A simulated task knows when it is done, a real one does not. Who wants to see what labels alone are good for must not let
the simulator's word in by the back door: neither by ending the episode, nor by a scripted person who stops helping, or says
success, at the very moment, nor by a reward beside the labels. A failure and the time limit still end it.
"""

from __future__ import annotations

import numpy as np

from dovetail.core.abilities import LimitsSteps
from dovetail.core.contracts import Expert, Robot, Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict

__all__ = ["HiddenSuccess"]

_ALMOST = 0.99  # as far along as an expert may say it is


class HiddenSuccess:
    """See the Task contract. Only for tasks that say how long an episode may last (`max_steps`): one that is done goes on
    until then, unless labels end it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        if not isinstance(task, LimitsSteps):
            raise UsageError(
                f"task '{task.spec.name}' does not say how long an episode may last, so its success cannot be hidden: "
                "set labeling.hide_success=false"
            )
        self._max_steps = int(task.max_steps)

    @property
    def spec(self) -> TaskSpec:
        return self._task.spec

    @property
    def prompt(self) -> str:
        return self._task.prompt

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        self._task.reset(robot, rng=rng)

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        """What the task says, without a success."""
        verdict = self._task.judge(robot, observation, num_steps=num_steps)
        outcome = verdict.outcome
        if outcome is Outcome.SUCCESS:
            outcome = Outcome.TIMEOUT if num_steps >= self._max_steps else None
        return Verdict(outcome=outcome, rewards=dict.fromkeys(verdict.rewards, 0.0), metrics=verdict.metrics)

    def expert(self) -> Expert:
        return _Discreet(self._task.expert())


class _Discreet:
    """An expert who helps as before, and never says that it is done."""

    def __init__(self, expert: Expert) -> None:
        self._expert = expert

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        self._expert.reset(rng, noise=noise)

    def act(self, observation: Observation) -> Array:
        return self._expert.act(observation)

    def progress(self, observation: Observation) -> float:
        return min(_ALMOST, self._expert.progress(observation))
