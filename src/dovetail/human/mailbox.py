"""Input of a person to the robot, in shared memory: one writer, one reader that polls once per tick, no lock.

    writer = MailboxWriter(box)                                   # the console or the terminal
    writer.drive(session=7, sequence=41, held=True, axes=[...])   # repeatedly while the dead-man switch is held
    writer.lose(session=7, sequence=42)                           # the driver is lost: the arm holds
    writer.post(Event.SUCCESS, session=7)
    reader = MailboxReader(box)                                   # the control loop
    command, event = reader.command(), reader.next_event()

Only the newest drive command counts, and it expires: `time_ns` is when the person's input was read or sent, not when it
arrived (`human.sender_clock` computes it for a browser). The writer numbers the presses of the dead-man switch: a press that
was lost cannot drive again. Events are in a ring; each is read once. The mailbox also stores the number of the newest event
of each kind, so that an emergency stop does not wait in the ring: it counts until a later acknowledgement. Both sides reject
invalid values.
"""

from __future__ import annotations

import enum
import secrets
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import UsageError
from dovetail.core.seqlock import Seqlock
from dovetail.core.types import Array, Event

__all__ = ["EXPIRY_S", "Control", "DriveCommand", "Mailbox", "MailboxReader", "MailboxWriter", "PostedEvent"]

EXPIRY_S = 0.25
MAX_EXPIRY_S = 2.0
NUM_SLOTS = 64
CLAIM_NS = 3 * NS_PER_S // 2  # a writer that is silent for longer has disconnected
_MAGIC = 0x6D61696C0002  # and the layout's version
_EVENTS = tuple(Event)
_ALWAYS_ACCEPTED = (Event.EMERGENCY, Event.ACKNOWLEDGE, Event.STOP)
# int64 fields by writing side
_WRITER = ("posted", "num_events", "writer", "writer_ns", *(f"newest/{event}" for event in _EVENTS))
_READER = ("taken", "reader_ns", "control", "since_ns", "driver", "last_sequence")
_WORDS = ("magic", "num_axes", *_WRITER, *_READER)


class Control(enum.IntEnum):
    """Who controls the arm, as the reader reports it."""

    POLICY = 0  # or the configured operator, such as a script
    HUMAN = 1
    HOLDING = 2  # a person drove and was lost
    PAUSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveCommand:
    """The newest drive command. Axes in [-1, 1], one per axis of the robot's action."""

    session: int
    sequence: int
    held: bool  # the dead-man switch
    axes: Array  # float32 [A]
    press: int = 1  # number of the press of the switch within the session
    time_ns: int = 0  # of the person's input; monotonic, of this host
    expires_ns: int = 0  # after `time_ns`
    is_valid: bool = True  # false for NaN, for example

    def is_fresh(self, now_ns: int) -> bool:
        """Whether the input is fresh. False also for a time in the future, which is from another clock."""
        return self.is_valid and 0 <= now_ns - self.time_ns <= self.expires_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedEvent:
    """An event with its number, from 1."""

    number: int
    event: Event
    session: int
    time_ns: int


