"""When ticks of the control loop end. Deadlines are absolute; a late command moves those that follow."""

from __future__ import annotations

import time
from collections.abc import Callable

from dovetail.actor.board import Board
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import RealClock
from dovetail.core.contracts import Clock

__all__ = ["TickTimer"]

_CHECK_NS = 10_000_000
_LATE_SEND = 4  # a command later than 1/4 of its tick moves the next deadline


class TickTimer:
    """Call `sent` after each command and `wait` at the end of each tick.

    `may_wait` is called every 10 ms of a long tick in real time. False ends the wait; it may raise a fault.
    """

    def __init__(
        self, board: Board, clock: Clock, telemetry: Telemetry, *, period_ns: int, may_wait: Callable[[], bool]
    ) -> None:
        self._board, self._clock, self._telemetry = board, clock, telemetry
        self._period_ns, self._may_wait = period_ns, may_wait
        self._is_real_time = isinstance(clock, RealClock)
        self._sent_ns = self._deadline_ns = 0

    def reset(self) -> None:
        """A new episode begins: no command was sent."""
        self._sent_ns = self._deadline_ns = 0

    def restart(self) -> None:
        """The next tick begins now."""
        self._deadline_ns = self._clock.now_ns()

    def sent(self) -> None:
        """A command was sent now."""
        self._sent_ns = self._clock.now_ns()

    def wait(self) -> None:
        """Sleep until the end of the tick. A late command moves the end, so that each action gets its whole period."""
        end_ns, now_ns = self._deadline_ns + self._period_ns, self._clock.now_ns()
        late_ns = now_ns - end_ns
        overrun = late_ns > 0
        if overrun or self._sent_ns - self._deadline_ns > self._period_ns // _LATE_SEND:
            end_ns = max(self._sent_ns + self._period_ns, now_ns)
        self._deadline_ns = end_ns
        self._sleep_until(end_ns)
        if not overrun:
            late_ns = self._clock.now_ns() - end_ns
        now_ns = time.monotonic_ns()
        self._board.beat_control(now_ns)
        self._board.ticked(now_ns, late_ns=late_ns, overrun=overrun, inference_ns=self._telemetry.inference_ns)
        self._telemetry.tick(late_ns=late_ns, overrun=overrun, missed=late_ns > self._period_ns)

    def _sleep_until(self, end_ns: int) -> None:
        """Sleep. In real time, check for a stop every 10 ms, because a slow robot's tick is long."""
        while self._is_real_time and end_ns - self._clock.now_ns() > 2 * _CHECK_NS:
            self._clock.sleep_until(self._clock.now_ns() + _CHECK_NS)
            self._board.beat_control(time.monotonic_ns())
            if not self._may_wait():
                return
        self._clock.sleep_until(end_ns)
