"""All requests to stop one arm, and whether the arm was stopped since. Control, guard and supervisor poll them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
import numpy.typing as npt

from dovetail.actor.board import Board
from dovetail.core.clock import NS_PER_S
from dovetail.human.mailbox import Mailbox
from dovetail.live.emergency import emergency_reason
from dovetail.live.run_stop import RunStop
from dovetail.processes.shared_memory import map_memory

__all__ = ["StopConfirmation", "StopSources", "is_at_rest"]


class StopSources:
    """The emergency stops of the console and of the run, and the requests to end the run or the episode."""

    def __init__(
        self,
        *,
        mailbox: Mailbox | None = None,
        run_stop: RunStop | None = None,
        board: Board | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.mailbox, self.run_stop, self._board, self._should_stop = mailbox, run_stop, board, should_stop
        self._confirmed = [0, 0]  # the press and the end that `confirm` has reported

    @classmethod
    def inherited(
        cls, descriptors: Mapping[str, int], *, num_axes: int, run_stop: RunStop | None, board: Board
    ) -> Self:
        """In a child process: from the descriptor `mailbox`, if it has one. Closes it."""
        mailbox = None
        if (descriptor := descriptors.get("mailbox")) is not None:
            mailbox = Mailbox(num_axes, map_memory(descriptor, Mailbox.num_bytes(num_axes)))
            os.close(descriptor)  # the mapping remains
        return cls(mailbox=mailbox, run_stop=run_stop, board=board)

    @staticmethod
    def inherited_stop(descriptors: Mapping[str, int], *, arm: str | None) -> RunStop | None:
        """In a child process: the run's emergency stop, from the descriptor `run_stop`, if it has one. Closes it."""
        if (descriptor := descriptors.get("run_stop")) is None:
            return None
        run_stop = RunStop.from_descriptor(descriptor, arm=arm)
        os.close(descriptor)
        return run_stop

    def emergency(self) -> str | None:
        """The emergency stop in force, or None."""
        return emergency_reason(self.mailbox, self.run_stop) if self.mailbox is not None else None

    def ending(self) -> str | None:
        """Why the episode is to end, or None."""
        if self.run_stop is not None and self.run_stop.ending:
            return f"the run is to end ({self.run_stop.end_source})"
        if self._board is not None and self._board.stopping:
            return "the supervisor asked it to stop"
        if self._should_stop():
            return "the run is to end"
        return None

    def confirm(self) -> None:
        """Report to the run that the arm has been stopped. Repeated calls report each press and each end once."""
        stop = self.run_stop
        if stop is None:
            return
        seen, *requests = stop.requests  # of one moment: a press after it is confirmed by the next call
        if requests != self._confirmed and any(requests):
            stop.confirm(seen)
        self._confirmed = requests


def is_at_rest(command_times: npt.NDArray[np.int64]) -> bool:
    """Whether no command followed the last stop. See `SafeRobot.command_times`."""
    commanded_ns, stopped_ns, _ = command_times.tolist()
    return bool(stopped_ns >= commanded_ns)


class StopConfirmation:
    """Whether the control loop has stopped the arm after a STOP. Pass each poll to `is_overdue`."""

    def __init__(self, command_times: npt.NDArray[np.int64], *, confirm_s: float) -> None:
        self._times, self._confirm_ns = command_times, round(confirm_s * NS_PER_S)
        self._quiet_ns = time.monotonic_ns()  # the last poll without a STOP: the STOP is newer
        self.seen_ns: int | None = None  # when the STOP was first seen

    def is_overdue(self, now_ns: int, *, stop_wanted: bool) -> bool:
        """Whether a STOP is older than `confirm_s` and the arm has not been stopped since. `now_ns`: before the poll."""
        if not stop_wanted:
            self._quiet_ns, self.seen_ns = now_ns, None
            return False
        if self.seen_ns is None:
            self.seen_ns = now_ns
        return not self.is_confirmed and now_ns - self.seen_ns >= self._confirm_ns

    @property
    def is_confirmed(self) -> bool:
        return is_at_rest(self._times) and int(self._times[1]) >= self._quiet_ns
