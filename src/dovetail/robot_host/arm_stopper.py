"""Stops an arm from a process or thread that does not control it, without ever waiting for a driver that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dovetail.core.abilities import IndependentStop, StopConnection
from dovetail.core.contracts import Robot
from dovetail.core.errors import one_line

__all__ = ["ArmStopper", "call_within"]


def call_within(call: Callable[[], None], timeout_s: float, *, name: str = "stop()") -> str | None:
    """Call in another thread. Returns None, or why it failed, also if it has not returned in time."""
    failures: list[str] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # any driver: the caller reports it
            failures.append(f"{name} failed: {one_line(error)}")

    thread = threading.Thread(target=run, name="stop", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        return f"{name} has not returned for {timeout_s:g} s"
    return failures[0] if failures else None


class ArmStopper:
    """The guard's own connection to an arm. Opens the independent connection at once, if the driver has one."""

    def __init__(self, driver: Robot) -> None:
        self._driver = driver
        self._connection = driver.open_stop() if isinstance(driver, IndependentStop) else None

    @property
    def is_independent(self) -> bool:
        """Whether the arm can be stopped while another process is connected to it."""
        return self._connection is not None

    def stop(self, timeout_s: float) -> str | None:
        """Returns None if the arm confirmed the stop, or else what failed."""
        if self._connection is None:
            return call_within(self._driver.stop, timeout_s)
        problem = call_within(self._connection.stop, timeout_s, name="the independent stop()")
        if problem is None:
            return None
        other = call_within(self._driver.stop, timeout_s)
        return None if other is None else f"{problem}; {other}"

    def stop_independently(self, timeout_s: float) -> str | None:
        """As `stop`, but only over the independent connection."""
        assert self._connection is not None
        return call_within(self._connection.stop, timeout_s, name="the independent stop()")

    def reconnect(self, timeout_s: float) -> None:
        """Open the independent connection again, because the arm may have restarted. Keeps the old one if that fails."""
        driver, opened = self._driver, list[StopConnection]()
        if not isinstance(driver, IndependentStop):
            return
        problem = call_within(lambda: opened.append(driver.open_stop()), timeout_s, name="open_stop()")
        if problem is None:
            self.close()
            self._connection = opened[0]

    def close(self) -> None:
        if self._connection is not None:
            call_within(self._connection.close, 0.5, name="close()")
