"""A wakeup pipe: one process writes a byte to wake another. The pipe's end tells that the writer has ended."""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["WakeupReader", "WakeupWriter", "wait_for"]


def wait_for(*descriptors: int, timeout_s: float | None = None) -> bool:
    """Wait until one of them is readable or closed; False after the timeout."""
    poll = select.poll()  # select() refuses descriptors above 1023, which a process with many open files has
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000.0))


class WakeupWriter:
    """The writing end of an `os.pipe()`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def wake(self) -> None:
        """Never blocks. A full pipe wakes its reader anyway, and a pipe without a reader is ignored."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._descriptor, b"!")


class WakeupReader:
    """The reading end of an `os.pipe()`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writer_is_alive = True
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._descriptor

    def drain(self) -> bool:
        """Discard received wakeups. Returns whether the writer is alive. Never blocks."""
        with contextlib.suppress(BlockingIOError):
            self._writer_is_alive = os.read(self._descriptor, 4096) != b""
        return self._writer_is_alive

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wakeup, the writer's end or the timeout, then drain."""
        wait_for(self._descriptor, timeout_s=timeout_s)
        return self.drain()
