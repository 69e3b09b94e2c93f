"""A thread that stops the arm when the control loop of the same process does not.

It can do less than the guard process: it cannot end the loop, and a driver that holds the interpreter's lock blocks it too.
A robot on the real clock therefore needs `safety.controller_watchdog=true` in `one_process`.
"""

from __future__ import annotations

import threading
import time

from dovetail.robot_host.arm_stopper import ArmStopper
from dovetail.robot_host.stop_sources import StopConfirmation, StopSources, is_at_rest
from dovetail.robots.safety import SafeRobot

__all__ = ["StopWatch"]

_POLL_S = 0.01
_STOP_S = 1.0


class StopWatch:
    """Runs until `close`. `stopper` is None for a simulated robot: only the loop that advances it may touch it."""

    def __init__(
        self, robot: SafeRobot, sources: StopSources, *, stopper: ArmStopper | None, confirm_s: float
    ) -> None:
        self._robot, self._sources, self._stopper, self._confirm_s = robot, sources, stopper, confirm_s
        self._confirmation = StopConfirmation(robot.command_times, confirm_s=confirm_s)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._stopper is not None:
            self._stopper.close()

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            now_ns = time.monotonic_ns()
            reason = self._sources.emergency() or self._sources.ending()
            overdue = self._confirmation.is_overdue(now_ns, stop_wanted=reason is not None)
            if reason is not None and overdue and self._stopper is not None:
                self._stop(reason, self._stopper)
            elif reason is not None and self._is_stopped():
                self._sources.confirm()

    def _is_stopped(self) -> bool:
        return is_at_rest(self._robot.command_times) if self._stopper is None else self._confirmation.is_confirmed

    def _stop(self, reason: str, stopper: ArmStopper) -> None:
        """Latch the fault first: a call that returns late must not be followed by a command."""
        if not is_at_rest(self._robot.command_times):
            self._robot.latch(f"{reason}; the control loop did not stop the arm in {self._confirm_s:g} s")
        if stopper.stop(_STOP_S) is None:
            self._robot.command_times[1] = time.monotonic_ns()
            self._sources.confirm()
