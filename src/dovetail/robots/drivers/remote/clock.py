"""The offset between the robot's clock and ours, with an error bound.

Each request gives an interval that contains the offset: the robot received the request after we sent it, and sent its answer
before we received it. The intervals of all requests are intersected. Between requests the interval grows, because clocks
drift. An empty intersection means that a clock jumped.
"""

from __future__ import annotations

from dovetail.core.errors import RobotError

__all__ = ["ClockOffset"]

_MAX_DRIFT = 1e-3  # both clocks together; a clock that is being corrected may drift by 5e-4


class ClockOffset:
    """The robot's clock minus ours, in ns of `time.monotonic_ns()` on each computer."""

    def __init__(self, *, max_error_s: float) -> None:
        self._max_error_ns = max_error_s * 1e9
        self._low_ns = self._high_ns = 0
        self._updated_ns: int | None = None
        self.round_trip_ns = 0  # of the last request, without the time that the robot needed for it

    def update(self, *, asked_ns: int, received_ns: int, sent_ns: int, answered_ns: int) -> None:
        """One request: times of sending and of the answer by our clock, of receiving and answering by the robot's."""
        if sent_ns < received_ns:
            raise RobotError("the robot's clock ran backward. Check the clock of the robot's computer")
        low_ns, high_ns = sent_ns - answered_ns, received_ns - asked_ns
        self.round_trip_ns = high_ns - low_ns
        if self.round_trip_ns < 0:
            raise RobotError(
                "the robot's clock runs faster than ours: it counted more time for a request than we waited for it"
            )
        if self._updated_ns is not None:
            grown_ns = round(_MAX_DRIFT * max(answered_ns - self._updated_ns, 0)) + 1
            old_low_ns, old_high_ns = self._low_ns - grown_ns, self._high_ns + grown_ns
            if low_ns > old_high_ns or high_ns < old_low_ns:
                jump_ms = (low_ns - old_high_ns if low_ns > old_high_ns else high_ns - old_low_ns) / 1e6
                raise RobotError(
                    f"the robot's clock jumped by at least {jump_ms:+.3f} ms. Check the clock of the robot's computer"
                )
            low_ns, high_ns = max(low_ns, old_low_ns), min(high_ns, old_high_ns)
        self._low_ns, self._high_ns, self._updated_ns = low_ns, high_ns, answered_ns

    @property
    def offset_ns(self) -> int:
        return (self._low_ns + self._high_ns) // 2

    @property
    def error_ns(self) -> int:
        """Largest possible error of the offset."""
        return (self._high_ns - self._low_ns + 1) // 2

    def check(self) -> None:
        """Raise RobotError if the offset is too uncertain."""
        if self.error_ns > self._max_error_ns:
            raise RobotError(
                f"the robot's clock is known only to ±{self.error_ns / 1e6:.1f} ms, at most "
                f"{self._max_error_ns / 1e6:.1f} ms are allowed. Use a faster network, or raise robot.max_clock_error_s"
            )

    def to_ours(self, robot_ns: int) -> int:
        return robot_ns - self.offset_ns

    def to_robots(self, our_ns: int) -> int:
        return our_ns + self.offset_ns
