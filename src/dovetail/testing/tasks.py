"""Conformance suite for tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dovetail.core.abilities import ChangesPrompt
from dovetail.core.contracts import Expert, Robot, Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import match
from dovetail.core.types import Array, Observation, Outcome, Verdict
from dovetail.testing._rig import Rig, copied, expect, expect_array, expect_finite_numbers, expect_same

__all__ = ["check_task"]


def check_task(
    make_task: Callable[[], Any],
    make_robot: Callable[[Any], Robot],
    *,
    max_steps: int = 1000,
    num_expert_episodes: int = 3,
    min_expert_successes: int = 2,
    idle_outcome: Outcome = Outcome.TIMEOUT,
) -> None:
    """Reset the task, hold still, and run its expert. `make_robot(task)` builds the robot.

    The task may have no expert (`expert()` raises UsageError): a warning says that its checks were skipped.
    `idle_outcome` is the outcome of an episode in which the arm holds still.
    """
    bench = _Bench(make_task, make_robot)
    task = bench.task
    expect(
        isinstance(task, Task),
        f"{type(task).__name__} does not implement all of Task: spec, prompt, reset, judge, expert",
    )
    expect(task.spec.name, "spec.name is empty")
    expect(isinstance(task.prompt, str) and task.prompt, "prompt is empty: describe the task in words")
    match(bench.rig.spec, task=task.spec)
    _check_resets(bench, make_task, make_robot)
    _check_idle(bench, max_steps=max_steps, idle_outcome=idle_outcome)
    try:
        expert = task.expert()
    except UsageError:
        warnings.warn(f"task '{task.spec.name}' has no expert: its checks were skipped", stacklevel=2)
        return
    expect(
        isinstance(expert, Expert),
        f"{type(expert).__name__} does not implement all of Expert: reset, act, progress",
    )
    _check_expert(bench, expert, max_steps, num_expert_episodes, min_expert_successes)


class _Bench:
    """A task with its robot behind the safety filter."""

    def __init__(self, make_task: Callable[[], Any], make_robot: Callable[[Any], Robot]) -> None:
        self.task: Task = make_task()
        self.rig = Rig(make_robot(self.task))

    def reset(self, seed: int) -> Observation:
        self.task.reset(self.rig.safe, rng=np.random.default_rng(seed))
        self.rig.safe.reset()
        if isinstance(self.task, ChangesPrompt):
            expect(
                self.task.stage_prompt == self.task.prompt, "reset() does not go back to the first stage's prompt"
            )
        return self.rig.safe.observe()

    def judge(self, observation: Observation, num_steps: int) -> Verdict:
        verdict = self.task.judge(self.rig.safe, observation, num_steps=num_steps)
        expect(isinstance(verdict, Verdict), f"judge() should return a Verdict, got {verdict!r}")
        outcome = verdict.outcome
        expect(
            outcome is None or isinstance(outcome, Outcome),
            f"verdict.outcome should be an Outcome, got {outcome!r}",
        )
        expect(verdict.rewards, "verdict.rewards is empty: name at least one component")
        expect_finite_numbers(verdict.rewards, what="reward")
        expect_finite_numbers(verdict.metrics, what="metric")
        return verdict


def _check_resets(bench: _Bench, make_task: Callable[[], Any], make_robot: Callable[[Any], Robot]) -> None:
    first = copied(bench.reset(1).values)
    bench.rig.wait()
    expect_same(first, bench.reset(1).values, "reset() with the same rng seed starts elsewhere the second time")
    other = _Bench(make_task, make_robot).reset(1)
    expect_same(first, other.values, "reset() with the same rng seed starts elsewhere in a new task and robot")
    different = [copied(bench.reset(seed).values) for seed in (2, 3)]
    varied = any(not np.array_equal(first[key], values[key]) for values in different for key in first)
    expect(varied, "reset() starts at the same place for every rng seed: draw from `rng`")


def _check_idle(bench: _Bench, *, max_steps: int, idle_outcome: Outcome) -> None:
    names: tuple[set[str], set[str]] | None = None
    bench.reset(1)
    for num_steps in range(1, max_steps + 1):
        verdict = bench.judge(bench.rig.wait(), num_steps)
        now = set(verdict.rewards), set(verdict.metrics)
        names = names or now
        expect(
            now == names,
            f"judge() names rewards and metrics {now}, but named {names} before: keep them the same",
        )
        if verdict.outcome is not None:
            expect(
                verdict.outcome is idle_outcome,
                f"an arm that holds still got {verdict.outcome} at step {num_steps}, not {idle_outcome}",
            )
            return
    raise AssertionError(f"an arm that holds still got no outcome in {max_steps} steps: a task needs a time limit")


def _check_expert(bench: _Bench, expert: Expert, max_steps: int, num_episodes: int, min_successes: int) -> None:
    outcomes: list[Outcome | None] = []
    for seed in range(num_episodes):
        actions, outcome = _play(bench, expert, seed=seed, max_steps=max_steps)
        outcomes.append(outcome)
        if seed == 0:
            again, _ = _play(bench, expert, seed=seed, max_steps=max_steps)
            same = len(actions) == len(again) and all(map(np.array_equal, actions, again))
            expect(same, "the expert acts differently for the same rng seed: use the rng of reset()")
    num_good = outcomes.count(Outcome.SUCCESS)
    expect(
        num_good >= min_successes,
        f"the expert succeeded in {num_good} of {num_episodes} episodes, at least {min_successes} expected: "
        f"{[str(outcome) for outcome in outcomes]}",
    )


def _play(bench: _Bench, expert: Expert, *, seed: int, max_steps: int) -> tuple[list[Array], Outcome | None]:
    observation = bench.reset(seed)
    expert.reset(np.random.default_rng(seed), noise=0.1)
    actions: list[Array] = []
    for num_steps in range(1, max_steps + 1):
        seen: Mapping[str, Array] = copied(observation.values)
        action = expert.act(observation)
        expect_same(seen, observation.values, "the expert changed the observation")
        expect_array(action, bench.rig.spec.action, what="the expert's action", within=True)
        progress = expert.progress(observation)
        expect(0.0 <= progress <= 1.0, f"the expert's progress should be within 0 and 1, got {progress}")
        actions.append(action.copy())
        observation = bench.rig.step(action)
        outcome = bench.judge(observation, num_steps).outcome
        if outcome is not None:
            return actions, outcome
    return actions, None
