"""Carries the emergency stop of a run to an arm that cannot share its memory, and the arm's own presses back.

The driver calls `RelayedStop.exchange` of each arm every few milliseconds, through any transport. Each side has a RunStop.
A place in one list has no meaning in the other, so places are translated. If a translation is in doubt, the press stays in
force: an acknowledgement never releases a press that it has not seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dovetail.live.run_stop import Kind, Record, RunStop

__all__ = ["Exchange", "RelayedStop", "Reply", "StopRelay"]

_DOWN = (Kind.PRESS, Kind.ACKNOWLEDGE, Kind.END)
_PLACED = (Kind.PRESS, Kind.END)  # kinds to whose places the other records refer


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """From the driver to the arm: records to add, and the place from which the driver needs the arm's records."""

    token: str  # of the list that the driver knows; empty before the first reply
    records: Sequence[Record] = ()
    start: int = 0
    is_last: bool = True  # whether the arm then has all records; otherwise others follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """From the arm to the driver: places of the records it added, and its own records. Another token: a new list."""

    token: str
    placed: Sequence[int] = ()
    records: Sequence[Record] = ()
    position: int = 0


class RelayedStop:
    """The arm's side."""

    def __init__(self, stop: RunStop) -> None:
        self._stop = stop
        self._from_driver: set[int] = set()  # places of records that the driver sent
        self._exchanged_s = -math.inf

    @property
    def silent_s(self) -> float:
        """Seconds since all records of the driver were here; infinite before that. A later STOP may be missing."""
        return time.monotonic() - self._exchanged_s

    def exchange(self, message: Exchange) -> Reply:
        stop = self._stop
        if message.token != stop.token:
            return Reply(token=stop.token)
        placed = [stop.add(record) for record in message.records]
        if message.is_last:
            self._exchanged_s = time.monotonic()
        self._from_driver.update(placed)
        found = stop.records(start=message.start)
        return Reply(
            token=stop.token,
            placed=placed,
            records=[record for record in found if record.at not in self._from_driver],
            position=found[-1].end if found else message.start,
        )


@dataclass(slots=True)
class _Known:
    """State of the exchange with one list of the arm. A restarted arm has a new list."""

    token: str = ""
    sent: int = 0  # place in the run's list up to which the arm has the records
    received: int = 0  # place in the arm's list up to which the driver has the records
    pairs: list[tuple[int, int]] = field(
        default_factory=list
    )  # places of one record in the run's and the arm's list
    imported: set[int] = field(default_factory=set)  # places in the run's list of records from the arm


class StopRelay:
    """The driver's side of one arm. Call `step` every few milliseconds, from one thread.

    `call` sends a message to the arm and returns its reply; None if the arm shares the memory of the run.
    """

    def __init__(self, stop: RunStop, call: Callable[[Exchange], Reply | None]) -> None:
        self._stop, self._call = stop, call
        self._known = _Known()

    def step(self) -> bool:
        """False if the arm needs no relay."""
        known, end = self._known, self._stop.position
        new = _until_translatable(self._stop.records(start=known.sent))
        down = [record for record in new if record.kind in _DOWN and record.at not in known.imported]
        message = Exchange(
            token=known.token,
            records=[record._replace(position=self._to_arm(record.position)) for record in down],
            start=known.received,
            is_last=(new[-1].end if new else known.sent) >= end,
        )
        reply = self._call(message)
        if reply is None:
            return False
        if reply.token != known.token:  # the arm is new or was restarted: it has none of the records
            self._known = _Known(token=reply.token)
            return True
        places = zip(down, reply.placed, strict=True)
        known.pairs += [(record.at, place) for record, place in places if record.kind in _PLACED]
        known.sent = new[-1].end if new else known.sent
        known.imported = {place for place in known.imported if place >= known.sent}
        for record in reply.records:
            place = self._stop.add(record._replace(position=self._to_run(record.position)))
            known.imported.add(place)
            if record.kind in _PLACED:
                known.pairs.append((place, record.at))
        known.received = reply.position
        return True

    def _to_arm(self, position: int) -> int:
        return _translate(position, self._known.pairs)

    def _to_run(self, position: int) -> int:
        return _translate(position, [(arm, run) for run, arm in self._known.pairs])


def _until_translatable(records: Sequence[Record]) -> Sequence[Record]:
    """An acknowledgement refers to places of presses, so it waits until the arm has them."""
    for number, record in enumerate(records):
        if record.kind is Kind.ACKNOWLEDGE and any(one.kind in _PLACED for one in records[:number]):
            return records[:number]
    return records


def _translate(position: int, pairs: Sequence[tuple[int, int]]) -> int:
    """A place after the records before `position`, and before all others."""
    before = max((there for here, there in pairs if here < position), default=-1) + 1
    return min(before, min((there for here, there in pairs if here >= position), default=before))
