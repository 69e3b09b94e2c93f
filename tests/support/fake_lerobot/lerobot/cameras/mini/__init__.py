"""A camera with a background thread, as LeRobot's: `latest_timestamp` is the time of capture."""

import threading
import time
from dataclasses import dataclass

import numpy as np

from ..configs import CameraConfig


@CameraConfig.register_subclass("mini")
@dataclass
class MiniCameraConfig(CameraConfig):
    use_depth: bool = False
    freeze_after: int | None = None


class MiniCamera:
    def __init__(self, config):
        self.config = config
        self.fps, self.width, self.height, self.use_depth = (
            config.fps,
            config.width,
            config.height,
            config.use_depth,
        )
        self.latest_frame = None
        self.latest_timestamp = None
        self._number = 0
        self._new = threading.Event()
        self._closing = threading.Event()
        self._thread = None

    @property
    def is_connected(self):
        return self._thread is not None

    def connect(self, warmup=True):
        self._closing.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._new.wait(2.0)

    def _run(self):
        while not self._closing.wait(1.0 / self.fps):
            if self.config.freeze_after is not None and self._number >= self.config.freeze_after:
                continue
            self._number += 1
            self.latest_frame = np.full((self.height, self.width, 3), self._number % 256, np.uint8)
            self.latest_timestamp = time.perf_counter()
            self._new.set()

    def async_read(self, timeout_ms=200):
        if not self._new.wait(timeout_ms / 1e3):
            raise TimeoutError(f"no frame in {timeout_ms} ms")
        self._new.clear()
        return self.latest_frame

    def read_latest(self, max_age_ms=500):
        if time.perf_counter() - self.latest_timestamp > max_age_ms / 1e3:
            raise TimeoutError("the latest frame is too old")
        return self.latest_frame

    def read_latest_depth(self, max_age_ms=500):
        return np.full((self.height, self.width), 1000 + self._number, np.uint16)

    def disconnect(self):
        self._closing.set()
        self._thread = None
