"""Reads a leader arm in a separate thread, and lets it follow the robot.

A leader that hangs does not block the control loop: its last reading expires and the robot holds. A leader that is lost is
tried again. Following ends by itself if the control loop does not renew it, for example after an emergency stop.
"""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np

from dovetail.core.abilities import Leader, StartsSlowly
from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import UsageError, one_line
from dovetail.core.types import Array
from dovetail.human.mailbox import EXPIRY_S

__all__ = ["LeaderReader"]

_PERIOD_S = 0.01
_RETRY_S = 0.5
_OPEN_S = 10.0
_JOIN_S = 2.0


class LeaderReader:
    """The newest positions of a leader and their time."""

    def __init__(self, leader: Leader) -> None:
        self._device = leader
        self._thread: threading.Thread | None = None
        self._ended, self._answered = threading.Event(), threading.Event()
        self._newest: tuple[Array, int] | None = None
        self._problem: Exception | None = None
        self._goal: tuple[Array, int] | None = None  # where the leader follows to, and when that was set
        self._follows = True  # whether the motors may hold it: unknown at first, so that it is released
        self.num_losses = 0  # how often the leader was lost

    def open(self) -> None:
        """Connect, once, and wait for the first reading. Raises UsageError if there is none."""
        if self._thread is None:
            self._ended.clear()
            self._answered.clear()
            self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
            self._thread.start()
            open_s = self._device.start_timeout_s if isinstance(self._device, StartsSlowly) else _OPEN_S
            if not self._answered.wait(open_s):
                self._problem = UsageError(f"it has not answered for {open_s:g} s")
            if self._problem is not None:
                problem = self._problem
                self.close()
                raise UsageError(f"operator 'leader': cannot read '{self._device.name}': {one_line(problem)}")

    def newest(self) -> tuple[Array, int] | None:
        """Positions, float64 [N], and the time before they were read. None before the first one and after a loss."""
        return self._newest

    def positions(self) -> Array | None:
        newest = self._newest
        return None if newest is None else newest[0]

    def follow(self, positions: Array | None) -> None:
        """Let the leader move there, if it can. Call it once per tick; it is valid for 0.25 s."""
        self._goal = None if positions is None else (positions, time.monotonic_ns())

    def release(self) -> None:
        """A person moves the leader."""
        self._goal = None

    def close(self) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join(_JOIN_S)  # a leader that hangs keeps its thread
            self._thread = self._newest = self._problem = self._goal = None
            with contextlib.suppress(Exception):  # a vendor's library may raise anything
                self._device.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._step()
                self._problem = None
                wait_s = _PERIOD_S
            except Exception as error:  # a vendor's library may raise anything
                self._problem = error
                self._lose()
                wait_s = _RETRY_S
            self._answered.set()
            self._ended.wait(wait_s)

    def _step(self) -> None:
        device, goal, time_ns = self._device, self._goal, time.monotonic_ns()
        if goal is not None and device.can_follow and time_ns - goal[1] <= EXPIRY_S * NS_PER_S:
            self._follows = True
            device.follow(goal[0])
        elif self._follows:
            device.release()
            self._follows = False
        time_ns = time.monotonic_ns()
        positions = np.array(device.read(), np.float64)
        if positions.shape != (len(device.axes),) or not np.isfinite(positions).all():
            raise UsageError(f"it gave {positions.tolist()} for {len(device.axes)} axes")
        self._newest = (positions, time_ns)

    def _lose(self) -> None:
        if self._newest is not None:
            self.num_losses += 1
        self._newest, self._follows = None, True
        with contextlib.suppress(Exception):  # it connects again at the next call
            self._device.close()