class Mailbox:
    """The memory: private, or shared by two processes. Zeros at first."""

    def __init__(self, num_axes: int, memory: memoryview | None = None) -> None:
        size = self.num_bytes(num_axes)
        data = np.frombuffer(bytearray(size) if memory is None else memory, np.uint8, count=size)
        words, ring, drive = _offsets(num_axes)
        self.num_axes = num_axes
        array = data[words:ring].view(np.int64)
        self.word = {name: array[i : i + 1] for i, name in enumerate(_WORDS)}
        self._newest = {event: self.word[f"newest/{event}"] for event in _EVENTS}
        self.ring = data[ring:drive].view(np.int64).reshape(NUM_SLOTS, 8)  # number, event, session, time, checksum
        head = data[drive : drive + 64].view(np.int64)
        fields: dict[str, Array] = {
            "numbers": head[2:8],  # session, sequence, time_ns, expires_ns, held, press
            "axes": data[drive + 64 : drive + 64 + 4 * num_axes].view(np.float32),
        }
        self.drive = Seqlock(head[:1].view(np.uint64), head[1:2].view(np.uint32)[:1], fields)
        if memory is None or not array.any():
            self.word["magic"][0], self.word["num_axes"][0] = _MAGIC, num_axes
        elif int(self.word["magic"][0]) != _MAGIC or int(self.word["num_axes"][0]) != num_axes:
            raise UsageError(
                f"this is not a mailbox with {num_axes} axes. The run uses another version of Dovetail"
            )

    @staticmethod
    def num_bytes(num_axes: int) -> int:
        return _offsets(num_axes)[2] + 64 + -(-4 * num_axes // 64) * 64

    def newest(self, event: Event) -> int:
        """Number of the newest event of a kind, among all events; 0: none."""
        return int(self._newest[event][0])

    @property
    def emergency(self) -> bool:
        """Whether an emergency stop was requested and not acknowledged since."""
        newest = self._newest  # read at every command
        return bool(newest[Event.EMERGENCY][0] > newest[Event.ACKNOWLEDGE][0])

    @property
    def num_events_posted(self) -> int:
        return int(self.word["num_events"][0])

    @property
    def num_posted(self) -> int:
        return int(self.word["posted"][0])

    @property
    def writer_ns(self) -> int:
        """Time of the writer's last message; 0: none."""
        return int(self.word["writer_ns"][0])

    @property
    def reader_ns(self) -> int:
        """Time of the control loop's last poll; 0: none."""
        return int(self.word["reader_ns"][0])

    @property
    def control(self) -> Control:
        return Control(int(self.word["control"][0]))

    @property
    def since_ns(self) -> int:
        """Time at which `control` changed."""
        return int(self.word["since_ns"][0])

    @property
    def driver(self) -> int:
        """The session that drives; 0: none."""
        return int(self.word["driver"][0])

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last command that the control loop used."""
        return int(self.word["last_sequence"][0])


class MailboxWriter:
    """The writer's side. Invalid input raises UsageError and changes nothing."""

    def __init__(self, box: Mailbox) -> None:
        self.box = box
        self._last: dict[int, int] = {}  # sequence numbers, by session
        self._presses: dict[int, tuple[bool, int]] = {}  # by session: held, and number of presses so far
        self._id = secrets.randbits(62) + 1

    def beat(self) -> None:
        """Call at least once a second. Raises UsageError while another writer is active."""
        word, now_ns = self.box.word, time.monotonic_ns()
        if (
            int(word["writer"][0]) != self._id
            and self.box.writer_ns > 0
            and now_ns - self.box.writer_ns < CLAIM_NS
        ):
            raise UsageError("another console is connected to this run. Use it or close it")
        word["writer"][0], word["writer_ns"][0] = self._id, now_ns

    def close(self) -> None:
        """Let another writer connect."""
        if int(self.box.word["writer"][0]) == self._id:
            self.box.word["writer_ns"][0] = 1  # long ago, but not 0

    def drive(
        self,
        *,
        session: int,
        sequence: int,
        held: bool,
        axes: Sequence[float] | Array,
        expires_s: float = EXPIRY_S,
        time_ns: int | None = None,
        new_press: bool = False,
    ) -> None:
        """Drive the arm until `expires_s` after `time_ns`, or release it if not `held`. `sequence` must grow in a session.

        `time_ns` is when the input was read or sent, in this host's monotonic time; None: now. A time in the future counts
        as now. `new_press`: the switch was pressed again, although no release was seen, as with a terminal's keys.
        """
        values = _checked_axes(axes, self.box.num_axes)
        if not 0 < expires_s <= MAX_EXPIRY_S:
            raise UsageError(f"expires_s should be above 0 and at most {MAX_EXPIRY_S:g} s, got {expires_s!r}")
        self._check(session, sequence)
        self.beat()
        now_ns = time.monotonic_ns()
        stamp_ns = now_ns if time_ns is None else min(time_ns, now_ns)
        was_held, press = self._presses.get(session, (False, 0))
        press += held and (new_press or not was_held)
        self._write(
            session, sequence, held=held, press=press, values=values, stamp_ns=stamp_ns, expires_s=expires_s
        )

    def lose(self, *, session: int, sequence: int) -> None:
        """Report that the driver is lost: the arm holds. The next `held` of this session counts as a new press."""
        self._check(session, sequence)
        self.beat()
        _, press = self._presses.get(session, (False, 0))
        zeros = np.zeros(self.box.num_axes, np.float32)
        self._write(session, sequence, held=True, press=press, values=zeros, stamp_ns=1, expires_s=EXPIRY_S)
        self._presses[session] = (False, press)

    def _check(self, session: int, sequence: int) -> None:
        if not 0 < session < 2**63 or not 0 < sequence < 2**63:
            raise UsageError("session and sequence number should be above 0 and below 2**63")
        if sequence <= (last := self._last.get(session, 0)):
            raise UsageError(f"message {sequence} is old: the last one was {last}")

    def _write(
        self,
        session: int,
        sequence: int,
        *,
        held: bool,
        press: int,
        values: Array,
        stamp_ns: int,
        expires_s: float,
    ) -> None:
        self._last[session], self._presses[session] = sequence, (bool(held), press)
        numbers = (session, sequence, stamp_ns, round(expires_s * NS_PER_S), bool(held), press)
        self.box.drive.write({"numbers": numbers, "axes": values})

    def post(self, event: Event, *, session: int = 1) -> int:
        """Return the number of events so far. Raises UsageError while the ring is full, except for stop events."""
        box, word = self.box, self.box.word
        try:
            self.beat()
        except UsageError:
            if event is Event.EMERGENCY:  # any writer may stop the robot
                word[f"newest/{event}"][0] = self._next_number()
                return box.num_events_posted
            raise
        full = box.num_posted - int(word["taken"][0]) >= NUM_SLOTS
        if full and event not in _ALWAYS_ACCEPTED:
            raise UsageError("the robot accepts no events now, because no episode is running")
        event_number = self._next_number()
        word["num_events"][0] = event_number
        word[f"newest/{event}"][0] = event_number
        if not full:
            number = box.num_posted + 1
            row = (number, _EVENTS.index(event), session, time.monotonic_ns())
            box.ring[number % NUM_SLOTS, :5] = (*row, _checksum(row))
            word["posted"][0] = number
        return event_number

    def _next_number(self) -> int:
        """Newer than every event, also than those of other writers: only the active writer counts `num_events`."""
        box = self.box
        return max(box.num_events_posted, box.newest(Event.EMERGENCY), box.newest(Event.ACKNOWLEDGE)) + 1


class MailboxReader:
    """The control loop's side. Never raises."""

    def __init__(self, box: Mailbox) -> None:
        self.box = box
        self._version = 0
        self._command: DriveCommand | None = None

    def command(self) -> DriveCommand | None:
        """The newest message; None before the first. Old numbers of its session are passed over."""
        found = self.box.drive.read(newer_than=self._version)
        if found is not None:
            self._version, values = found
            session, sequence, time_ns, expires_ns, held, press = (int(number) for number in values["numbers"])
            last, axes = self._command, values["axes"]
            if last is None or session != last.session or sequence > last.sequence:
                self._command = DriveCommand(
                    session=session,
                    sequence=sequence,
                    held=bool(held),
                    axes=axes,
                    press=press,
                    time_ns=time_ns,
                    expires_ns=min(expires_ns, round(MAX_EXPIRY_S * NS_PER_S)),
                    is_valid=held in (0, 1) and bool((np.abs(axes) <= 1.0).all()),  # false for NaN, too
                )
        return self._command

    def next_event(self) -> PostedEvent | None:
        """Return the oldest unread event, once."""
        box = self.box
        number = int(box.word["taken"][0]) + 1
        if number > box.num_posted:
            return None
        row = tuple(int(value) for value in box.ring[number % NUM_SLOTS, :5])
        if row[0] != number or row[4] != _checksum(row[:4]) or not 0 <= row[1] < len(_EVENTS):
            if box.num_posted - number < NUM_SLOTS:
                return None  # not completely written yet
            box.word["taken"][0] = box.num_posted - NUM_SLOTS  # overwritten by a faulty writer
            return None
        box.word["taken"][0] = number
        return PostedEvent(number=number, event=_EVENTS[row[1]], session=row[2], time_ns=row[3])

    def report(self, control: Control, *, driver: int = 0, last_sequence: int = 0) -> None:
        """Publish who controls the arm."""
        word, now_ns = self.box.word, time.monotonic_ns()
        if int(word["control"][0]) != control:
            word["since_ns"][0] = now_ns
            word["control"][0] = control
        word["driver"][0], word["last_sequence"][0], word["reader_ns"][0] = driver, last_sequence, now_ns


def _checked_axes(axes: Sequence[float] | Array, num_axes: int) -> Array:
    try:
        values = np.array(axes, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError("axes should be numbers") from error
    if values.shape != (num_axes,):
        raise UsageError(f"axes should be {num_axes} numbers, got shape {list(values.shape)}")
    if not (np.abs(values) <= 1.0).all():
        raise UsageError("axes should be finite and from -1 to 1")
    return values


def _checksum(row: Sequence[int]) -> int:
    return zlib.crc32(np.array(row, np.int64).tobytes())


def _offsets(num_axes: int) -> tuple[int, int, int]:
    """Offsets of words, ring and drive command."""
    words = -(-8 * len(_WORDS) // 64) * 64
    return 0, words, words + NUM_SLOTS * 64
