"""A bell between two processes: a pipe that is rung with a byte, and falls silent for good when the ringer dies."""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["Ear", "Ringer", "bell"]


def bell() -> tuple[int, int]:
    """Descriptors of a new one: where it is heard, and where it is rung."""
    return os.pipe()


class Ringer:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def ring(self) -> None:
        # a full pipe means that nobody has listened to the last thousand rings; one more says nothing new
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._descriptor, b"!")


class Ear:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._alive = True
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._descriptor

    def hears(self) -> bool:
        """Whether the ringer lives. Takes what was rung; never waits."""
        with contextlib.suppress(BlockingIOError):
            self._alive = os.read(self._descriptor, 4096) != b""
        return self._alive

    def wait(self, timeout_s: float) -> bool:
        """The same, once it rings, is dead, or time is up."""
        select.select([self._descriptor], [], [], timeout_s)
        return self.hears()
