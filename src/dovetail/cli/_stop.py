"""Signals end a run: its arms stop at once, then the run saves its state.

Ctrl-C, SIGTERM, SIGQUIT, and SIGHUP, which the kernel sends when the terminal is lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from dovetail.live.run_stop import RunStop

__all__ = ["StopFlag"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SHOW_CURSOR = "\x1b[?25h"


class StopFlag:
    """`with StopFlag() as flag:` makes `flag()` True after the first signal; a second one raises KeyboardInterrupt.

    Within `connected(stop)`, the first signal also asks the arms of the run to stop. That does not wait for the main thread,
    which may be in a long call: Python writes each signal to a pipe at once, and a thread reads it.
    """

    def __init__(self) -> None:
        self._stopping = False
        self._run_stop: RunStop | None = None
        self._on_each: Callable[[signal.Signals], None] | None = None
        self._first: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self._stopping or self._first is not None

    @contextlib.contextmanager
    def connected(self, stop: RunStop) -> Iterator[None]:
        """Within it, the first signal stops the arms of this run."""
        self._run_stop = stop
        if self._first is not None:
            stop.request_end(self._first.name)
        try:
            yield
        finally:
            self._run_stop = None

    @contextlib.contextmanager
    def calling(self, on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
        """Within it, call this at each signal, in another thread. It must return at once."""
        self._on_each = on_signal
        if self._first is not None:
            on_signal(self._first)
        try:
            yield
        finally:
            self._on_each = None

    def __enter__(self) -> StopFlag:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._read_signals, name="signals", daemon=True)
        self._thread.start()
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if number is signal.SIGHUP and before is signal.SIG_IGN:
                continue  # started with nohup
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _read_signals(self) -> None:
        while numbers := os.read(self._reader, 64):
            for number in numbers:
                if number not in self._before:
                    continue
                if self._first is None:
                    self._first = signal.Signals(number)
                    if (stop := self._run_stop) is not None:
                        stop.request_end(self._first.name)
                if (on_signal := self._on_each) is not None:
                    on_signal(signal.Signals(number))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, as soon as it executes Python code."""
        if number == signal.SIGHUP:
            _forget_terminal()
        if self._stopping:
            if number == signal.SIGHUP:  # the terminal closed after Ctrl-C: the run still saves its state
                return
            # The arm was stopped by the first signal. The exception unwinds through the code that stops it again.
            _write((_SHOW_CURSOR if sys.stderr.isatty() else "") + "\naborted\n")
            raise KeyboardInterrupt
        self._stopping = True
        _write("\nstopping as soon as it is safe (Ctrl-C again to abort)\n")


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        os.write(2, text.encode())


def _forget_terminal() -> None:
    """Write to nowhere from now on: an error of a lost terminal must not keep the run from saving its state."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):  # a terminal; not a file or a pipe
                os.dup2(nowhere, descriptor)
        os.close(nowhere)
