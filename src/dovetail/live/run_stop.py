"""One emergency stop for all arms of a run: any process presses it, every arm polls it, no lock.

    stop = RunStop.create(folder)                  # the process that leads the run
    arm = RunStop.from_descriptor(fd, arm="left")  # an arm's process: its guard polls this
    if arm.emergency or arm.ending:
        seen = arm.position
        robot.stop()
        arm.confirm(seen)
    RunStop.attach(folder).press("dovetail stop")  # any other process of the same user

The memory is a list of records that only grows: presses, acknowledgements, requests to end the run, and confirmations of
the arms. A record is added by one append of the kernel, so any number of processes may write, and a process that is killed
or paused leaves a complete list. An acknowledgement names the records that it has seen: a press during an acknowledgement
stays in force. The memory is anonymous and ends with its last process; RUN/stop.json says where to find it. This module
imports little, because `dovetail stop` must start fast.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dovetail.core.clock import boot_id
from dovetail.core.errors import UsageError
from dovetail.processes.identity import process_started

__all__ = ["STOP_JSON", "Kind", "NotRunning", "Record", "RunStop"]

STOP_JSON = "stop.json"
VERSION = 1
_MEMORY_NAME = "dovetail-stop"
_LAYOUT = struct.Struct("<qqB31s80s")  # time_ns, position, kind, arm, source; a page holds 32 of them
_MAX_JSON = 4096
_MAX_RECORDS = 4096  # read at once
_NONE: Mapping[str, Any] = MappingProxyType({})


class NotRunning(UsageError):
    """No run is active in this folder."""


class Kind(enum.IntEnum):
    OPENED = 1  # the first record: `source` is the token in stop.json
    JOIN = 2  # the arm takes part in the run and confirms its stops
    PRESS = 3  # emergency stop of the arm, of all arms if `arm` is empty
    ACKNOWLEDGE = 4  # releases presses before `position`, for the arm or for all arms
    END = 5  # end the run
    CONFIRM = 6  # the arm has been stopped after the records before `position`


class Record(NamedTuple):  # not a dataclass: its import takes as long as the rest
    """`position` is a place in the list; its meaning depends on the kind."""

    kind: Kind
    arm: str = ""
    source: str = ""
    position: int = 0
    time_ns: int = 0  # monotonic, of this host
    at: int = 0  # where this record is in the list

    @property
    def end(self) -> int:
        """Where the next record is in the list."""
        return self.at + _LAYOUT.size

    def pack(self) -> bytes:
        texts = (_cut(self.arm, 31), _cut(self.source, 80))
        return _LAYOUT.pack(self.time_ns, self.position, self.kind, *texts)

    @classmethod
    def unpack(cls, data: bytes, at: int) -> Record | None:
        """Read a record. None for a kind of a newer version."""
        time_ns, position, kind, arm, source = _LAYOUT.unpack(data)
        if kind not in set(Kind):
            return None
        arm, source = (text.rstrip(b"\0").decode(errors="replace") for text in (arm, source))
        return cls(kind=Kind(kind), arm=arm, source=source, position=position, time_ns=time_ns, at=at)


class _State(NamedTuple):
    """What the records up to `position` add up to."""

    position: int = 0
    token: str = ""
    presses: tuple[Record, ...] = ()  # that may still stop an arm
    acknowledged: Mapping[str, int] = MappingProxyType({"": 0})  # by arm
    end: Record | None = None
    arms: tuple[str, ...] = ()
    confirmed: Mapping[str, Record] = _NONE  # newest, by arm
    last_press: Mapping[str, int] = _NONE  # its place, by arm
    last_acknowledgement: Mapping[str, int] = _NONE  # the same

    def is_pressed(self, press: Record, arm: str) -> bool:
        """Whether a press still stops an arm."""
        released = max(self.acknowledged[""], self.acknowledged.get(arm, 0))
        return press.arm in ("", arm) and press.at >= released

    def with_record(self, record: Record) -> _State:
        arm = record.arm
        if record.kind is Kind.OPENED and not self.token:
            return self._replace(token=record.source)
        if record.kind is Kind.JOIN and arm not in self.arms:
            return self._replace(arms=(*self.arms, arm))
        if record.kind is Kind.PRESS:
            last = MappingProxyType({**self.last_press, arm: record.at})
            return self._replace(presses=(*self.presses, record), last_press=last)
        if record.kind is Kind.ACKNOWLEDGE:
            released = max(record.position, self.acknowledged.get(arm, 0))
            last = MappingProxyType({**self.last_acknowledgement, arm: record.at})
            acknowledged = MappingProxyType({**self.acknowledged, arm: released})
            state = self._replace(acknowledged=acknowledged, last_acknowledgement=last)
            # a press for all arms also stops an arm that joins later, until all are released together
            return state._replace(presses=tuple(one for one in self.presses if state.is_pressed(one, one.arm)))
        if record.kind is Kind.END and self.end is None:
            return self._replace(end=record)
        if record.kind is Kind.CONFIRM:
            return self._replace(confirmed=MappingProxyType({**self.confirmed, arm: record}))
        return self

    def newest_press(self, arm: str | None) -> Record | None:
        """The newest press that stops this arm; with None, any arm that has joined."""
        arms = (arm,) if arm is not None else self.arms
        for press in reversed(self.presses):
            if (arm is None and (press.arm or not arms)) or any(self.is_pressed(press, one) for one in arms):
                return press
        return None


class RunStop:
    """The records as one process uses them. With `arm`, only that arm's presses count; otherwise those of any arm.

    All methods return at once. Any thread and any signal handler may call them.
    """

    def __init__(self, descriptor: int, *, arm: str | None = None) -> None:
        """Takes over the descriptor. Use `create`, `attach` or `from_descriptor`."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        self._descriptor, self._arm = descriptor, arm
        self._files: tuple[Path, ...] = ()
        self._state = _State()

    @classmethod
    def create(cls, folder: Path, *, arm: str | None = None) -> RunStop:
        """Publish a new one in the folder of a run that this process leads."""
        stop = cls(os.memfd_create(_MEMORY_NAME), arm=arm)
        stop._append(Record(kind=Kind.OPENED, source=os.urandom(16).hex()))
        stop.publish(folder)
        return stop

    def publish(self, folder: Path) -> None:
        """Let other processes find it in this folder too: an arm that plays for two runs stops for both."""
        file = folder.absolute() / STOP_JSON
        values = {
            "version": VERSION,
            "pid": os.getpid(),
            "started": process_started(os.getpid()),
            "boot_id": boot_id(),
            "descriptor": self._descriptor,
            "token": self.token,
        }
        beside = file.with_name(f".{STOP_JSON}.{os.urandom(8).hex()}.tmp")
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "w") as out:
            json.dump(values, out)
        os.replace(beside, file)
        self._files = (*self._files, file)

    @classmethod
    def attach(cls, folder: Path, *, arm: str | None = None) -> RunStop:
        """Attach to the emergency stop of a run of another process. Raises NotRunning if no run is active in the folder.

        If the process that led the run has ended, an arm may still move. Then this attaches to the memory of any process
        that has it.
        """
        nothing = f"no run is active in {folder}"
        try:
            values = json.loads(_read_own_file(folder / STOP_JSON))
            pid, descriptor, token = int(values["pid"]), int(values["descriptor"]), str(values["token"])
            same_boot, version = values["boot_id"] == boot_id(), values["version"]
            alive = same_boot and process_started(pid) == values["started"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise NotRunning(nothing) from error
        if same_boot and version != VERSION:
            raise NotRunning(f"run {folder} uses another version of Dovetail: use that version")
        places = [f"/proc/{pid}/fd/{descriptor}"] if alive else _places() if same_boot else ()
        for place in places:
            with contextlib.suppress(OSError):
                # A crafted stop.json could name any open file of this user: only our own memory is opened for writing.
                if os.readlink(place).startswith(f"/memfd:{_MEMORY_NAME}"):
                    stop = cls(os.open(place, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC), arm=arm)
                    if stop.token == token:
                        return stop
                    stop.close()
        raise NotRunning(nothing)

    @classmethod
    def from_descriptor(cls, descriptor: int, *, arm: str | None = None) -> RunStop:
        """The emergency stop of a descriptor that this process has or has inherited. The caller keeps its descriptor."""
        return cls(os.dup(descriptor), arm=arm)

    @property
    def arm(self) -> str | None:
        return self._arm

    @property
    def descriptor(self) -> int:
        """To be inherited by a child process."""
        return self._descriptor

    def close(self) -> None:
        """Arms that have it open can still read and write it."""
        for file in self._files:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> RunStop:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- sources

    def press(self, source: str, *, arm: str = "") -> int:
        """Emergency stop of all arms, or of one. `source` is for messages, such as "console". Returns its place."""
        return self._append(Record(kind=Kind.PRESS, source=source, arm=arm))

    def acknowledge(self, *, arm: str = "", seen: int | None = None, source: str = "") -> None:
        """Release all arms, or one, from the presses before `seen`, by default from those so far."""
        position = self.position if seen is None else seen
        self._append(Record(kind=Kind.ACKNOWLEDGE, arm=arm, position=position, source=source))

    def request_end(self, source: str) -> None:
        """Ask the run to end. Its arms stop."""
        self._append(Record(kind=Kind.END, source=source))

    # ---- arms

    def join(self, arm: str) -> None:
        """Announce an arm that will confirm its stops."""
        self._append(Record(kind=Kind.JOIN, arm=arm))

    def confirm(self, seen: int, *, arm: str | None = None) -> None:
        """Report that the arm has been stopped. `seen` is `position` as it was before the stop."""
        name = arm if arm is not None else self._arm or ""
        self._append(Record(kind=Kind.CONFIRM, arm=name, position=seen))

    @property
    def position(self) -> int:
        """How far the records go now. It grows with each record."""
        return self._read().position

    @property
    def emergency(self) -> bool:
        return self.newest_press() is not None

    def newest_press(self) -> Record | None:
        """The newest press in force."""
        return self._read().newest_press(self._arm)

    @property
    def requests(self) -> tuple[int, int, int]:
        """`position`, `pressed_ns` and `end_ns` of the same moment."""
        state = self._read()
        press = state.newest_press(self._arm)
        return state.position, press.time_ns if press else 0, state.end.time_ns if state.end else 0

    @property
    def source(self) -> str:
        """What pressed last, empty without an emergency."""
        press = self.newest_press()
        return press.source if press else ""

    @property
    def pressed_ns(self) -> int:
        """When it was pressed last; 0 without an emergency."""
        press = self.newest_press()
        return press.time_ns if press else 0

    @property
    def ending(self) -> bool:
        """Whether the run is to end, for example after Ctrl-C."""
        return self._read().end is not None

    @property
    def end_source(self) -> str:
        end = self._read().end
        return end.source if end else ""

    @property
    def end_ns(self) -> int:
        """When the end was requested first; 0 if it was not."""
        end = self._read().end
        return end.time_ns if end else 0

    # ---- views of all arms

    @property
    def arms(self) -> tuple[str, ...]:
        return self._read().arms

    def last_press(self, arm: str) -> int:
        """Place of the newest press for the arm or for all arms, acknowledged or not; -1: none."""
        last = self._read().last_press
        return max(last.get(arm, -1), last.get("", -1))

    def last_acknowledgement(self, arm: str) -> int:
        """Place of the newest acknowledgement for the arm or for all arms; -1: none."""
        last = self._read().last_acknowledgement
        return max(last.get(arm, -1), last.get("", -1))

    def is_stopped(self, arm: str) -> bool:
        """Whether a press holds this arm."""
        state = self._read()
        return any(state.is_pressed(press, arm) for press in state.presses)

    def confirmed_ns(self, arm: str, *, after: int) -> int | None:
        """When the arm confirmed a stop for the record at `after`; None if it has not yet."""
        record = self._read().confirmed.get(arm)
        return record.time_ns if record is not None and record.position > after else None

    def records(self, *, start: int = 0, num: int = _MAX_RECORDS) -> list[Record]:
        """The records from a position on."""
        data = os.pread(self._descriptor, num * _LAYOUT.size, start)
        places = range(0, len(data) - _LAYOUT.size + 1, _LAYOUT.size)
        found = (Record.unpack(data[at : at + _LAYOUT.size], start + at) for at in places)
        return [record for record in found if record is not None]

    @property
    def token(self) -> str:
        """Identifies this list among all runs and processes."""
        return self._read().token

    def add(self, record: Record) -> int:
        """Add a record of another list. Returns its place."""
        return self._append(record)

    # ---- the list

    def _append(self, record: Record) -> int:
        """Returns where the record is in the list. Other processes may write at the same time."""
        before, data = self._read().position, record._replace(time_ns=time.monotonic_ns()).pack()
        os.write(self._descriptor, data)
        for written in self.records(start=before):
            if written.pack() == data:
                return written.at
        return before

    def _read(self) -> _State:
        """Threads may read at once: each replaces the state as a whole."""
        state = self._state
        try:
            while os.fstat(self._descriptor).st_size >= state.position + _LAYOUT.size:
                data = os.pread(self._descriptor, _MAX_RECORDS * _LAYOUT.size, state.position)
                for at in range(0, len(data) - _LAYOUT.size + 1, _LAYOUT.size):
                    place = state.position
                    record = Record.unpack(data[at : at + _LAYOUT.size], place)
                    state = state.with_record(record) if record else state
                    state = state._replace(position=place + _LAYOUT.size)
        except OSError:  # closed meanwhile
            return state
        self._state = state
        return state


def _places() -> Iterator[str]:
    """All descriptors of all processes of this user."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # ended, or of another user
                yield from (f"{process}/fd/{number}" for number in os.listdir(process / "fd"))


def _read_own_file(path: Path) -> bytes:
    """Without following a link, and not more than a stop.json can have."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_JSON)
    finally:
        os.close(descriptor)


def _cut(text: str, num_bytes: int) -> bytes:
    """One line of at most so many bytes, without half a character. Unchanged if it was cut before."""
    cut = " ".join(text.split()).encode(errors="replace")[:num_bytes].decode(errors="ignore")
    return cut.rstrip().encode()
