"""Emulated evdev devices: the side of the test, and the kernel as the run sees it."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.human import _evdev
from dovetail.testing.input_devices.socket_device import SocketDevice, connect, mask, state_file

__all__ = ["EmulatedInput", "EmulatedKernel"]

_SYN_REPORT = 0
_REPEAT = 2


class EmulatedInput(SocketDevice):
    """Any evdev device with these keys and axes. Like the kernel, it sends an axis or key only if its value changes."""

    def __init__(
        self, path: Path, *, keys: Sequence[int], axes: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        """`axes` maps each axis to its lowest and highest value."""
        super().__init__(path)
        self._keys, self._ranges = list(keys), dict(axes or {})
        self._values = dict.fromkeys(self._ranges, 0)
        self._down: set[int] = set()

    def press(self, *keys: int) -> None:
        """Press keys and keep them pressed."""
        self._set_keys(keys, down=True)

    def release(self, *keys: int) -> None:
        self._set_keys(keys, down=False)

    def tap(self, *keys: int) -> None:
        self.press(*keys)
        self.release(*keys)

    def repeat(self, key: int) -> None:
        """The kernel repeats a key that is held."""
        self._send((_evdev.EV_KEY, key, _REPEAT))

    def push(self, axis: int, value: float) -> None:
        """Move a stick to a value from -1 to 1."""
        low, high = self._ranges[axis]
        self.push_raw(axis, round(low + (value + 1.0) / 2.0 * (high - low)))

    def push_raw(self, axis: int, value: int) -> None:
        if self._values[axis] != value:
            self._values[axis] = value
            self._write_state()
            self._send((_evdev.EV_ABS, axis, value))

    def drop_events(self, *, release: Sequence[int] = (), press: Sequence[int] = ()) -> None:
        """Change keys while the kernel's queue is full: only a note arrives that events were dropped."""
        self._down = (self._down - set(release)) | set(press)
        self._write_state()
        self.send(self._after_loss())

    def _set_keys(self, keys: Sequence[int], *, down: bool) -> None:
        changed = [key for key in keys if (key in self._down) is not down]
        self._down = self._down | set(changed) if down else self._down - set(changed)
        self._write_state()
        self._send(*((_evdev.EV_KEY, key, int(down)) for key in changed))

    def _send(self, *events: tuple[int, int, int]) -> None:
        self.send(_events(*events))

    def _after_loss(self) -> bytes:
        return _events((_evdev.EV_SYN, _evdev.SYN_DROPPED, 0))

    def _state(self) -> Mapping[str, Any]:
        axes = {str(code): [self._values[code], *limits, 0, 0, 0] for code, limits in self._ranges.items()}
        return {"keys": self._keys, "down": sorted(self._down), "axes": axes}


def _events(*rows: tuple[int, int, int]) -> bytes:
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    ended = (*rows, (_evdev.EV_SYN, _SYN_REPORT, 0))
    return b"".join(_evdev.EVENT.pack(now_us // 10**6, now_us % 10**6, *row) for row in ended)


class EmulatedKernel(_evdev.Kernel):
    """Opens an emulated evdev device and answers its ioctls. Other devices go to the kernel."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}

    def open(self, path: str) -> int:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return super().open(path)
        descriptor = connect(Path(path))
        self._paths[descriptor] = Path(path)
        return descriptor

    def ioctl(self, descriptor: int, number: int, buffer: bytearray) -> None:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            super().ioctl(descriptor, number, buffer)
            return
        try:
            state = json.loads(state_file(self._paths[descriptor]).read_text())
        except OSError as error:
            raise OSError(errno.ENODEV, "No such device") from error
        if number == _evdev.SET_CLOCK:
            return
        if number == _evdev.GET_KEYS:
            buffer[:] = mask(state["keys"], len(buffer))
        elif number == _evdev.GET_KEYS_DOWN:
            buffer[:] = mask(state["down"], len(buffer))
        elif number == _evdev.GET_AXES:
            buffer[:] = mask([int(code) for code in state["axes"]], len(buffer))
        else:
            codes = {_evdev.get_abs(int(code)): info for code, info in state["axes"].items()}
            if number not in codes:
                raise OSError(errno.EINVAL, "Invalid argument")
            buffer[:] = _evdev.ABS_INFO.pack(*codes[number])
