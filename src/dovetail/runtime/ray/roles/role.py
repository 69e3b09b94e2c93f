"""What all roles have in common: they say who they are and how they are, and only one process is ever one of them."""

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

__all__ = ["Role", "only_one"]

_LOOK_S = 0.1


class Role:
    """`report` says how it is: its process, what it is doing, what went wrong, and its own figures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._born_unix_s = time.time()
        self._doing: dict[int, tuple[str, float]] = {}  # by thread
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self.problem: str | None = None

    def about(self) -> dict[str, Any]:
        doing = dict(self._doing)
        return {
            "name": self.name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "born_unix_s": self._born_unix_s,
            "doing": ", ".join(sorted({what for what, _ in doing.values()})),
            "problem": self.problem,
            "counts": dict(self._counts),
            "seconds": dict(self._seconds),
        }

    def report(self) -> dict[str, Any]:
        return self.about()

    def count(self, what: str, number: int = 1) -> None:
        self._counts[what] += number

    def spent(self, phase: str, seconds: float) -> None:
        self._seconds[phase] += seconds

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """While this lasts, it is what this thread is doing."""
        thread, began_s = threading.get_ident(), time.monotonic()
        before = self._doing.get(thread)
        self._doing[thread] = (what, began_s)
        try:
            yield
        finally:
            self.spent(what, time.monotonic() - began_s)
            if before is None:
                self._doing.pop(thread, None)
            else:
                self._doing[thread] = before


def only_one(path: Path, *, wait_s: float = 60.0) -> IO[str]:
    """Be the only process that holds this file's lock, for as long as what is returned lives. One that came before, and that
    the cluster has given up, may still be at it: it is waited for."""
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
                raise FailureError(
                    f"another process still works with {path.parent}: end it, then try again"
                ) from None
            time.sleep(_LOOK_S)
