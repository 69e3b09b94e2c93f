"""What a person says to the robot, in shared memory: one writer, one reader that looks once a tick, and no lock.

    writer = MailboxWriter(box)                                   # the console, or whoever reads a person's keys
    writer.drive(session=7, sequence=41, held=True, axes=[...])   # again and again while the dead-man switch is held
    writer.post(Event.SUCCESS, session=7)
    reader = MailboxReader(box)                                   # the control loop
    hand, event = reader.hand(), reader.next_event()

How the arm is driven is the newest value alone, which expires. Events lie in a ring, and each is taken once. Of each kind
of event the newest one's number stands beside the ring, for those who must not wait for their turn in it: an emergency
stop counts until a later acknowledgement, however often anybody looks. Both ends refuse what makes no sense.
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

__all__ = ["EXPIRY_S", "Control", "Hand", "Mailbox", "MailboxReader", "MailboxWriter", "Posted"]

EXPIRY_S = 0.25
MAX_EXPIRY_S = 2.0
NUM_SLOTS = 64
CLAIM_NS = 3 * NS_PER_S // 2  # a writer that is silent for longer has left
_MAGIC = 0x6D61696C0001  # and the layout's version
_EVENTS = tuple(Event)
_MUST_BE_HEARD = (Event.EMERGENCY, Event.ACKNOWLEDGE, Event.STOP)
_AHEAD_NS = NS_PER_S  # a stamp further in the future is of no clock of ours
# int64 words, and who writes them
_WRITER = ("posted", "said", "writer", "writer_ns", *(f"newest/{event}" for event in _EVENTS))
_READER = ("taken", "reader_ns", "control", "since_ns", "driver", "heard")
_WORDS = ("magic", "num_axes", *_WRITER, *_READER)


class Control(enum.IntEnum):
    """Who decides what the arm does, as the reader tells it."""

    POLICY = 0  # or whoever else is configured: a scripted person, say
    HUMAN = 1
    HOLDING = 2  # a person drove, and was lost
    PAUSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """A person's hand on the arm, as last heard of. Axes in [-1, 1], one per axis of the robot's action."""

    session: int
    sequence: int
    held: bool  # the dead-man switch
    axes: Array  # float32 [A]
    time_ns: int = 0  # monotonic, of this host
    expires_ns: int = 0  # so long after
    good: bool = True  # not to be acted on otherwise: NaN, say

    def is_fresh(self, now_ns: int) -> bool:
        return self.good and -_AHEAD_NS < now_ns - self.time_ns <= self.expires_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """An event, with its number: 1 is the first."""

    number: int
    event: Event
    session: int
    time_ns: int


class Mailbox:
    """The memory, zeros at first: plain, or a mapping that two processes hold."""

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
            "numbers": head[2:7],  # session, sequence, time_ns, expires_ns, held
            "axes": data[drive + 64 : drive + 64 + 4 * num_axes].view(np.float32),
        }
        self.drive = Seqlock(head[:1].view(np.uint64), head[1:2].view(np.uint32)[:1], fields)
        if memory is None or not array.any():
            self.word["magic"][0], self.word["num_axes"][0] = _MAGIC, num_axes
        elif int(self.word["magic"][0]) != _MAGIC or int(self.word["num_axes"][0]) != num_axes:
            raise UsageError(f"that is no mailbox of {num_axes} axes: the run is of another version of Dovetail")

    @staticmethod
    def num_bytes(num_axes: int) -> int:
        return _offsets(num_axes)[2] + 64 + -(-4 * num_axes // 64) * 64

    def newest(self, event: Event) -> int:
        """When the newest of a kind was said, counted over all that was said; 0: never."""
        return int(self._newest[event][0])

    @property
    def emergency(self) -> bool:
        """Whether an emergency stop was asked for, and not acknowledged since."""
        newest = self._newest  # asked at every command
        return bool(newest[Event.EMERGENCY][0] > newest[Event.ACKNOWLEDGE][0])

    @property
    def num_said(self) -> int:
        return int(self.word["said"][0])

    @property
    def num_posted(self) -> int:
        return int(self.word["posted"][0])

    @property
    def writer_ns(self) -> int:
        """When the writer was last heard of; 0: never."""
        return int(self.word["writer_ns"][0])

    @property
    def reader_ns(self) -> int:
        """When the control loop last looked; 0: never."""
        return int(self.word["reader_ns"][0])

    @property
    def control(self) -> Control:
        return Control(int(self.word["control"][0]))

    @property
    def since_ns(self) -> int:
        """Since when."""
        return int(self.word["since_ns"][0])

    @property
    def driver(self) -> int:
        """The session that drives; 0: nobody."""
        return int(self.word["driver"][0])

    @property
    def heard(self) -> int:
        """The sequence number of the last message that was acted on."""
        return int(self.word["heard"][0])


class MailboxWriter:
    """The one writer's side. What makes no sense raises UsageError, and changes nothing."""

    def __init__(self, box: Mailbox) -> None:
        self.box = box
        self._last: dict[int, int] = {}  # sequence numbers, by session
        self._id = secrets.randbits(62) + 1

    def beat(self) -> None:
        """Say that somebody is there, at least once a second. There is one writer: another one is refused meanwhile."""
        word, now_ns = self.box.word, time.monotonic_ns()
        if (
            int(word["writer"][0]) != self._id
            and self.box.writer_ns > 0
            and now_ns - self.box.writer_ns < CLAIM_NS
        ):
            raise UsageError("another console is at this run: use that one, or close it")
        word["writer"][0], word["writer_ns"][0] = self._id, now_ns

    def close(self) -> None:
        """Leave the place to another writer."""
        if int(self.box.word["writer"][0]) == self._id:
            self.box.word["writer_ns"][0] = 1  # long ago, but not never

    def drive(
        self,
        *,
        session: int,
        sequence: int,
        held: bool,
        axes: Sequence[float] | Array,
        expires_s: float = EXPIRY_S,
        time_ns: int | None = None,
    ) -> None:
        """How the arm is driven from now on, for `expires_s`; `held` false gives it back. Numbers of a session grow."""
        values = _checked_axes(axes, self.box.num_axes)
        if not 0 < session < 2**63 or not 0 < sequence < 2**63:
            raise UsageError("session and sequence number should be above 0, and fit 63 bits")
        if sequence <= (last := self._last.get(session, 0)):
            raise UsageError(f"message {sequence} is old: the last one was {last}")
        if not 0 < expires_s <= MAX_EXPIRY_S:
            raise UsageError(f"a message expires within {MAX_EXPIRY_S:g} s, not {expires_s!r}")
        self.beat()
        self._last[session] = sequence
        stamp = time.monotonic_ns() if time_ns is None else time_ns
        numbers = (session, sequence, stamp, round(expires_s * NS_PER_S), bool(held))
        self.box.drive.write({"numbers": numbers, "axes": values})

    def post(self, event: Event, *, session: int = 1) -> int:
        """Returns how many things were said so far. Refused while the ring is full; what must be heard never is."""
        box, word = self.box, self.box.word
        try:
            self.beat()
        except UsageError:
            if event is Event.EMERGENCY:  # anybody may stop it
                word[f"newest/{event}"][0] = box.num_said + 1
                return box.num_said
            raise
        full = box.num_posted - int(word["taken"][0]) >= NUM_SLOTS
        if full and event not in _MUST_BE_HEARD:
            raise UsageError("the robot takes no events at the moment: it is not in an episode")
        said = int(word["said"][0]) + 1
        word["said"][0] = said
        word[f"newest/{event}"][0] = said
        if not full:
            number = box.num_posted + 1
            row = (number, _EVENTS.index(event), session, time.monotonic_ns())
            box.ring[number % NUM_SLOTS, :5] = (*row, _checksum(row))
            word["posted"][0] = number
        return said


