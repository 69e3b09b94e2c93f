"""Whether an emergency stop is in force for an arm: in its own mailbox, or for its run."""

from __future__ import annotations

import time

from dovetail.actor.control import EMERGENCY
from dovetail.actor.episode_end import HealthCheck
from dovetail.human.mailbox import Mailbox
from dovetail.live.run_stop import RunStop

__all__ = ["EmergencyStopCheck", "emergency_reason", "report_device_stop"]

_SAME_PRESS_NS = 100_000_000  # two processes read a device, and both report a press


def emergency_reason(box: Mailbox, stop: RunStop | None) -> str | None:
    """What stops the arm, with its source; None: nothing."""
    if stop is not None and stop.emergency:
        return f"{EMERGENCY} ({stop.source})"
    return EMERGENCY if box.emergency else None


class EmergencyStopCheck(HealthCheck):
    """Adds the emergency stop to another health check. It stops the robot until it is acknowledged.

    An emergency stop at a device of this arm, such as a gamepad, stops all arms of the run.
    """

    def __init__(self, box: Mailbox, inner: HealthCheck | None = None, *, stop: RunStop | None = None) -> None:
        self._box, self._inner, self._stop = box, inner or HealthCheck(), stop

    def hold_reason(self) -> str | None:
        return self._inner.hold_reason()

    def stop_reason(self) -> str | None:
        return emergency_reason(self._box, self._stop) or self._inner.stop_reason()

    def report_emergency(self, operator: str) -> None:
        if self._stop is not None:
            report_device_stop(self._stop, operator)


def report_device_stop(stop: RunStop, operator: str) -> None:
    """Stop all arms of the run after an emergency stop at the device of one arm.

    A stop that is in force does not replace it: it may be for this arm only, or its acknowledgement may be on the way.
    """
    source, newest = f"{operator} of {stop.arm}", stop.newest_press()
    if newest is None or newest.source != source or time.monotonic_ns() - newest.time_ns > _SAME_PRESS_NS:
        stop.press(source)
