"""An emulated gamepad."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

from dovetail.human.gamepad import (
    ABS_HAT0X,
    ABS_HAT0Y,
    ABS_RX,
    ABS_RY,
    ABS_X,
    ABS_Y,
    ABS_Z,
    BTN_EAST,
    BTN_MODE,
    BTN_NORTH,
    BTN_SELECT,
    BTN_SOUTH,
    BTN_START,
    BTN_TL,
    BTN_TR,
    BTN_WEST,
    GamepadOperator,
)  # fmt: skip
from dovetail.testing.input_devices.evdev import EmulatedInput, EmulatedKernel
from dovetail.testing.input_devices.socket_device import PLUGINS

__all__ = ["EmulatedGamepad", "EmulatedGamepadOperator"]


class EmulatedGamepad(EmulatedInput):
    """A pad like those of xpad. `tremble` sends small motions of the sticks, as a hand does, until it is unplugged."""

    def __init__(self, path: Path) -> None:
        keys = (
            BTN_SOUTH, BTN_EAST, BTN_NORTH, BTN_WEST, BTN_TL, BTN_TR, BTN_SELECT, BTN_START, BTN_MODE,
        )  # fmt: skip
        sticks = dict.fromkeys((ABS_X, ABS_Y, ABS_RX, ABS_RY), (-32768, 32767))
        hats = dict.fromkeys((ABS_HAT0X, ABS_HAT0Y), (-1, 1))
        super().__init__(path, keys=keys, axes={**sticks, ABS_Z: (0, 255), **hats})
        self._trembles = threading.Event()

    @property
    def overrides(self) -> list[str]:
        """Settings of a run that use this gamepad."""
        return [f"operator.type={PLUGINS}:{EmulatedGamepadOperator.__name__}", f"operator.path={self.path}"]

    def hold(self) -> None:
        """Press the dead-man button."""
        self.press(BTN_TL)

    def let_go(self) -> None:
        self.release(BTN_TL)

    def stop(self) -> None:
        """Press the emergency stop."""
        self.tap(BTN_MODE)

    def tremble(self, *, period_s: float = 0.05) -> None:
        """Start. `be_silent` ends it."""
        self._trembles = trembles = threading.Event()

        def move() -> None:
            while not trembles.wait(period_s):
                try:
                    self.push_raw(ABS_RX, 40 - self._values[ABS_RX])  # within the dead zone
                except OSError:
                    return

        threading.Thread(target=move, daemon=True).start()

    def be_silent(self) -> None:
        """Nothing arrives, as from a pad that is out of range; the receiver is still plugged in."""
        self._trembles.set()

    def unplug(self) -> None:
        self.be_silent()
        super().unplug()


class EmulatedGamepadOperator(GamepadOperator):
    """The gamepad operator with an EmulatedGamepad."""

    kernel: ClassVar[type[EmulatedKernel]] = EmulatedKernel
