"""Capture times on this machine's monotonic clock, from the time stamps of a device or a stream."""

from __future__ import annotations

__all__ = ["KernelTimes", "StreamTimes"]

_DRIFT = 200e-6  # difference of two quartz clocks, relative
_MAX_CORRECTION_NS = 500_000_000  # a larger change of the offset is a wrong time stamp, not a faster delivery
_MAX_DELAY_NS = 2_000_000_000  # between a frame's capture and its arrival


class StreamTimes:
    """For a clock with an unknown offset: the fastest frame so far counts as captured when it arrived.

    A frame that was delayed further gets its true age. A stamp that jumps keeps its error, so that the safety filter sees a
    capture time in the past or in the future and holds.
    """

    def __init__(self) -> None:
        self._offset_ns: int | None = None  # smallest arrival minus stamp
        self._arrived_ns = 0

    def capture_ns(self, stamp_ns: int, *, arrived_ns: int) -> int:
        offset_ns = arrived_ns - stamp_ns
        if self._offset_ns is None:
            self._offset_ns = offset_ns
        else:
            self._offset_ns += round(_DRIFT * max(arrived_ns - self._arrived_ns, 0))
            if self._offset_ns - _MAX_CORRECTION_NS < offset_ns < self._offset_ns:
                self._offset_ns = offset_ns
        self._arrived_ns = max(arrived_ns, self._arrived_ns)
        return stamp_ns + self._offset_ns


class KernelTimes:
    """For V4L2: most drivers stamp frames with the monotonic clock of this machine. The first frame shows whether this one
    does; else its offset is estimated."""

    def __init__(self) -> None:
        self._is_monotonic: bool | None = None
        self._stream = StreamTimes()

    def capture_ns(self, stamp_ns: int, *, arrived_ns: int) -> int:
        if self._is_monotonic is None:
            self._is_monotonic = 0 <= arrived_ns - stamp_ns <= _MAX_DELAY_NS
        return stamp_ns if self._is_monotonic else self._stream.capture_ns(stamp_ns, arrived_ns=arrived_ns)
