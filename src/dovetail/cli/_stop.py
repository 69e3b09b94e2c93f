"""Ctrl-C sets a flag, so that a run can save its state before it ends."""

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
    """`with StopFlag() as stop:` makes `stop()` True after the first Ctrl-C; the second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._stopping = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self._stopping

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
        if self._stopping:
            # The exception unwinds through the code that stops the robot. Files survive even a kill.
            os.write(2, ((_SHOW_CURSOR if sys.stderr.isatty() else "") + "\naborted\n").encode())
            raise KeyboardInterrupt
        self._stopping = True
        os.write(2, b"\nstopping as soon as it is safe (Ctrl-C again to abort)\n")
