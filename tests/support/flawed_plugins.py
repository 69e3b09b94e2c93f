"""Plugins with one flaw each: `support.flawed_plugins:Class`."""

from collections import deque
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


class SlowTicksConfig(FakeArmConfig):
    shortest_tick_s: float = 0.2
    """Time that the robot needs for one tick, whatever its control rate."""


class SlowTicks(FakeArm):
    """Needs longer for a tick than its control rate allows, by its own clock."""

    Config: ClassVar = SlowTicksConfig

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        self._speed = max(1.0, config.shortest_tick_s * config.control_hz)

    def observe(self):
        seen = super().observe()
        return Observation(time_ns=round(seen.time_ns * self._speed), values=seen.values)


class DelayedConfig(FakeArmConfig):
    delay_ticks: int = 6
    """Ticks between a command and its motion."""


class Delayed(FakeArm):
    """Executes each command some ticks later."""

    Config: ClassVar = DelayedConfig

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        self._num_ticks = config.delay_ticks
        self._waiting = deque()

    def place(self, state, goal):
        super().place(state, goal)
        self._waiting.clear()

    def send(self, action):
        executed = self._motion.checked(action)
        self._waiting.append(self.frame @ executed[:3])
        moved = self._waiting.popleft() if len(self._waiting) > self._num_ticks else 0.0
        self._motion.target = self._motion.state + moved
        self.gripper = float(executed[6])
        return executed
