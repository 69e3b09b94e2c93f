"""Plugins with one flaw each: `support.flawed_plugins:Class`."""

from typing import ClassVar

import numpy as np

from dovetail.core.types import Observation, Outcome
from dovetail.labels.outcome import OutcomeLabeler
from dovetail.policies.gaussian_mlp import GaussianMLP
from dovetail.policies.tanh_gaussian import LOG_STD_MIN
from dovetail.testing.fakes import FakeArm, FakeArmConfig


class Liar(OutcomeLabeler):
    """Swaps success and failure."""

    def _outcome(self, episode):
        outcome = super()._outcome(episode)
        return Outcome.FAILURE if outcome is Outcome.SUCCESS else Outcome.SUCCESS


class MovedConfig(FakeArmConfig):
    after: int = 3
    """Number of resets after which all positions have an offset."""


class Moved(FakeArm):
    Config: ClassVar = MovedConfig

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        self._left = config.after

    def place(self, state, goal):
        self._left -= 1
        super().place(state, goal)

    def observe(self):
        seen = super().observe()
        away = np.float32(50.0 if self._left < 0 else 0.0)
        values = dict(seen.values)
        values["goal"] = values["goal"] + away
        values["ee_pose"] = values["ee_pose"] + away * np.array([1, 1, 1, 0, 0, 0, 0], np.float32)
        return Observation(time_ns=seen.time_ns, values=values)


class Flat(GaussianMLP):
    """Actions at the limits only."""

    def _distribution(self, features):
        mean, log_std = super()._distribution(features)
        return 1000.0 * mean, log_std


class Sure(GaussianMLP):
    """The smallest standard deviation."""

    def _distribution(self, features):
        mean, log_std = super()._distribution(features)
        return mean, 0.0 * log_std + LOG_STD_MIN
