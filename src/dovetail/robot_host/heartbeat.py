"""The supervisor's thread: beats on the board, and reports a STOP that neither the control process nor the guard obeyed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dovetail.actor.board import Board
from dovetail.robot_host.stop_sources import StopConfirmation, StopSources

__all__ = ["Heartbeat"]


class Heartbeat:
    """Runs until `close`, also while the supervisor's main thread is blocked. The thread calls `on_ignored(reason)`."""

    def __init__(
        self,
        board: Board,
        sources: StopSources,
        *,
        every_s: float,
        confirm_s: float,
        on_ignored: Callable[[str], None],
    ) -> None:
        self._board, self._sources, self._every_s, self._on_ignored = board, sources, every_s, on_ignored
        self._confirmation = StopConfirmation(board.command_times, confirm_s=confirm_s)
        self._ended = threading.Event()
        board.beat(time.monotonic_ns())
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(self._every_s):
            now_ns = time.monotonic_ns()
            self._board.beat(now_ns)
            reason = self._sources.emergency() or self._sources.ending()
            if self._confirmation.is_overdue(now_ns, stop_wanted=reason is not None) and reason is not None:
                self._on_ignored(reason)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
