"""Reads an input device in a separate thread.

A device that hangs does not block the control loop: its last reading expires and the arm holds. A control loop that hangs
does not block the device: its emergency stop is reported at once. A device that is gone is opened again when it returns. The
thread continues after any error, because it receives STOP.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dovetail.core.errors import UsageError, one_line
from dovetail.core.problem_report import ProblemReport
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
    num_next: int = 0  # how often the next selection was chosen so far, less how often the previous one was
    num_next_part: int = 0  # the same for the next arm or base
    time_ns: int = field(default_factory=time.monotonic_ns)


class Device(Protocol):
    def open(self) -> None:
        """Raises UsageError if the device or its library is missing. A switch that is held already does not count as held
        until it is pressed again. An emergency stop that is held already counts as pressed, if the device can tell."""

    def read(self) -> Reading | None:
        """Return the state. None if the device is gone; then it is closed and opened again."""

    def close(self) -> None: ...


class DeviceReader:
    """The newest reading and the unread events of a device.

    `on_emergency` is called by the thread, again and again until it succeeds. Without it, the emergency stop is an event.
    """

    def __init__(self, device: Device, *, name: str) -> None:
        self._device, self._name = device, name
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._report = ProblemReport(f"the thread that reads the {name}")
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._was_held = False
        self._newest: tuple[Reading, int] | None = None  # with the number of its press
        self._num_presses = 0
        self._is_lost, self._reopen_s = False, 0.0
        self._missing: Exception | None = None  # why the device has never been opened
        self._emergency = False  # pressed, and not yet passed on
        self.num_losses = 0  # how often the device was gone
        self.on_emergency: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    @property
    def thread_id(self) -> int:
        """Native id of the thread, for its priority. 0 if it does not run."""
        return (self._thread and self._thread.native_id) or 0

    def open(self) -> None:
        """Open the device, once. Raises UsageError if it is missing."""
        if self._missing is not None:
            raise UsageError(one_line(self._missing))
        if self._thread is None:
            self._device.open()
            self._start()

    def watch(self) -> None:
        """Open the device, or wait in the thread until it is plugged in."""
        if self._thread is None:
            try:
                self._device.open()
            except Exception as error:  # a vendor's library may raise anything
                self._missing, self._is_lost = error, True
            self._start()

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
            self._thread, self._missing, self._is_lost = None, None, False

    def _start(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            try:
                self._pass_on_emergency()
                if self._is_lost:
                    self._reopen()
                else:
                    self._read()
            except Exception as error:  # a thread that ends would receive no later STOP
                self._report(error)

    def _read(self) -> None:
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
            self._emergency = True
            self._pass_on_emergency()
            if self._emergency:
                self._events.append(Event.EMERGENCY)  # stops at least this arm
        elif reading.event is not None:
            self._events.append(reading.event)

    def _pass_on_emergency(self) -> None:
        if self._emergency and self.on_emergency is not None:
            try:
                self.on_emergency()
                self._emergency = False
            except Exception as error:  # the next round tries again
                self._report(error)

    def _lose(self) -> None:
        self.num_losses += 1
        self._newest, self._was_held = None, False
        self._is_lost, self._reopen_s = True, 0.0
        self._reopen()

    def _reopen(self) -> None:
        if time.monotonic() < self._reopen_s:
            return
        self._reopen_s = time.monotonic() + _REOPEN_S
        with contextlib.suppress(Exception):  # a vendor's library may raise anything
            self._device.close()
        try:
            self._device.open()
        except UsageError:
            return  # still gone
        self._is_lost, self._missing = False, None
