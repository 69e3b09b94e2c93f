"""A policy whose inference takes a minute, so that a test can kill it. Config type `support.slow_policy:SlowPolicy`."""

import time
from pathlib import Path
from typing import ClassVar

from dovetail.testing.fake_learning import FakePolicy, FakePolicyConfig


class SlowConfig(FakePolicyConfig):
    slow_file: str
    """While this file exists, inference is slow. When it starts, the policy creates the file `computing` beside it."""


class SlowPolicy(FakePolicy):
    Config: ClassVar = SlowConfig

    def __init__(self, config, *, robot, seed=0):
        super().__init__(config, robot=robot, seed=seed)
        self._slow = Path(config.slow_file)

    def act(self, observations, context):
        if self._slow.exists():
            (self._slow.parent / "computing").touch()
            time.sleep(60)
        return super().act(observations, context)
