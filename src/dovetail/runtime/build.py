"""From a config to the objects of a run: the one place where rooms meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dovetail.config.schema import RunConfig
from dovetail.core.clock import RealClock, SimulatedClock
from dovetail.core.contracts import (
    Actor,
    Clock,
    Labeler,
    Operator,
    Policy,
    Recorder,
    Robot,
    SimulatedRobot,
    Task,
)
from dovetail.core.specs import match
from dovetail.policies.trainable import TrainablePolicy
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.runtime.experience import Replay

__all__ = ["Station", "build_station"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A robot at its task, behind the safety filter, with its clock: all that is needed to run episodes."""

    config: RunConfig
    task: Task
    robot: SafeRobot
    clock: Clock
    should_stop: Callable[[], bool]
    _raw: Robot

    def operator(self) -> Operator:
        operator: Operator = self.config.operator.build(task=self.task)
        return operator

    def policy(self) -> TrainablePolicy:
        """A new, untrained policy, checked against robot and task before anything moves."""
        policy: TrainablePolicy = self.config.policy.build(robot=self.robot.spec, seed=self.config.run.seed)
        match(self.robot.spec, policy=policy.spec, task=self.task.spec)
        return policy

    def labeler(self) -> Labeler:
        labeler: Labeler = self.config.labels[0].build()
        return labeler

    def replay(self, folder: Path, *, keys: tuple[str, ...]) -> Replay:
        replay: Replay = self.config.replay.build(folder=folder, keys=keys)
        return replay

    def actor(self, *, operator: Operator, policy: Policy | None, recorder: Recorder | None = None) -> Actor:
        actor: Actor = self.config.actor.build(
            robot=self.robot,
            task=self.task,
            operator=operator,
            policy=policy,
            clock=self.clock,
            recorder=recorder,
            probe=getattr(self._raw, "probe", None),
            should_stop=self.should_stop,
        )
        return actor

    def close(self) -> None:
        self.robot.stop()
        close = getattr(self._raw, "close", None)
        if close:
            close()


def build_station(config: RunConfig, *, should_stop: Callable[[], bool] = lambda: False) -> Station:
    """Make robot and task, and let them check each other."""
    torch.set_num_threads(1)  # two busy processes with two threads each would crawl
    task: Any = config.task.build() if config.task else None
    raw: Any = config.robot.build(task=task)
    task = task or raw.task
    clock: Clock
    if isinstance(raw, SimulatedRobot):
        simulated = SimulatedClock(realtime=getattr(config.robot.config, "realtime", False))
        simulated.on_advance(raw.advance)
        clock = simulated
    else:
        clock = RealClock()
    assert isinstance(config.safety.config, SafetyConfig)
    robot = SafeRobot(raw, config.safety.config, clock)
    match(robot.spec, task=task.spec)
    return Station(config=config, task=task, robot=robot, clock=clock, should_stop=should_stop, _raw=raw)
