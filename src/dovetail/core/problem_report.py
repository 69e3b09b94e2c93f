"""Reports of threads that must go on after any error, such as those that pass on STOP."""

from __future__ import annotations

import contextlib
import sys
import threading

from dovetail.core.errors import one_line

__all__ = ["ProblemReport", "report_line"]


class ProblemReport:
    """Prints the first problem of a thread on stderr, once. A call never blocks and never raises."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self.first: Exception | None = None

    def __call__(self, error: Exception) -> None:
        if self.first is not None:
            return
        self.first = error
        with contextlib.suppress(Exception):
            line = f"warning: {self._thread} failed and tries again: {one_line(error)}\n"
            # a terminal that is stopped with Ctrl-S blocks its writers
            threading.Thread(target=_print, args=(line,), daemon=True).start()


def report_line(line: str) -> None:
    """Print a line on stderr. Never blocks and never raises."""
    with contextlib.suppress(Exception):
        threading.Thread(target=_print, args=(line + "\n",), daemon=True).start()


def _print(line: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(line)
        sys.stderr.flush()
