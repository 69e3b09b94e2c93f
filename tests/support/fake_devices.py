"""Fakes of the input device libraries evdev and pyspacemouse."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

EV_KEY, EV_ABS = 1, 3


class FakeInput:
    """Like evdev's InputDevice: events are read one by one; reading an unplugged device raises OSError."""

    def __init__(self, keys=(), axes=(), path="/dev/input/event7"):
        self.keys, self.axes, self.path = list(keys), dict.fromkeys(axes, 0), path
        self.events, self.down, self.plugged, self.is_open = deque(), set(), True, False

    def capabilities(self):
        info = [(code, SimpleNamespace(min=-32768, max=32767, value=self.axes[code])) for code in self.axes]
        return {EV_KEY: self.keys, EV_ABS: info}

    def absinfo(self, code):
        return SimpleNamespace(value=self.axes[code])

    def active_keys(self):
        return sorted(self.down)

    def read_one(self):
        if not self.plugged:
            raise OSError(19, "No such device")
        return self.events.popleft() if self.events else None

    def close(self):
        self.is_open = False

    # ---- for tests

    def press(self, *keys):
        for key in keys:
            self.down.add(key)
            self._emit(EV_KEY, key, 1)

    def release(self, *keys):
        for key in keys:
            self.down.discard(key)
            self._emit(EV_KEY, key, 0)

    def push(self, code, value):
        self.axes[code] = value
        self._emit(EV_ABS, code, value)

    def _emit(self, kind, code, value):
        self.events.append(SimpleNamespace(type=kind, code=code, value=value))


class FakeEvdev:
    """Like the module evdev."""

    def __init__(self, *devices):
        self._devices = {device.path: device for device in devices}
        self.ecodes = SimpleNamespace(ecodes={"KEY_B": 48, "BTN_TL": 310})

    def list_devices(self):
        return list(self._devices)

    def InputDevice(self, path):  # noqa: N802
        if path not in self._devices:
            raise OSError(2, "No such file or directory")
        self._devices[path].is_open = True
        return self._devices[path]


class FakeSpaceMouse:
    """Like the module pyspacemouse."""

    def __init__(self):
        self.plugged, self.present, self.num_reads = True, True, 0
        self.rest()

    def rest(self):
        self._set()

    def move(self, **axes):
        self._set(**axes)

    def open(self):
        return self.present

    def read(self):
        self.num_reads += 1
        if not self.plugged:
            raise OSError("read error")
        return self.state

    def close(self):
        pass

    def _set(self, **axes):
        self.state = SimpleNamespace(
            **{"x": 0.0, "y": 0.0, "z": 0.0, "roll": 0.0, "pitch": 0.0, "yaw": 0.0, "buttons": [0, 0], **axes}
        )
