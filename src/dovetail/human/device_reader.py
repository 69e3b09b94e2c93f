"""Reads an input device in a thread of its own.

A device that hangs does not block the control loop: its last reading expires and the arm holds. A control loop that hangs
does not block the device: its emergency stop is reported at once. A device that is gone is opened again when it returns.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Event

__all__ = ["Device", "DeviceReader", "Reading"]

_PERIOD_S = 0.005
_REOPEN_S = 0.5
_MAX_EVENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a device. Each event is reported once. `time_ns` is when the state was true, in monotonic time."""

    held: bool
    axes: Array  # float32 [N], each from -1 to 1
    event: Event | None = None
    num_presses: int | None = None  # of the switch so far; None: each change of `held` to true is one
    time_ns: int = field(default_factory=time.monotonic_ns)


class Device(Protocol):
    def open(self) -> None:
        """Raises UsageError if the device or its library is missing. A switch that is held already does not count as held
        until it is pressed again."""

    def read(self) -> Reading | None:
        """Return the state. None if the device is gone; then it is closed and opened again."""

    def close(self) -> None: ...


class DeviceReader:
    """The newest reading and the unread events of a device. `on_emergency` is called by the thread; without it, the
    emergency stop is an event."""

    def __init__(self, device: Device, *, name: str) -> None:
        self._device, self._name = device, name
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._was_held = False
        self._newest: tuple[Reading, int] | None = None  # with the number of its press
        self._num_presses = 0
        self.num_losses = 0  # how often the device was gone
        self.on_emergency: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    def open(self) -> None:
        """Open the device, once. Raises UsageError."""
        if self._thread is None:
            self._device.open()
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def newest(self) -> tuple[Reading, int] | None:
        """The newest reading and the number of the press of its switch. None before the first one and after a loss."""
        return self._newest

    def next_event(self) -> Event | None:
        """Return the oldest unread event, once. An emergency stop comes first, and the others are dropped."""
        if Event.EMERGENCY in self._events:
            self._events.clear()
            return Event.EMERGENCY
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join(1.0)  # a device that hangs keeps its thread
            self._device.close()
            self._thread = None

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            try:
                reading = self._device.read()
            except Exception:  # a vendor's library may raise anything
                reading = None
            if reading is None:
                self._lose()
            else:
                self._accept(reading)

    def _accept(self, reading: Reading) -> None:
        if reading.num_presses is not None:
            self._num_presses = reading.num_presses
        else:
            self._num_presses += reading.held and not self._was_held
        self._was_held = reading.held
        self._newest = (reading, self._num_presses)
        if reading.event is Event.EMERGENCY and self.on_emergency is not None:
            self.on_emergency()
        elif reading.event is not None:
            self._events.append(reading.event)

    def _lose(self) -> None:
        self.num_losses += 1
        self._newest, self._was_held = None, False
        while not self._ended.is_set():
            with contextlib.suppress(Exception):  # a vendor's library may raise anything
                self._device.close()
            try:
                self._device.open()
                return
            except UsageError:
                self._ended.wait(_REOPEN_S)
