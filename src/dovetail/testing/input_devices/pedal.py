"""An emulated pedal."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from dovetail.human.pedal import PedalOperator
from dovetail.testing.input_devices.evdev import EmulatedInput, EmulatedKernel
from dovetail.testing.input_devices.socket_device import PLUGINS

__all__ = ["EmulatedPedal", "EmulatedPedalOperator"]


class EmulatedPedal(EmulatedInput):
    """A foot switch with a pedal for the takeover and one for the emergency stop."""

    KEY, STOP_KEY = 48, 46  # KEY_B, KEY_C

    def __init__(self, path: Path) -> None:
        super().__init__(path, keys=(self.KEY, self.STOP_KEY))

    @property
    def overrides(self) -> list[str]:
        """Settings of a run that use this pedal; it enables no operator."""
        return [
            f"operator.type={PLUGINS}:{EmulatedPedalOperator.__name__}",
            f"operator.path={self.path}",
            "operator.key=KEY_B",
            "operator.stop_key=KEY_C",
            "operator.operator={type: none}",
        ]

    def hold(self) -> None:
        self.press(self.KEY)

    def let_go(self) -> None:
        self.release(self.KEY)

    def stop(self) -> None:
        """Press the emergency stop."""
        self.tap(self.STOP_KEY)


class EmulatedPedalOperator(PedalOperator):
    """The pedal operator with an EmulatedPedal."""

    kernel: ClassVar[type[EmulatedKernel]] = EmulatedKernel
