"""A gamepad at the robot's machine, through evdev. Hold the left shoulder button to drive.

left stick      forward, back, left, right       right stick    up, down, turn
south / east    close / open the gripper         north / west   success / failure
start / select  start / pause                    mode           emergency stop
left trigger    while it is pulled, the sticks drive a mobile base: forward, back, left, right and turn
d-pad           right / left: the next / previous arm; down / up: the next / previous joint of an arm with joint actions,
                which the left stick moves; the first choice of an arm with known geometry is Cartesian

A stick that does not change sends no events, so a wireless pad that is out of range looks like a stick that is held still. A
real stick trembles: while one is deflected, events must arrive at least every `max_silence_s`, or the arm holds until the
shoulder button is pressed again. A held gripper button sends nothing even in range, so it may be silent for 1 s; a tap moves
the gripper all the way.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event
from dovetail.human._evdev import InputDevice, Kernel
from dovetail.human.device import Device, DeviceOperator, DeviceReader, Reading
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.mailbox import EXPIRY_S

__all__ = ["GamepadConfig", "GamepadDevice", "GamepadOperator"]

ABS_X, ABS_Y, ABS_Z, ABS_RX, ABS_RY, ABS_HAT0X, ABS_HAT0Y = 0, 1, 2, 3, 4, 16, 17
BTN_SOUTH, BTN_EAST, BTN_NORTH, BTN_WEST, BTN_TL, BTN_TR = 304, 305, 307, 308, 310, 311
BTN_SELECT, BTN_START, BTN_MODE = 314, 315, 316
GRIP_SILENCE_S = 1.0
EVENTS = {
    BTN_NORTH: Event.SUCCESS,
    BTN_WEST: Event.FAILURE,
    BTN_START: Event.START,
    BTN_SELECT: Event.PAUSE,
    BTN_MODE: Event.EMERGENCY,
    BTN_TR: Event.ACKNOWLEDGE,
}


class GamepadConfig(DriveConfig):
    """A gamepad."""

    BASIC: ClassVar[Collection[str]] = ("speed",)

    path: str | None = None
    """Device, such as /dev/input/by-id/...-event-joystick. Null: the first gamepad."""
    dead_zone: float = Field(default=0.12, ge=0.0, lt=1.0)
    """Smallest deflection of a stick that counts, from 0 to 1."""
    max_silence_s: float | None = Field(default=EXPIRY_S, gt=0.0)
    """Longest time in seconds without an event while a stick is deflected; then the arm holds. Null: no limit."""


class GamepadDevice:
    def __init__(self, config: GamepadConfig, *, kernel: Kernel | None = None) -> None:
        self._config = config
        self._device = InputDevice(
            config.path, wanted={BTN_TL}, operator="gamepad", stop_keys={BTN_MODE}, kernel=kernel
        )
        self._events: list[Event] = []
        self._hat = (0, 0)
        self._num_next = self._num_next_part = 0

    def open(self) -> None:
        self._events.clear()
        self._device.open()

    def read(self) -> Reading | None:
        pressed_keys = self._device.update()
        if pressed_keys is None:
            return None
        self._events += [EVENTS[key] for key in pressed_keys if key in EVENTS]
        if Event.EMERGENCY in self._events:
            self._events = [Event.EMERGENCY]  # has priority
        pressed, stick = self._device.pressed, self._stick
        grip = (BTN_EAST in pressed) - (BTN_SOUTH in pressed)
        left, right = (-stick(ABS_Y), -stick(ABS_X)), (-stick(ABS_RY), -stick(ABS_RX))
        drives_base = self._device.axes.get(ABS_Z, -1.0) > 0.0
        arm, base = (left[0], left[1], right[0], 0.0, 0.0, right[1]), (left[0], left[1], right[1])
        axes = (*(0.0,) * 6, grip, *base) if drives_base else (*arm, grip, *(0.0,) * 3)
        self._choose()
        held = BTN_TL in pressed
        if held and not self._events and self._is_silent(deflected=any((*left, *right)), grips=grip != 0):
            return None
        event = self._events.pop(0) if self._events else None
        return Reading(
            held=held,
            axes=np.array(axes, np.float32),
            event=event,
            num_next=self._num_next,
            num_next_part=self._num_next_part,
        )

    def close(self) -> None:
        self._device.close()

    def _choose(self) -> None:
        """Count the presses of the d-pad."""
        now = (round(self._device.axes.get(ABS_HAT0X, 0.0)), round(self._device.axes.get(ABS_HAT0Y, 0.0)))
        before, self._hat = self._hat, now
        self._num_next_part += now[0] if now[0] != before[0] else 0
        self._num_next += now[1] if now[1] != before[1] else 0

    def _is_silent(self, *, deflected: bool, grips: bool) -> bool:
        limit_s = self._config.max_silence_s
        if limit_s is None or not (deflected or grips):
            return False
        silent_s = (time.monotonic_ns() - self._device.event_ns) / NS_PER_S
        return silent_s > (limit_s if deflected else max(limit_s, GRIP_SILENCE_S))

    def _stick(self, code: int) -> float:
        value, zone = self._device.axes.get(code, 0.0), self._config.dead_zone
        return 0.0 if abs(value) <= zone else float(np.sign(value)) * (abs(value) - zone) / (1.0 - zone)


class GamepadOperator(DeviceOperator):
    Config: ClassVar[type[GamepadConfig]] = GamepadConfig
    name = "gamepad"

    def __init__(
        self,
        config: GamepadConfig,
        *,
        robot: RobotSpec,
        task: Task | None = None,
        device: Device | DeviceReader | None = None,
    ) -> None:
        super().__init__(device or self.make_device(config), robot=robot, config=config)

    @classmethod
    def make_device(cls, config: GamepadConfig) -> Device:
        return GamepadDevice(config, kernel=cls.kernel())
