"""A reaching task with a dense reward, and one that fails on purpose."""

import os
import signal
from typing import ClassVar

from dovetail.core.types import Outcome, Verdict
from dovetail.testing.fakes import FakeTask, FakeTaskConfig


class DenseReach(FakeTask):
    def __init__(self, config):
        super().__init__(config)
        self._distance = 0.0

    def reset(self, robot, *, rng):
        super().reset(robot, rng=rng)
        motion = self.robot._motion
        self._distance = float(((motion.state - motion.goal) ** 2).sum() ** 0.5)

    def judge(self, robot, observation, *, num_steps):
        verdict = super().judge(robot, observation, num_steps=num_steps)
        before, self._distance = self._distance, verdict.metrics["distance"]
        nearer = 10.0 * (before - self._distance)
        return Verdict(
            outcome=verdict.outcome, rewards={**verdict.rewards, "nearer": nearer}, metrics=verdict.metrics
        )


class DistanceReach(FakeTask):
    """Each step costs the distance to the goal, so that the return follows from the observation."""

    def judge(self, robot, observation, *, num_steps):
        verdict = super().judge(robot, observation, num_steps=num_steps)
        cost = {"distance": -0.3 * verdict.metrics["distance"]}
        return Verdict(outcome=verdict.outcome, rewards={**verdict.rewards, **cost}, metrics=verdict.metrics)


class BrokenConfig(FakeTaskConfig):
    after: int = 40
    how: str = "raise"
    """raise: an exception; kill: SIGKILL to its own process; abort: the task aborts the episode."""


class Broken(DenseReach):
    """Fails after a number of steps."""

    Config: ClassVar = BrokenConfig

    def __init__(self, config):
        super().__init__(config)
        self._left = config.after

    def judge(self, robot, observation, *, num_steps):
        self._left -= 1
        if self._left < 0:
            if self._config.how == "raise":
                raise ValueError("the world\nhas come apart")
            if self._config.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            return Verdict(outcome=Outcome.ABORTED)
        return super().judge(robot, observation, num_steps=num_steps)
