"""Keys and sticks of Linux input devices, through evdev."""

from __future__ import annotations

from typing import Any

from dovetail.core.errors import UsageError
from dovetail.human.device import load_library

__all__ = ["InputDevice", "key_code"]

EV_SYN, EV_KEY, EV_ABS = 0, 1, 3
SYN_DROPPED = 3


def key_code(name: str, *, operator: str) -> int:
    """Code of a key by name, such as `KEY_B`, or by number."""
    if name.isdigit():
        return int(name)
    codes = load_library("evdev", package="evdev", operator=operator).ecodes.ecodes
    if name not in codes:
        raise UsageError(f"operator '{operator}': unknown key '{name}'. `python -m evdev.evtest` shows key names")
    return int(codes[name])


class InputDevice:
    """A device by path, such as /dev/input/by-id/..., or else the first one with key `wanted`."""

    def __init__(self, path: str | None, *, wanted: int, operator: str) -> None:
        self._path, self._wanted, self._operator = path, wanted, operator
        self._device: Any = None
        self._span: dict[int, tuple[float, float]] = {}  # axis: middle and half range
        self.pressed: set[int] = set()
        self.axes: dict[int, float] = {}

    def open(self) -> None:
        evdev = load_library("evdev", package="evdev", operator=self._operator)
        paths = [self._path] if self._path else sorted(evdev.list_devices())
        for path in paths:
            try:
                device = evdev.InputDevice(path)
            except OSError as error:
                if self._path:
                    raise UsageError(
                        f"operator '{self._operator}': cannot open {path}: {error.strerror or error}"
                    ) from error
                continue
            abilities = device.capabilities()
            if self._wanted in abilities.get(EV_KEY, ()):
                self._device = device
                for code, info in abilities.get(EV_ABS, ()):
                    self._span[code] = ((info.min + info.max) / 2, max((info.max - info.min) / 2, 1e-9))
                self._resync()
                return
            device.close()
        raise UsageError(
            f"operator '{self._operator}': no input device has key {self._wanted}. Plug it in, set operator.path, or "
            "add your user to group 'input'"
        )

    def update(self) -> list[int] | None:
        """Read new events and return the keys that were pressed, in order. None if the device is gone."""
        pressed_keys = []
        try:
            while (event := self._device.read_one()) is not None:
                if event.type == EV_KEY and event.value in (0, 1):  # 2 is a repetition
                    (self.pressed.add if event.value else self.pressed.discard)(event.code)
                    if event.value:
                        pressed_keys.append(event.code)
                elif event.type == EV_ABS and event.code in self._span:
                    self.axes[event.code] = self._scaled(event.code, event.value)
                elif event.type == EV_SYN and event.code == SYN_DROPPED:
                    self._resync()  # the kernel dropped events: read the current state
        except OSError:
            self.pressed.clear()
            return None
        return pressed_keys

    def close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def _resync(self) -> None:
        self.pressed = set(self._device.active_keys())
        self.axes = {code: self._scaled(code, self._device.absinfo(code).value) for code in self._span}

    def _scaled(self, code: int, value: float) -> float:
        middle, reach = self._span[code]
        return min(max((value - middle) / reach, -1.0), 1.0)
