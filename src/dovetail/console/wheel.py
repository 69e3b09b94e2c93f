"""The wheel: who drives, and what becomes of it when they are gone. Every message is checked before it goes any further."""

from __future__ import annotations

import json
import secrets
import time
from typing import Annotated

from pydantic import Field, ValidationError

from dovetail.config.model import Config
from dovetail.console.handles import Driver
from dovetail.core.errors import UsageError

__all__ = ["MAX_MESSAGE", "Refused", "Seat", "Wheel"]

MAX_MESSAGE = 1024  # bytes
_SILENT_S = 1.0  # after so long the wheel is free, should a driver's connection hang
_Axis = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]


class Move(Config):
    """One message of a driver's."""

    n: Annotated[int, Field(gt=0, lt=2**53, strict=True)]  # they grow
    held: Annotated[bool, Field(strict=True)]  # the dead-man key
    axes: Annotated[tuple[_Axis, ...], Field(max_length=32)] = ()
    lost: Annotated[bool, Field(strict=True)] = False  # the focus has gone: hold, do not give back


class Refused(Exception):
    """A message that makes no sense: its sender is not listened to any longer."""


class Wheel:
    """Held by one driver at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._seats: dict[int, Seat] = {}
        self._holder: Seat | None = None
        self._heard_s = 0.0

    def sit(self, name: str) -> Seat:
        seat = Seat(self, session=secrets.randbits(48) + 1, name=name)
        self._seats[seat.session] = seat
        return seat

    def leave(self, seat: Seat) -> None:
        self._seats.pop(seat.session, None)
        self._let_go(seat, sequence=seat.last + 1, lost=True)

    def name_of(self, session: int) -> str:
        seat = self._seats.get(session)
        return "" if seat is None else seat.name

    def turn(self, seat: Seat, move: Move) -> str | None:
        """Do it; returns who drives instead, if that is somebody else."""
        now_s = time.monotonic()
        other = self._holder
        if other is not None and other is not seat and now_s - self._heard_s < _SILENT_S:
            return other.name if move.held else None
        if move.held and not move.lost:
            self._driver.drive(session=seat.session, sequence=move.n, held=True, axes=move.axes)
            self._holder, self._heard_s = seat, now_s  # not before: who is refused has nothing to lose
        elif self._holder is seat:
            self._let_go(seat, sequence=move.n, lost=move.lost, axes=move.axes)
        return None

    def _let_go(self, seat: Seat, *, sequence: int, lost: bool, axes: tuple[float, ...] = ()) -> None:
        if self._holder is not seat:
            return
        self._holder = None
        if lost:
            self._driver.lose(session=seat.session, sequence=sequence)
        else:
            self._driver.drive(session=seat.session, sequence=sequence, held=False, axes=axes)


class Seat:
    """One connection of somebody who may drive."""

    def __init__(self, wheel: Wheel, *, session: int, name: str) -> None:
        self._wheel = wheel
        self.session, self.name = session, name
        self.last = 0  # the newest message's number

    def take(self, text: str) -> str | None:
        """A message as it came. Raises Refused; returns who drives instead, if somebody does."""
        if len(text) > MAX_MESSAGE:
            raise Refused(f"a message may have {MAX_MESSAGE} characters")
        try:
            move = Move.model_validate(json.loads(text))
        except (ValueError, ValidationError, RecursionError) as error:
            raise Refused("that is no message of a driver") from error
        if move.n <= self.last:
            raise Refused(f"message {move.n} is old")
        self.last = move.n
        try:
            return self._wheel.turn(self, move)
        except UsageError as error:
            raise Refused(str(error)) from error
