"""What all roles have in common: a report on their process and their work, and a lock against a second process."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dovetail.core.errors import FailureError

__all__ = ["Role", "exclusive_lock"]

_POLL_S = 0.1


class Role:
    """`report` returns the process id, the present activity, what went wrong, and counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._started_unix_s = time.time()
        self._activities: dict[int, tuple[str, float]] = {}  # by thread: its activity, and since when
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self.problem: str | None = None

    def about(self) -> dict[str, Any]:
        activities = list(self._activities.values())
        return {
            "name": self.name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_unix_s": self._started_unix_s,
            "doing": ", ".join(sorted({activity for activity, _ in activities})),
            "doing_s": {activity: time.monotonic() - since_s for activity, since_s in activities},
            "problem": self.problem,
            "counts": dict(self._counts),
            "seconds": dict(self._seconds),
        }

    def report(self) -> dict[str, Any]:
        return self.about()

    def count(self, what: str, number: int = 1) -> None:
        self._counts[what] += number

    def add_seconds(self, activity: str, seconds: float) -> None:
        self._seconds[activity] += seconds

    @contextmanager
    def working(self, activity: str) -> Iterator[None]:
        """Report this activity of the thread, and measure its time."""
        thread, began_s = threading.get_ident(), time.monotonic()
        before = self._activities.get(thread)
        self._activities[thread] = activity, began_s
        try:
            yield
        finally:
            self.add_seconds(activity, time.monotonic() - began_s)
            if before is None:
                self._activities.pop(thread, None)
            else:
                self._activities[thread] = before


def exclusive_lock(path: Path, *, wait_s: float = 60.0) -> IO[str]:
    """Lock a file for as long as the returned object lives. Waits for a process that the cluster has already replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > until_s:
                file.close()
                raise FailureError(f"another process still uses {path.parent}. End it, then try again") from None
            time.sleep(_POLL_S)
