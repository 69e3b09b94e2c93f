"""The time at which a message was sent, on this host's clock, from the sender's own clock.

    clock = SenderClock()                                  # one per connection
    time_ns = clock.to_host_ns(message.t, arrived_ns=time.monotonic_ns())
    writer.drive(..., time_ns=time_ns)                     # the message expires by the time at which it was sent

A page sends `performance.now()` with each message, in milliseconds. The two clocks have an unknown offset. The smallest
difference `arrival - sending` so far is the offset plus the shortest delay of the network, so a message that was delayed
further arrives with a time stamp in the past. Messages that waited in a queue and arrive in a burst have their true ages:
old ones expire, and only fresh ones drive. The estimate follows clocks that run at different speeds, up to 200 ppm.

A connection whose every message is late by the same time cannot be told from one with another offset. Send one message as
soon as the connection opens, and wait for its reply before driving: then the sender measures that delay itself.
"""

from __future__ import annotations

import math

from dovetail.core.errors import UsageError

__all__ = ["MAX_SENT_MS", "SenderClock"]

MAX_SENT_MS = 2.0**43  # 278 years
_DRIFT = 200e-6  # difference of two quartz clocks, relative
_NS_PER_MS = 1_000_000


class SenderClock:
    """Estimates the offset of one sender's clock. Not shared by connections."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None  # smallest arrival minus sending
        self._arrived_ns = 0

    def to_host_ns(self, sent_ms: float, *, arrived_ns: int) -> int:
        """When the message was sent, in this host's monotonic time; never after `arrived_ns`.

        Raises UsageError for a time that is no finite number from 0 to 2**43.
        """
        if not (math.isfinite(sent_ms) and 0.0 <= sent_ms <= MAX_SENT_MS):
            raise UsageError(f"the time of a message should be milliseconds from 0 to 2**43, got {sent_ms!r}")
        offset_ns = arrived_ns - round(sent_ms * _NS_PER_MS)
        if self._offset_ns is None:
            self._offset_ns = offset_ns
        else:
            drift_ns = round(_DRIFT * max(arrived_ns - self._arrived_ns, 0))
            self._offset_ns = min(offset_ns, self._offset_ns + drift_ns)
        self._arrived_ns = max(arrived_ns, self._arrived_ns)
        return arrived_ns - (offset_ns - self._offset_ns)
