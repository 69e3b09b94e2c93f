"""Which connection drives the arm. Every message is checked before it reaches the robot.

A message expires by the time at which the page sent it, not by its arrival: a network that stalls and then delivers all
messages at once does not drive the arm.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Annotated, Protocol

from pydantic import Field, ValidationError

from dovetail.config.model import Config
from dovetail.core.errors import UsageError
from dovetail.human.sender_clock import MAX_SENT_MS, SenderClock

__all__ = ["ANONYMOUS", "MAX_MESSAGE_BYTES", "DriveControl", "DriveSession", "Drives", "InvalidMessage"]

MAX_MESSAGE_BYTES = 2048
MAX_AXES = 64
ANONYMOUS = "anonymous"  # the name of a person who entered none
_SILENCE_S = 1.0  # after this time without a message, another driver may take over
_Axis = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]


class Drives(Protocol):
    """What drive messages go to: see `LiveRobot`."""

    def drive(self, *, session: int, sequence: int, held: bool, axes: tuple[float, ...], time_ns: int) -> None: ...

    def disconnect(self, *, session: int, sequence: int) -> None: ...


class DriveMessage(Config):
    """One message of a driver."""

    n: Annotated[int, Field(gt=0, lt=2**53, strict=True)]
    """Number of the message; it increases."""
    t: Annotated[float, Field(ge=0.0, le=MAX_SENT_MS, allow_inf_nan=False)]
    """When the page sent it: its `performance.now()`, in milliseconds."""
    held: Annotated[bool, Field(strict=True)]
    """Whether the dead-man key is held."""
    axes: Annotated[tuple[_Axis, ...], Field(max_length=MAX_AXES)] = ()
    """Speed of each axis, -1 to 1."""
    lost: Annotated[bool, Field(strict=True)] = False
    """Whether the page lost the focus: the arm holds and is not released."""


class InvalidMessage(Exception):
    """An invalid message: its connection is closed."""


class DriveControl:
    """Lets one session drive at a time."""

    def __init__(self, robot: Drives) -> None:
        self._robot = robot
        self._sessions: dict[int, DriveSession] = {}
        self._driver: DriveSession | None = None
        self._last_message_s = 0.0

    def connect(self, name: str, *, browser: str = "") -> DriveSession:
        """`browser` is the same for all tabs of one browser: a page can tell its own user from others."""
        session = DriveSession(self, id=secrets.randbits(48) + 1, name=name, browser=browser)
        self._sessions[session.id] = session
        return session

    def disconnect(self, session: DriveSession) -> None:
        self._sessions.pop(session.id, None)
        self._lose(session, sequence=session.last + 1)

    def name_of(self, session_id: int) -> str:
        session = self._sessions.get(session_id)
        return "" if session is None else session.name

    def browser_of(self, session_id: int) -> str:
        session = self._sessions.get(session_id)
        return "" if session is None else session.browser

    def apply(self, session: DriveSession, message: DriveMessage, *, time_ns: int) -> str | None:
        """Send the message to the robot. If another session drives, return a sentence that says so."""
        now_s = time.monotonic()
        other = self._driver
        if other is not None and other is not session and now_s - self._last_message_s < _SILENCE_S:
            return _driven_by(other, told=session) if message.held else None
        if message.held and not message.lost:
            self._robot.drive(
                session=session.id, sequence=message.n, held=True, axes=message.axes, time_ns=time_ns
            )
            self._driver, self._last_message_s = session, now_s  # after it: a refused message changes nothing
        elif self._driver is session and message.lost:
            self._lose(session, sequence=message.n)
        elif self._driver is session:
            self._driver = None
            self._robot.drive(
                session=session.id, sequence=message.n, held=False, axes=message.axes, time_ns=time_ns
            )
        return None

    def _lose(self, session: DriveSession, *, sequence: int) -> None:
        if self._driver is session:
            self._driver = None
            self._robot.disconnect(session=session.id, sequence=sequence)


class DriveSession:
    """One connection that may drive."""

    def __init__(self, control: DriveControl, *, id: int, name: str, browser: str = "") -> None:
        self._control = control
        self.id, self.name, self.browser = id, name, browser
        self.last = 0  # number of the newest message
        self._clock = SenderClock()

    def receive(self, text: str) -> str | None:
        """Handle a message. Raises InvalidMessage; returns a sentence if another session drives."""
        arrived_ns = time.monotonic_ns()
        if len(text) > MAX_MESSAGE_BYTES:
            raise InvalidMessage(f"a message may have at most {MAX_MESSAGE_BYTES} characters")
        try:
            message = DriveMessage.model_validate(json.loads(text))
        except (ValueError, ValidationError, RecursionError) as error:
            raise InvalidMessage("this is not a drive message") from error
        if message.n <= self.last:
            raise InvalidMessage(f"message {message.n} is not newer than message {self.last}")
        self.last = message.n
        try:
            time_ns = self._clock.to_host_ns(message.t, arrived_ns=arrived_ns)
            return self._control.apply(self, message, time_ns=time_ns)
        except UsageError as error:
            raise InvalidMessage(str(error)) from error


def _driven_by(other: DriveSession, *, told: DriveSession) -> str:
    if other.browser and other.browser == told.browser:
        return "you are driving in another tab of this browser"
    return f"{'another person' if other.name == ANONYMOUS else other.name} is driving"
