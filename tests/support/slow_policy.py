"""A policy that thinks for as long as a test needs to kill it: found by `dovetail serve` as `support.slow_policy:SlowPolicy`."""

import time
from pathlib import Path
from typing import ClassVar

from dovetail.testing.fake_brains import FakePolicy, FakePolicyConfig


class SlowConfig(FakePolicyConfig):
    slow_file: str
    """While this file is there, it thinks slowly; it writes `thinking` beside it when it begins to."""


class SlowPolicy(FakePolicy):
    Config: ClassVar = SlowConfig

    def __init__(self, config, *, robot, seed=0):
        super().__init__(config, robot=robot, seed=seed)
        self._slow = Path(config.slow_file)

    def act(self, observations, context):
        if self._slow.exists():
            (self._slow.parent / "thinking").touch()
            time.sleep(60)
        return super().act(observations, context)
