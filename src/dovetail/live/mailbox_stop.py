"""Connects the mailbox of one arm with the emergency stop of its run, so that STOP at one arm reaches all arms."""

from __future__ import annotations

import threading

from dovetail.core.types import Event
from dovetail.human.mailbox import Mailbox
from dovetail.live.run_stop import RunStop

__all__ = ["MailboxStop"]

_POLL_S = 0.02


class MailboxStop:
    """A thread. An emergency stop in the mailbox presses the run's stop; an acknowledgement in either releases both.

    The arm itself does not need it: its control loop and its guard read the mailbox.
    """

    def __init__(self, box: Mailbox, stop: RunStop, *, source: str) -> None:
        self._box, self._stop, self._source = box, stop, source
        self._num_pressed = box.newest(Event.EMERGENCY)  # number of the mailbox's newest press that was passed on
        self._num_acknowledged = box.newest(Event.ACKNOWLEDGE)
        self._seen = stop.position
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_always, name="mailbox stop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _poll_always(self) -> None:
        while not self._ended.wait(_POLL_S):
            self._poll()

    def _poll(self) -> None:
        box, stop, seen = self._box, self._stop, self._seen
        self._seen = stop.position
        pressed, acknowledged = box.newest(Event.EMERGENCY), box.newest(Event.ACKNOWLEDGE)
        if pressed > self._num_pressed:
            self._num_pressed = pressed
            # a console presses the run's stop itself, just before; an older press does not replace this one, because
            # it may hold fewer arms, or be acknowledged without this one
            if pressed > acknowledged and stop.last_press("") < seen:
                self._seen = stop.press(self._source) + 1
        if acknowledged > self._num_acknowledged:
            self._num_acknowledged = acknowledged
            # what was pressed since the last poll is newer than what the person saw
            stop.acknowledge(seen=seen, source=self._source)
        elif pressed > acknowledged and pressed == self._num_pressed and not stop.emergency:
            # acknowledged elsewhere, for example with `dovetail acknowledge`
            box.word[f"newest/{Event.ACKNOWLEDGE}"][0] = self._num_acknowledged = pressed
