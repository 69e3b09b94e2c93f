"""STOP from the console: press it for all arms of the run, and watch which of them confirm it.

Only `find` touches files, so the other methods answer while a disk hangs. Call them in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import DovetailError, UsageError
from dovetail.core.types import Event
from dovetail.live.run_stop import NotRunning, RunStop

__all__ = ["CONFIRM_S", "ConsoleStop", "Press"]

CONFIRM_S = 1.0  # after this time the page tells the person to use the robot's own emergency stop
_POLL_S = 0.01
_MAX_PRESSES = 256  # remembered
_NOT_RUNNING = "this run is not running: STOP was not sent"


class PostsEvents(Protocol):
    """See `LiveArms`."""

    def post(self, event: Event, *, session: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Press:
    """One STOP of a page."""

    place: int  # in the records of the run's stop; -1: it went to the arm's mailbox only
    pressed_ns: int


class ConsoleStop:
    """The run's emergency stop as the console uses it.

    A page sends each press twice, by its websocket and by a request; `press_id` tells that they are the same.
    """

    def __init__(self, folder: Path, arms: PostsEvents) -> None:
        self._folder, self._arms = folder, arms
        self._stop: RunStop | None = None
        self._presses: OrderedDict[str, Press] = OrderedDict()

    def find(self) -> RunStop | None:
        """The stop of the run, if it is active. Reads files: call it in a thread, and `use` its result."""
        try:
            return RunStop.attach(self._folder)
        except NotRunning:
            return None

    def use(self, found: RunStop | None) -> None:
        """Use this stop from now on. The run may have started, restarted or ended."""
        old = self._stop
        if old is not None and found is not None and _token(old) == _token(found):
            found.close()
            return
        self._stop = found
        if old is not None:
            old.close()

    def press(self, press_id: str, *, source: str) -> Press:
        """Stop all arms. Raises UsageError if neither way to the run works."""
        if press_id in self._presses:
            return self._presses[press_id]
        pressed = self._press(source)
        if press_id:
            self._presses[press_id] = pressed
            while len(self._presses) > _MAX_PRESSES:
                self._presses.popitem(last=False)
        return pressed

    def _press(self, source: str) -> Press:
        stop, place, pressed_ns = self._stop, -1, 0
        if stop is not None:
            with contextlib.suppress(OSError):
                place = stop.press(source)
                pressed_ns = stop.pressed_ns
        try:  # a second way to the arms on this machine
            self._arms.post(Event.EMERGENCY, session=1)
        except DovetailError as error:
            if place < 0:
                raise UsageError(_NOT_RUNNING) from error
        return Press(place, pressed_ns)

    def acknowledge(self, *, source: str, arm: str = "") -> bool:
        """Release all arms, or one, from the presses so far. False if the run is not active."""
        if self._stop is None:
            return False
        with contextlib.suppress(OSError):
            self._stop.acknowledge(arm=arm, source=source)
            return True
        return False

    def stopped_arms(self) -> set[str]:
        """Names of the arms that a STOP holds."""
        return {arm["name"] for arm in self.state()["arms"] if arm["stopped"]}

    def confirmations(self, press: Press) -> dict[str, int | None]:
        """By arm: milliseconds from the press to the arm's confirmation that it has stopped; None: not yet."""
        stop = self._stop
        if stop is None or press.place < 0:
            return {}
        found = {arm: stop.confirmed_ns(arm, after=press.place) for arm in stop.arms}
        return {
            arm: None if at_ns is None else max(0, round(1000 * (at_ns - press.pressed_ns) / NS_PER_S))
            for arm, at_ns in found.items()
        }

    async def confirmed(self, press: Press) -> dict[str, int | None]:
        """The confirmations, as soon as all arms have confirmed, or after CONFIRM_S."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + CONFIRM_S
        while True:
            found = self.confirmations(press)
            if (found and None not in found.values()) or loop.time() > end_s:
                return found
            await asyncio.sleep(_POLL_S)

    def state(self) -> dict[str, Any]:
        """What pages show: who pressed STOP, and each arm of the run."""
        stop = self._stop
        if stop is None:
            return {"pressed_by": "", "arms": []}
        return {"pressed_by": stop.source, "arms": [_arm_state(stop, arm) for arm in stop.arms]}


def _arm_state(stop: RunStop, arm: str) -> dict[str, Any]:
    is_stopped = stop.is_stopped(arm)
    is_confirmed = is_stopped and stop.confirmed_ns(arm, after=stop.last_press(arm)) is not None
    return {"name": arm, "stopped": is_stopped, "confirmed": is_confirmed}


def _token(stop: RunStop) -> str:
    first = stop.records(num=1)
    return first[0].source if first else ""
