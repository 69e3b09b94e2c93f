"""An emulated SpaceMouse, and the replacement of easyhid that finds it."""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from dovetail.core.errors import UsageError
from dovetail.human.device_reader import Device
from dovetail.human.spacemouse import SpaceMouseConfig, SpaceMouseOperator
from dovetail.testing.input_devices.socket_device import PLUGINS, SocketDevice, connect, mask, state_file

__all__ = ["EmulatedSpaceMouse", "EmulatedSpaceMouseOperator", "install_easyhid"]

_BUTTON_BITS: Mapping[int, int] = {0: 0, 1: 23, 4: 22}  # Menu, Alt, Esc


class EmulatedSpaceMouse(SocketDevice):
    """A SpaceMouse Pro: 3Dconnexion's HID reports. A pushed cap repeats its reports every 8 ms, as a real one does."""

    VENDOR, PRODUCT = 0x046D, 0xC62B
    SCALE = 350  # a report's value at full deflection
    NUM_ZEROS = 3  # reports after the cap has come to rest
    STOP_BUTTON = 4  # Esc

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._cap: tuple[float, ...] = (0.0,) * 6
        self._repeats = threading.Event()

    @property
    def overrides(self) -> list[str]:
        """Settings of a run that use this SpaceMouse."""
        return [
            f"operator.type={PLUGINS}:{EmulatedSpaceMouseOperator.__name__}",
            f"operator.path={self.path}",
            f"operator.stop_button={self.STOP_BUTTON}",
        ]

    def push(
        self,
        *,
        right: float = 0.0,
        back: float = 0.0,
        down: float = 0.0,
        rotation: Sequence[float] = (0.0, 0.0, 0.0),
    ) -> None:
        """Push the cap, from -1 to 1, in the axes of its HID reports: x right, y toward the person, z down. It repeats."""
        self._repeats.set()
        self._cap, self._repeats = (right, back, down, *rotation), threading.Event()
        self._report()
        threading.Thread(target=self._repeat, args=(self._repeats,), daemon=True).start()

    def rest(self) -> None:
        """Release the cap."""
        self._repeats.set()
        self._cap = (0.0,) * 6
        for _ in range(self.NUM_ZEROS):
            self._report()

    def be_silent(self) -> None:
        """The cap stays pushed, but no reports arrive any more."""
        self._repeats.set()

    def buttons(self, *numbers: int) -> None:
        """Press these buttons, counted as pyspacemouse does, and release all others."""
        self.send_report(bytes([3]) + mask([_BUTTON_BITS[number] for number in numbers], 6))

    def stop(self) -> None:
        """Press the emergency stop."""
        self.buttons(self.STOP_BUTTON)
        self.buttons()

    def send_report(self, report: bytes) -> None:
        """Send any HID report."""
        self.send(report)

    def unplug(self) -> None:
        self._repeats.set()
        super().unplug()

    def _report(self) -> None:
        values = [round(self.SCALE * value) for value in self._cap]
        self.send_report(struct.pack("<B3h", 1, *values[:3]))
        self.send_report(struct.pack("<B3h", 2, *values[3:]))

    def _repeat(self, ended: threading.Event) -> None:
        while not ended.wait(0.008):
            try:
                self._report()
            except OSError:
                return

    def _state(self) -> Mapping[str, Any]:
        return {"vendor": self.VENDOR, "product": self.PRODUCT}


class EmulatedSpaceMouseConfig(SpaceMouseConfig):
    """An EmulatedSpaceMouse."""

    path: str
    """Socket of the device."""


class EmulatedSpaceMouseOperator(SpaceMouseOperator):
    """The SpaceMouse operator with an EmulatedSpaceMouse. It replaces the module easyhid of this process."""

    Config: ClassVar[type[EmulatedSpaceMouseConfig]] = EmulatedSpaceMouseConfig

    @classmethod
    def make_device(cls, config: SpaceMouseConfig) -> Device:
        assert isinstance(config, EmulatedSpaceMouseConfig)
        install_easyhid(Path(config.path))
        return super().make_device(config)


def install_easyhid(path: Path) -> None:
    """Replace easyhid, before pyspacemouse is imported, by one that finds the emulated SpaceMouse at `path`."""
    module = ModuleType("easyhid")

    class HIDException(Exception):
        pass

    class Device(_HidDevice):
        error = HIDException

    class Enumeration:
        def __init__(self, vid: int = 0, pid: int = 0) -> None:
            self.device_list = [Device(path)] if state_file(path).exists() else []

        def find(self) -> list[Device]:
            return self.device_list

    for name, value in (("Enumeration", Enumeration), ("HIDException", HIDException), ("HIDDevice", Device)):
        setattr(module, name, value)
    sys.modules["easyhid"] = module
    for name in [name for name in sys.modules if name.split(".")[0] == "pyspacemouse"]:
        del sys.modules[name]


class _HidDevice:
    """Like easyhid's HIDDevice, with the reports of a socket."""

    error: type[Exception] = UsageError
    product_string, manufacturer_string, release_number, serial_number = "SpaceMouse", "3Dconnexion", 1, "0"

    def __init__(self, path: Path) -> None:
        state = json.loads(state_file(path).read_text())
        self.path, self.vendor_id, self.product_id = str(path), state["vendor"], state["product"]
        self._descriptor: int | None = None

    def open(self) -> None:
        try:
            self._descriptor = connect(Path(self.path))
        except OSError as error:
            raise self.error("Failed to open device") from error

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def set_nonblocking(self, enable: bool) -> None:
        pass

    def read(self, size: int = 64, timeout: int | None = None) -> bytearray:
        """One report, filled up with zeros; empty if there is none."""
        assert self._descriptor is not None
        try:
            report = os.read(self._descriptor, size)
        except BlockingIOError:
            return bytearray()
        except OSError:
            report = b""
        if not report:
            raise self.error("Failed to read from HID device: -1")
        return bytearray(report.ljust(size, b"\0"))
