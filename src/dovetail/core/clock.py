"""Clocks. The same control loop runs on a robot and in simulated time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["NS_PER_S", "RealClock", "SimulatedClock", "boot_id"]

NS_PER_S = 1_000_000_000


def boot_id() -> str:
    """Id of this boot of the machine, whose monotonic clock counts the steps. Empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class RealClock:
    """The monotonic clock of this host. Sleeps, then spins the last 300 us: `sleep` alone wakes late."""

    SPIN_NS = 300_000

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, deadline_ns: int) -> None:
        remaining_ns = deadline_ns - time.monotonic_ns() - self.SPIN_NS
        if remaining_ns > 0:
            time.sleep(remaining_ns / NS_PER_S)
        while time.monotonic_ns() < deadline_ns:
            pass


class SimulatedClock:
    """Simulated time. It advances only in `sleep_until`, which also advances the simulators.

    With `realtime`, simulated time never runs ahead of real time.
    """

    def __init__(self, *, realtime: bool = False) -> None:
        self._now_ns = 0
        self._listeners: list[Callable[[int], None]] = []
        self._wall = RealClock() if realtime else None
        self._anchor_ns = self._wall.now_ns() if self._wall else 0

    def on_advance(self, listener: Callable[[int], None]) -> None:
        """Call `listener(duration_ns)` each time simulated time passes."""
        self._listeners.append(listener)

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_until(self, deadline_ns: int) -> None:
        duration_ns = deadline_ns - self._now_ns
        if duration_ns <= 0:
            return
        self._now_ns = deadline_ns
        for listener in self._listeners:
            listener(duration_ns)
        if self._wall:
            due_ns = self._anchor_ns + self._now_ns
            if self._wall.now_ns() > due_ns:  # late: re-anchor, so that lost time is never caught up in a burst
                self._anchor_ns = self._wall.now_ns() - self._now_ns
            else:
                self._wall.sleep_until(due_ns)
