"""A camera with color and depth, without a device. Each frame has its number in both images."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.robots.cameras.frames import Frame, ThreadedCamera

FIRST_MM = 1000  # depth of the first frame; one millimeter more in each


class DepthCameraConfig(Config):
    """A camera with depth."""


class DepthCamera(ThreadedCamera):
    Config: ClassVar[type[Config]] = DepthCameraConfig

    def __init__(self, config: DepthCameraConfig, *, name: str) -> None:
        spec = {
            name: ArraySpec(shape=(48, 64, 3), dtype="uint8"),
            f"{name}_depth": ArraySpec(shape=(48, 64, 1), dtype="uint16"),
        }
        super().__init__(name=name, spec=spec, start_timeout_s=5.0)

    def _frames(self, stopping: threading.Event) -> Iterator[Frame]:
        for number in itertools.count():
            if stopping.wait(1 / 30):
                return
            color: Array = np.full((48, 64, 3), number % 256, np.uint8)
            depth: Array = np.full((48, 64, 1), FIRST_MM + number, np.uint16)
            images = {self.name: color, f"{self.name}_depth": depth}
            yield Frame(time_ns=time.monotonic_ns(), images=images)
