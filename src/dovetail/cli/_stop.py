"""Ctrl-C as a wish, not an exception: the run ends where it can save what it has."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopFlag"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h"


class StopFlag:
    """`with StopFlag() as stop:` makes `stop()` true after the first Ctrl-C; the second ends the process."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self._asked

    def __enter__(self) -> StopFlag:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            # Unwinds at once, through whoever holds the robot and stops it; what is on disk survives a kill anyway.
            os.write(2, ((_SHOW_CURSOR if sys.stderr.isatty() else "") + "\naborted\n").encode())
            raise KeyboardInterrupt
        self._asked = True
        os.write(2, b"\nstopping at the next safe moment (Ctrl-C again to abort)\n")
