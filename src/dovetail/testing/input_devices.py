"""Emulated input devices: a gamepad, a pedal and a SpaceMouse that a test holds in its hand. Linux, no root, no /dev/uinput.

    with EmulatedGamepad(tmp_path / "pad") as pad:
        command = ["dovetail", "run", "push-cube", *pad.overrides]        # another process opens the device
        ...
        pad.hold(); pad.push(ABS_Y, -1.0)                                 # take over and drive forward
        pad.press(BTN_MODE)                                               # emergency stop
        pad.unplug(); pad.plug_in()

A device is a Unix socket that carries the bytes which the kernel would send: `struct input_event` of evdev, or HID
reports of a SpaceMouse. Like the kernel, it sends them to every process that has the device open. A file next to it has
the answers to the ioctls. `overrides` chooses an operator of this module; it is the real one except that it opens the
socket. The real pyspacemouse parses the reports; only easyhid, its access to USB, is replaced.

The terminal's keys need no emulator: use a pseudo terminal (`pty.openpty`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Self

from dovetail.core.errors import UsageError
from dovetail.human import _evdev
from dovetail.human.device_reader import Device
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
from dovetail.human.pedal import PedalOperator
from dovetail.human.spacemouse import SpaceMouseConfig, SpaceMouseOperator

__all__ = [
    "EmulatedGamepad",
    "EmulatedGamepadOperator",
    "EmulatedInput",
    "EmulatedKernel",
    "EmulatedPedal",
    "EmulatedPedalOperator",
    "EmulatedSpaceMouse",
    "EmulatedSpaceMouseOperator",
    "install_easyhid",
]

_STATE = ".state"
_SYN_REPORT = 0
_REPEAT = 2


class _Device:
    """A socket with a state file. Its readers see an end of file once the device is unplugged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._readers: list[socket.socket] = []
        self._late: set[socket.socket] = set()  # readers whose queue was full
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.plug_in()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unplug()

    def plug_in(self) -> None:
        """Create the device."""
        self._write_state()
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with _address(self.path) as address:
            made.bind(address)
        made.listen(128)
        self._socket = made

    def unplug(self) -> None:
        """Remove the device. Its readers fail at their next read."""
        with self._lock:
            if self._socket is not None:
                for path in (self.path, _state_file(self.path)):
                    path.unlink(missing_ok=True)
                for one in (self._socket, *self._readers):
                    one.close()
                self._socket = None
                self._readers.clear()
                self._late.clear()

    def send(self, data: bytes) -> None:
        """Send to each process that has opened the device by now. One that does not read loses it."""
        with self._lock:
            if self._socket is None:
                raise OSError(errno.ENODEV, "the emulated device is unplugged")
            self._accept(self._socket)
            for reader in list(self._readers):
                try:
                    if reader in self._late and (note := self._after_loss()):
                        reader.send(note)
                    self._late.discard(reader)
                    reader.send(data)
                except BlockingIOError:
                    self._late.add(reader)
                except OSError:  # it has closed the device
                    self._readers.remove(reader)
                    self._late.discard(reader)
                    reader.close()

    def reader_pids(self) -> set[int]:
        """Processes that have the device open."""
        with self._lock:
            if self._socket is not None:
                self._accept(self._socket)
            return {_peer_pid(reader) for reader in self._readers if _is_connected(reader)}

    def num_readers(self) -> int:
        """How often the device is open."""
        with self._lock:
            if self._socket is not None:
                self._accept(self._socket)
            return sum(_is_connected(reader) for reader in self._readers)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                reader, _ = listening.accept()
                reader.setblocking(False)
                self._readers.append(reader)

    def _after_loss(self) -> bytes:
        """What a reader gets instead of the data that it has lost."""
        return b""

    def _state(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def _write_state(self) -> None:
        file = _state_file(self.path)
        file.with_suffix(".new").write_text(json.dumps(self._state()))
        file.with_suffix(".new").replace(file)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Address of a socket, which must be shorter than many paths are."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _connect(path: Path) -> int:
    """Open the device. Reads of the descriptor do not block."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as one,
        _address(path) as address,
    ):
        one.connect(address)
        return one.detach()


def _peer_pid(connection: socket.socket) -> int:
    pid: int = struct.unpack("@3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _is_connected(connection: socket.socket) -> bool:
    """A reader sends nothing, so that data means the end of its connection."""
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _state_file(path: Path) -> Path:
    return path.with_name(path.name + _STATE)


class EmulatedInput(_Device):
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
        return [f"operator.type={__name__}:{EmulatedGamepadOperator.__name__}", f"operator.path={self.path}"]

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


class EmulatedPedal(EmulatedInput):
    """A foot switch with a pedal for the takeover and one for the emergency stop."""

    KEY, STOP_KEY = 48, 46  # KEY_B, KEY_C

    def __init__(self, path: Path) -> None:
        super().__init__(path, keys=(self.KEY, self.STOP_KEY))

    @property
    def overrides(self) -> list[str]:
        """Settings of a run that use this pedal; it enables no operator."""
        return [
            f"operator.type={__name__}:{EmulatedPedalOperator.__name__}",
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


class EmulatedSpaceMouse(_Device):
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
            f"operator.type={__name__}:{EmulatedSpaceMouseOperator.__name__}",
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
        self.send_report(bytes([3]) + _mask([_BUTTON_BITS[number] for number in numbers], 6))

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


_BUTTON_BITS: Mapping[int, int] = {0: 0, 1: 23, 4: 22}  # Menu, Alt, Esc


# ---- the side of the run


class EmulatedKernel(_evdev.Kernel):
    """Opens an emulated evdev device and answers its ioctls. Other devices go to the kernel."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}

    def open(self, path: str) -> int:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return super().open(path)
        descriptor = _connect(Path(path))
        self._paths[descriptor] = Path(path)
        return descriptor

    def ioctl(self, descriptor: int, number: int, buffer: bytearray) -> None:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            super().ioctl(descriptor, number, buffer)
            return
        try:
            state = json.loads(_state_file(self._paths[descriptor]).read_text())
        except OSError as error:
            raise OSError(errno.ENODEV, "No such device") from error
        if number == _evdev.SET_CLOCK:
            return
        if number == _evdev.GET_KEYS:
            buffer[:] = _mask(state["keys"], len(buffer))
        elif number == _evdev.GET_KEYS_DOWN:
            buffer[:] = _mask(state["down"], len(buffer))
        elif number == _evdev.GET_AXES:
            buffer[:] = _mask([int(code) for code in state["axes"]], len(buffer))
        else:
            codes = {_evdev.get_abs(int(code)): info for code, info in state["axes"].items()}
            if number not in codes:
                raise OSError(errno.EINVAL, "Invalid argument")
            buffer[:] = _evdev.ABS_INFO.pack(*codes[number])


def _mask(codes: Sequence[int], size: int) -> bytes:
    return sum(1 << code for code in codes).to_bytes(size, "little")


class EmulatedGamepadOperator(GamepadOperator):
    """The gamepad operator with an EmulatedGamepad."""

    kernel: ClassVar[type[EmulatedKernel]] = EmulatedKernel


class EmulatedPedalOperator(PedalOperator):
    """The pedal operator with an EmulatedPedal."""

    kernel: ClassVar[type[EmulatedKernel]] = EmulatedKernel


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
            self.device_list = [Device(path)] if _state_file(path).exists() else []

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
        state = json.loads(_state_file(path).read_text())
        self.path, self.vendor_id, self.product_id = str(path), state["vendor"], state["product"]
        self._descriptor: int | None = None

    def open(self) -> None:
        try:
            self._descriptor = _connect(Path(self.path))
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
