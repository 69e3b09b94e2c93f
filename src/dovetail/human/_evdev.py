"""Keys and sticks of Linux input devices, read from /dev/input/event* as the kernel writes them.

A device whose values do not change sends nothing, so silence is normal at rest. An unplugged one fails to read. See
`human.gamepad` for a wireless one that is out of range. The kernel sends every event to each process that has the device
open.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import struct
import time
from collections.abc import Collection

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import UsageError

__all__ = ["EVENT", "InputDevice", "Kernel", "key_code"]

DEVICES = "/dev/input/event*"
EVENT = struct.Struct("@llHHi")  # seconds, microseconds, type, code, value
EV_SYN, EV_KEY, EV_ABS = 0, 1, 3
SYN_DROPPED = 3
KEY_BYTES = 96  # one bit for each of 768 keys
ABS_INFO = struct.Struct("@6i")  # value, min, max, fuzz, flat, resolution
_READ, _WRITE = 2, 1
_NAMES = {
    **{f"KEY_{letter}": code for row, first in (("QWERTYUIOP", 16), ("ASDFGHJKL", 30), ("ZXCVBNM", 44))
       for code, letter in enumerate(row, first)},
    **{f"KEY_{digit}": code for code, digit in enumerate("1234567890", 2)},
    **{f"KEY_F{number}": 58 + number for number in range(1, 11)}, "KEY_F11": 87, "KEY_F12": 88,
    **{f"KEY_F{number}": 170 + number for number in range(13, 25)},
    "KEY_ESC": 1, "KEY_BACKSPACE": 14, "KEY_TAB": 15, "KEY_ENTER": 28, "KEY_LEFTCTRL": 29, "KEY_LEFTSHIFT": 42,
    "KEY_LEFTALT": 56, "KEY_SPACE": 57, "KEY_HOME": 102, "KEY_UP": 103, "KEY_PAGEUP": 104, "KEY_LEFT": 105, "KEY_RIGHT": 106,
    "KEY_END": 107, "KEY_DOWN": 108, "KEY_PAGEDOWN": 109, "KEY_INSERT": 110, "KEY_DELETE": 111,
    "BTN_LEFT": 272, "BTN_RIGHT": 273, "BTN_MIDDLE": 274, "BTN_SOUTH": 304, "BTN_EAST": 305, "BTN_NORTH": 307,
    "BTN_WEST": 308, "BTN_TL": 310, "BTN_TR": 311, "BTN_SELECT": 314, "BTN_START": 315, "BTN_MODE": 316,
    **{f"BTN_{number}": 256 + number for number in range(10)},
}  # fmt: skip


def request(direction: int, number: int, size: int) -> int:
    """Number of an ioctl of the input system."""
    return direction << 30 | size << 16 | ord("E") << 8 | number


GET_KEYS_DOWN = request(_READ, 0x18, KEY_BYTES)  # EVIOCGKEY
GET_KEYS = request(_READ, 0x20 + EV_KEY, KEY_BYTES)  # EVIOCGBIT: the keys that it has
GET_AXES = request(_READ, 0x20 + EV_ABS, 8)  # the axes that it has
SET_CLOCK = request(_WRITE, 0xA0, 4)  # EVIOCSCLOCKID


def get_abs(code: int) -> int:
    """EVIOCGABS: state and range of an axis."""
    return request(_READ, 0x40 + code, ABS_INFO.size)


def key_code(name: str, *, operator: str) -> int:
    """Code of a key by name, such as `KEY_B`, or by number."""
    if name.isdigit() and int(name) < 8 * KEY_BYTES:
        return int(name)
    if name not in _NAMES:
        raise UsageError(
            f"operator '{operator}': unknown key '{name}'. Give its number; the program `evtest` shows it"
        )
    return _NAMES[name]


class Kernel:
    """System calls of an input device. `testing.input_devices` replaces them."""

    def open(self, path: str) -> int:
        """A descriptor whose reads do not block."""
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def ioctl(self, descriptor: int, number: int, buffer: bytearray) -> None:
        """Fill the buffer."""
        fcntl.ioctl(descriptor, number, buffer)


class InputDevice:
    """A device by path, such as /dev/input/by-id/..., or else the first one with all keys in `wanted`.

    `stop_keys` that are held while the device opens count as pressed. All other keys do not.
    """

    def __init__(
        self,
        path: str | None,
        *,
        wanted: set[int],
        operator: str,
        stop_keys: Collection[int] = (),
        kernel: Kernel | None = None,
    ) -> None:
        self._path, self._wanted, self._operator, self._stop_keys = path, wanted, operator, set(stop_keys)
        self._kernel = kernel or Kernel()
        self._descriptor: int | None = None
        self._is_gone = False
        self._pressed_keys: list[int] = []  # not yet returned by `update`
        self._span: dict[int, tuple[float, float]] = {}  # axis: middle and half range
        self.pressed: set[int] = set()
        self.axes: dict[int, float] = {}  # from -1 to 1; an axis is unknown until it moves
        self.event_ns = 0  # monotonic time of the newest event, by the kernel

    def open(self) -> None:
        paths = [self._path] if self._path else sorted(glob.glob(DEVICES), key=lambda path: (len(path), path))
        for path in paths:
            try:
                self._descriptor = self._kernel.open(path)
                if self._begin():
                    return
                self.close()
            except OSError as error:
                self.close()
                if self._path:
                    reason = error.strerror or error
                    raise UsageError(f"operator '{self._operator}': cannot open {path}: {reason}") from error
        keys = ", ".join(map(str, sorted(self._wanted)))
        raise UsageError(
            f"operator '{self._operator}': no input device has key {keys}. Plug it in, set operator.path, or "
            "add your user to group 'input'"
        )

    def update(self) -> list[int] | None:
        """Read new events and return the keys that were pressed, in order. None if the device is gone, or if the kernel
        has dropped events: open it again. Keys that were pressed before are returned first."""
        assert self._descriptor is not None, "open() comes first"
        if not self._is_gone:
            try:
                while data := self._read():
                    for seconds, microseconds, kind, code, value in EVENT.iter_unpack(data):
                        self.event_ns = seconds * NS_PER_S + 1000 * microseconds
                        self._apply(kind, code, value)
            except OSError:
                self._is_gone = True
        pressed_keys, self._pressed_keys = self._pressed_keys, []
        return None if self._is_gone and not pressed_keys else pressed_keys

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _begin(self) -> bool:
        """Begin to read. False if it is another device. The state before opening does not count, except for stop keys."""
        self._get(SET_CLOCK, bytearray(struct.pack("@i", time.CLOCK_MONOTONIC)))
        if not self._wanted <= _bits(self._get(GET_KEYS, bytearray(KEY_BYTES))):
            return False
        self._span = {}
        for code in _bits(self._get(GET_AXES, bytearray(8))):
            _, low, high, *_ = ABS_INFO.unpack(self._get(get_abs(code), bytearray(ABS_INFO.size)))
            self._span[code] = ((low + high) / 2, max((high - low) / 2, 1e-9))
        self.pressed, self.axes, self.event_ns, self._is_gone = set(), {}, time.monotonic_ns(), False
        self._pressed_keys = sorted(self._stop_keys & _bits(self._get(GET_KEYS_DOWN, bytearray(KEY_BYTES))))
        return True

    def _apply(self, kind: int, code: int, value: int) -> None:
        if kind == EV_KEY and value in (0, 1):  # 2 is a repetition
            (self.pressed.add if value else self.pressed.discard)(code)
            if value:
                self._pressed_keys.append(code)
        elif kind == EV_ABS and code in self._span:
            self.axes[code] = self._scaled(code, value)
        elif kind == EV_SYN and code == SYN_DROPPED:
            self._is_gone = True  # the state is unknown; presses after it still count

    def _read(self) -> bytes:
        """Empty if there is no event."""
        assert self._descriptor is not None
        try:
            data = os.read(self._descriptor, 64 * EVENT.size)
        except BlockingIOError:
            return b""
        if len(data) % EVENT.size or not data:
            raise OSError(errno.ENODEV, "No such device")
        return data

    def _get(self, number: int, buffer: bytearray) -> bytearray:
        assert self._descriptor is not None
        self._kernel.ioctl(self._descriptor, number, buffer)
        return buffer

    def _scaled(self, code: int, value: float) -> float:
        middle, reach = self._span[code]
        return min(max((value - middle) / reach, -1.0), 1.0)


def _bits(data: bytes | bytearray) -> set[int]:
    return {8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1}
