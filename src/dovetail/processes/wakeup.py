"""A bell between two processes: a pipe that is rung with a byte, and falls silent for good when the ringer dies."""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["Ear", "Ringer", "bell", "wait_for"]


def bell() -> tuple[int, int]:
    """Descriptors of a new one: where it is heard, and where it is rung."""
    return os.pipe()


def wait_for(*descriptors: int, timeout_s: float | None = None) -> bool:
    """Until one of them can be read, or is at its end; False when time was up before."""
    poll = select.poll()  # select() knows no descriptor above 1023, and a busy supervisor soon has those
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000.0))


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
        wait_for(self._descriptor, timeout_s=timeout_s)
        return self.hears()