class MailboxReader:
    """The control loop's side. Never raises, whatever lies there."""

    def __init__(self, box: Mailbox) -> None:
        self.box = box
        self._version = 0
        self._hand: Hand | None = None

    def hand(self) -> Hand | None:
        """The newest message; None before the first. Old numbers of its session are passed over."""
        found = self.box.drive.read(newer_than=self._version)
        if found is not None:
            self._version, values = found
            session, sequence, time_ns, expires_ns, held = (int(number) for number in values["numbers"])
            last, axes = self._hand, values["axes"]
            if last is None or session != last.session or sequence > last.sequence:
                self._hand = Hand(
                    session=session,
                    sequence=sequence,
                    held=bool(held),
                    axes=axes,
                    time_ns=time_ns,
                    expires_ns=min(expires_ns, round(MAX_EXPIRY_S * NS_PER_S)),
                    good=held in (0, 1) and bool((np.abs(axes) <= 1.0).all()),  # false of NaN, too
                )
        return self._hand

    def next_event(self) -> Posted | None:
        """The oldest event that was not taken, once."""
        box = self.box
        number = int(box.word["taken"][0]) + 1
        if number > box.num_posted:
            return None
        row = tuple(int(value) for value in box.ring[number % NUM_SLOTS, :5])
        if row[0] != number or row[4] != _checksum(row[:4]) or not 0 <= row[1] < len(_EVENTS):
            if box.num_posted - number < NUM_SLOTS:
                return None  # not all of it shows yet
            box.word["taken"][0] = box.num_posted - NUM_SLOTS  # overwritten: nobody of ours does that
            return None
        box.word["taken"][0] = number
        return Posted(number=number, event=_EVENTS[row[1]], session=row[2], time_ns=row[3])

    def tell(self, control: Control, *, driver: int = 0, heard: int = 0) -> None:
        """Who decides now, for whoever looks."""
        word, now_ns = self.box.word, time.monotonic_ns()
        if int(word["control"][0]) != control:
            word["since_ns"][0] = now_ns
            word["control"][0] = control
        word["driver"][0], word["heard"][0], word["reader_ns"][0] = driver, heard, now_ns


def _checked_axes(axes: Sequence[float] | Array, num_axes: int) -> Array:
    try:
        values = np.array(axes, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError("axes should be numbers") from error
    if values.shape != (num_axes,):
        raise UsageError(f"axes should be {num_axes} numbers, not of shape {list(values.shape)}")
    if not (np.abs(values) <= 1.0).all():
        raise UsageError("axes should be finite, and within -1 and 1")
    return values


def _checksum(row: Sequence[int]) -> int:
    return zlib.crc32(np.array(row, np.int64).tobytes())


def _offsets(num_axes: int) -> tuple[int, int, int]:
    """Where words, ring and drive begin."""
    words = -(-8 * len(_WORDS) // 64) * 64
    return 0, words, words + NUM_SLOTS * 64
