"""An emulated arm whose measured joints run away at a given speed while a file exists."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dovetail.core.types import Observation
from dovetail.testing.socket_arm import SocketArm, SocketArmConfig

__all__ = ["RunawayArm"]


class RunawayArmConfig(SocketArmConfig):
    runaway_file: str
    """The joints run away while this file exists."""
    runaway_speed: float
    """In rad/s."""


class RunawayArm(SocketArm):
    Config: ClassVar[type[RunawayArmConfig]] = RunawayArmConfig

    def __init__(self, config: RunawayArmConfig, *, task: Any = None) -> None:
        super().__init__(config, task=task)
        self._settings, self._offset, self._seen_s = config, 0.0, time.monotonic()

    def observe(self) -> Observation:
        seen, now_s = super().observe(), time.monotonic()
        if Path(self._settings.runaway_file).exists():
            self._offset += self._settings.runaway_speed * (now_s - self._seen_s)
        else:
            self._offset = 0.0
        self._seen_s = now_s
        joints = (seen.values["joint_pos"] + self._offset).astype(np.float32)
        return replace(seen, values={**seen.values, "joint_pos": joints})
