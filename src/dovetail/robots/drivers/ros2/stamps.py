"""Times of capture on this machine's monotonic clock, from the stamps in message headers.

The robot's clock has an unknown offset. The smallest difference `arrival - stamp` so far is the offset plus the shortest
delay, so a message that was delayed further gets an earlier time of capture than its arrival. The estimate follows clocks
that run at different speeds, up to 200 ppm.
"""

from __future__ import annotations

__all__ = ["CaptureClock"]

_DRIFT = 200e-6  # difference of two quartz clocks, relative


class CaptureClock:
    """Estimates the offset of the clock of one publisher."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the offset and the newest stamp, for example after a fault: the robot's clock may have been set."""
        self._offset_ns: int | None = None  # smallest arrival minus stamp
        self._arrived_ns = 0
        self._stamp_ns = 0

    def captured_ns(self, stamp_ns: int, *, arrived_ns: int) -> int | None:
        """Time of capture, never after the arrival. None: the message is not newer than the last one."""
        if stamp_ns <= self._stamp_ns:
            return None
        self._stamp_ns = stamp_ns
        offset_ns = arrived_ns - stamp_ns
        if self._offset_ns is None:
            self._offset_ns = offset_ns
        else:
            drift_ns = round(_DRIFT * max(arrived_ns - self._arrived_ns, 0))
            self._offset_ns = min(offset_ns, self._offset_ns + drift_ns)
        self._arrived_ns = arrived_ns
        return stamp_ns + self._offset_ns

    def behind_s(self, stamp_ns: int) -> float:
        """How far a stamp is behind the newest one."""
        return (self._stamp_ns - stamp_ns) / 1e9
