"""A reaching task that does not detect success: only its rewards show how good an episode was."""

from dataclasses import replace

from dovetail.core.types import Outcome, Verdict
from dovetail.testing.fakes import FakeTask


class UnjudgedReach(FakeTask):
    @property
    def spec(self):
        return replace(super().spec, has_success=False)

    def judge(self, robot, observation, *, num_steps):
        distance = super().judge(robot, observation, num_steps=num_steps).metrics["distance"]
        outcome = Outcome.TIMEOUT if num_steps >= self.max_steps else None
        return Verdict(outcome=outcome, rewards={"near": -distance}, metrics={"distance": distance})
