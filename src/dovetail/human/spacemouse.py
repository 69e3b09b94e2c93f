"""A SpaceMouse at the robot's machine. Moving the cap takes over; releasing it gives control back.

The left button closes the gripper, the right one opens it. A thread reads pyspacemouse, because it may block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.human.device import Device, DeviceOperator, Reading, load_library

__all__ = ["SpaceMouseConfig", "SpaceMouseDevice", "SpaceMouseOperator"]

_SILENT_S = 5.0  # without a reading: the thread is stuck
_PAUSE_S = 0.002


class SpaceMouseConfig(Config):
    """A SpaceMouse."""

    BASIC: ClassVar[Collection[str]] = ("speed",)
    RENAMED: ClassVar[Mapping[str, str]] = {"threshold": "dead_zone", "linger_s": "release_after_s"}

    dead_zone: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Smallest deflection of the cap that counts, from 0 to 1."""
    release_after_s: float = Field(default=0.3, ge=0.0)
    """Seconds at rest after which control returns to the policy."""
    speed: float = Field(default=1.0, gt=0.0, le=1.0)
    """Speed at full deflection, relative to the robot's limits."""


class SpaceMouseDevice:
    def __init__(self, config: SpaceMouseConfig) -> None:
        self._config = config
        self._newest: tuple[float, Any] | None = None  # time and state, replaced together
        self._moved_s = -1e9
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._library: Any = None

    def open(self) -> None:
        self._library = load_library("pyspacemouse", package="pyspacemouse", operator="spacemouse")
        try:
            found = self._library.open()
        except Exception as error:  # a vendor's library may raise anything
            raise UsageError(f"operator 'spacemouse': cannot open the device: {error}") from error
        if not found:
            raise UsageError(
                "operator 'spacemouse': no SpaceMouse found. Plug it in, or allow your user to read it (udev rules)"
            )
        self._thread = threading.Thread(target=self._listen, name="spacemouse", daemon=True)
        self._newest = (time.monotonic(), None)
        self._ended.clear()
        self._thread.start()

    def read(self) -> Reading | None:
        newest = self._newest
        if newest is None or time.monotonic() - newest[0] > _SILENT_S:
            return None
        state = newest[1]
        if state is None:
            return Reading(held=False, axes=np.zeros(7, np.float32))
        buttons = (*state.buttons, 0, 0)
        # the device's frame: y away from the person, x to the right
        cap = np.array((state.y, -state.x, state.z, state.roll, state.pitch, -state.yaw), np.float32)
        grip = bool(buttons[1]) - bool(buttons[0])
        if np.abs(cap).max() >= self._config.dead_zone or grip:
            self._moved_s = newest[0]
        held = newest[0] - self._moved_s <= self._config.release_after_s
        return Reading(held=held, axes=np.append(cap, np.float32(grip)))

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)
            self._library.close()
            self._thread = None

    def _listen(self) -> None:
        try:
            while not self._ended.wait(_PAUSE_S):
                state = self._library.read()
                self._newest = (time.monotonic(), state)
        except Exception:  # unplugged: the arm holds
            self._newest = None


class SpaceMouseOperator(DeviceOperator):
    Config: ClassVar[type[SpaceMouseConfig]] = SpaceMouseConfig
    name = "spacemouse"

    def __init__(
        self,
        config: SpaceMouseConfig,
        *,
        robot: RobotSpec,
        task: Task | None = None,
        device: Device | None = None,
    ) -> None:
        super().__init__(device or SpaceMouseDevice(config), robot=robot, speed=config.speed)
