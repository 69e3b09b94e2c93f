"""Run episodes of a task on a simulated arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dovetail.config.plugins import resolve
from dovetail.core.types import Array, Observation, Outcome
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig

__all__ = ["make", "play", "reset", "run_actions", "run_expert"]


@cache
def make(task_name: str, arm: str) -> tuple[Any, SimRobot]:
    """A task and its robot, cached because compiling a world is slow."""
    kind: Any = resolve("task", task_name)
    task = kind(kind.Config())
    return task, SimRobot(SimRobotConfig(arm=arm), task=task)  # type: ignore[arg-type]


def reset(task_name: str, arm: str, seed: int) -> tuple[Any, SimRobot]:
    task, robot = make(task_name, arm)
    task.reset(robot, rng=np.random.default_rng(seed))
    return task, robot


def play(
    task: Any, robot: SimRobot, choose: Callable[[Observation, int], Array]
) -> tuple[Outcome, list[Array], list[float]]:
    """Run one episode. Return the outcome, the executed actions and the completion over time."""
    executed: list[Array] = []
    completion: list[float] = []
    tick_ns = round(1e9 / robot.spec.control_hz)
    while True:
        executed.append(robot.send(choose(robot.observe(), len(executed))))
        robot.advance(tick_ns)
        verdict = task.judge(robot, robot.observe(), num_steps=len(executed))
        completion.append(verdict.metrics["completion"])
        if verdict.outcome is not None:
            return verdict.outcome, executed, completion


def run_expert(task_name: str, arm: str, seed: int, noise: float = 0.0) -> tuple[bool, int, list[Array]]:
    """Run the expert. Return success, number of steps and actions."""
    task, robot = reset(task_name, arm, seed)
    expert = task.expert()
    expert.reset(np.random.default_rng([seed, 1]), noise=noise)
    outcome, executed, _ = play(task, robot, lambda observation, _: expert.act(observation))
    return outcome is Outcome.SUCCESS, len(executed), executed


def run_actions(task_name: str, arm: str, seed: int, actions: Sequence[Array]) -> bool:
    """Whether recorded actions, replayed without feedback, solve another reset."""
    task, robot = reset(task_name, arm, seed)
    hold = np.array(actions[-1])
    hold[:6] = 0.0
    outcome, _, _ = play(task, robot, lambda _, step: actions[step] if step < len(actions) else hold)
    return outcome is Outcome.SUCCESS
