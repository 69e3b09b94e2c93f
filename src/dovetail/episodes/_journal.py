"""File format of a spool's journals: a sequence of records, each protected by checksums.

    header   magic, kind, length of the payload, checksum of the payload, checksum of the header
    payload  START and END: JSON. SEGMENT: Arrow tables, compressed (see `pack_segment`)

A crash leaves at most one incomplete record at the end. The header's checksum tells that from damage: if the header is
intact and its length reaches past the end of the file, the record was never written completely.
"""

from __future__ import annotations

import enum
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dovetail.core.disk import MissingError, load_json, open_file, parse_json
from dovetail.core.errors import SpecMismatch, StoreError, shown
from dovetail.core.types import Array, Episode, EpisodeStart, Observation, Outcome, Segment
from dovetail.episodes._columns import FRAME, OBSERVATION, Columns
from dovetail.episodes._frames import DistinctFrames
from dovetail.episodes._manifest_check import optional_facts
from dovetail.episodes._prompt_changes import changes_from_json, changes_to_json
from dovetail.episodes._tables import MAX_SEGMENT_BYTES, from_ipc, to_ipc

__all__ = [
    "SUFFIX",
    "Kind",
    "Record",
    "Remainder",
    "count_steps",
    "is_recording",
    "number_of",
    "pack",
    "pack_segment",
    "read",
    "read_journal",
    "read_segments",
    "remainder",
]

SUFFIX = ".journal"

_HEADER = struct.Struct("<4sIQI")
_CHECK = struct.Struct("<I")
_MAGIC = b"dvtJ"
_SIZE = _HEADER.size + _CHECK.size
_PROMPT_CHANGES = "prompt_changes"  # JSON, uint8 [1, L], in the row after the steps
_MAX_COUNTED_BYTES = 96 << 20  # of one record


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """The last record of a journal."""

    outcome: Outcome
    judgement: Outcome | None = None
    reset_s: float | None = None
    has_success: bool = True


class Kind(enum.IntEnum):
    START = 1
    SEGMENT = 2
    END = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    kind: Kind
    payload: bytes
    end: int  # offset of the next record


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """The bytes after the last intact record from the start."""

    num_bytes: int
    torn: bool  # an incomplete record, as a crash leaves it
    num_later: int  # intact records after damaged bytes


def pack(kind: Kind, payload: bytes) -> bytes:
    header = _HEADER.pack(_MAGIC, kind, len(payload), zlib.crc32(payload))
    return header + _CHECK.pack(zlib.crc32(header)) + payload


def read(file: BinaryIO, offset: int = 0) -> Iterator[Record]:
    """Yield the records from `offset` on, up to the first that is damaged or incomplete."""
    size = os.fstat(file.fileno()).st_size
    while (record := _read_at(file, offset, size)) is not None:
        yield record
        offset = record.end


def remainder(file: BinaryIO, offset: int) -> Remainder:
    """Describe the bytes after `offset`, at which `read` has ended."""
    size = os.fstat(file.fileno()).st_size
    file.seek(offset)
    data = file.read()
    header = _header(data[:_SIZE])
    torn = len(data) < _SIZE or not any(data) or (header is not None and offset + _SIZE + header[1] > size)
    num_later, place, unread = 0, 0, 4 * len(data)  # a crafted file could have us read it a million times
    while not torn and unread > 0 and (place := data.find(_MAGIC, place + 1)) >= 0:
        later = _header(data[place : place + _SIZE])
        unread -= later[1] if later is not None else 0
        num_later += later is not None and _read_at(file, offset + place, size) is not None
    return Remainder(num_bytes=len(data), torn=bool(data) and torn, num_later=num_later)


def _read_at(file: BinaryIO, offset: int, size: int) -> Record | None:
    file.seek(offset)
    header = _header(file.read(_SIZE))
    if header is None:
        return None
    kind, length, check = header
    end = offset + _SIZE + length
    if end > size:
        return None
    payload = file.read(length)
    return Record(kind=kind, payload=payload, end=end) if zlib.crc32(payload) == check else None


def _header(data: bytes) -> tuple[Kind, int, int] | None:
    if len(data) < _SIZE or _CHECK.pack(zlib.crc32(data[: _HEADER.size])) != data[_HEADER.size :]:
        return None
    magic, kind, length, check = _HEADER.unpack(data[: _HEADER.size])
    return (Kind(kind), length, check) if magic == _MAGIC and kind in list(Kind) else None


def pack_segment(segment: Segment, columns: Columns) -> bytes:
    """Pack tables: the steps, the row after them, and the distinct frames of each camera."""
    steps = dict(columns.steps)
    after: dict[str, Array] = {
        "first": np.array([segment.first], np.int64),
        "time_ns": np.array([columns.last_time_ns], np.int64),
    }
    if segment.prompt_changes:
        text = json.dumps(changes_to_json(segment.prompt_changes)).encode()
        after[_PROMPT_CHANGES] = np.frombuffer(text, np.uint8)[None]
    after |= {OBSERVATION + key: value[None] for key, value in columns.last.items()}
    cameras: list[dict[str, Array]] = []
    for key in columns.images:
        distinct = DistinctFrames(columns.rows(key))
        cameras.append({key: np.stack(list(distinct))})
        index = np.array(distinct.index, np.int64)
        steps[FRAME + key], after[FRAME + key] = index[:-1], index[-1:]
    return to_ipc([steps, after, *cameras])


def _unpack_segment(
    payload: bytes, *, episode_id: str, max_bytes: int = MAX_SEGMENT_BYTES
) -> tuple[Segment, Observation]:
    """Return the steps and the observation after them. Raises ValueError for other data."""
    try:
        steps, after, *cameras = from_ipc(payload, max_bytes=max_bytes)
        for camera in cameras:
            for key, frames in camera.items():
                if len(steps[FRAME + key]) * frames[:1].nbytes > max_bytes:
                    raise ValueError(f"the images of '{key[:80]}' are too large")
                steps[OBSERVATION + key] = frames[steps.pop(FRAME + key)]
                after[OBSERVATION + key] = frames[after[FRAME + key]]
        segment = Segment(
            episode_id=episode_id, first=int(after["first"][0]), final=False, columns=dict(sorted(steps.items()))
        )
        if _PROMPT_CHANGES in after:
            data = parse_json(after[_PROMPT_CHANGES][0].tobytes())
            changes = changes_from_json(data, first=segment.first, num_steps=len(segment))
            segment = replace(segment, prompt_changes=changes)
        values = {
            name.removeprefix(OBSERVATION): row[0] for name, row in after.items() if name.startswith(OBSERVATION)
        }
        return segment, Observation(time_ns=int(after["time_ns"][0]), values=values)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"not a segment: {error}") from error


def count_steps(file: BinaryIO, *, name: str) -> int | None:
    """Count the steps of the episode up to its last intact record, one record in memory at a time; None: no segment."""
    records = read(file)
    start = _start(next(records, None), name=name)
    count = None
    for record in records:
        if record.kind is Kind.END:
            _end(record, name=name)
            break
        try:
            segment, _ = _unpack_segment(record.payload, episode_id=start.id, max_bytes=_MAX_COUNTED_BYTES)
        except ValueError as error:
            raise StoreError(f"{name} cannot be read: {error}") from error
        count = (count or 0) + len(segment)
    return count


def is_recording(path: Path) -> bool:
    """Whether a running process is writing this journal."""
    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except MissingError:
        return False
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return False


def read_journal(file: BinaryIO, *, name: str) -> Episode | None:
    """Read the episode up to its last intact record; None if it has no steps."""
    records = read(file)
    start = _start(next(records, None), name=name)
    segments: list[Segment] = []
    after: Observation | None = None
    end = _End(outcome=Outcome.ABORTED)
    for record in records:
        if record.kind is Kind.END:
            end = _end(record, name=name)
            break
        try:
            segment, after = _unpack_segment(record.payload, episode_id=start.id)
        except ValueError as error:
            raise StoreError(f"{name} cannot be read: {error}") from error
        segments.append(segment)
    if after is None:
        return None
    last = segments[-1]
    segments[-1] = replace(last, final=True, last_observation=after)
    return Episode.of(
        start,
        segments,
        outcome=end.outcome,
        judgement=end.judgement,
        reset_s=end.reset_s,
        has_success=end.has_success,
    )


def read_segments(file: BinaryIO, offset: int, *, name: str) -> tuple[EpisodeStart, tuple[Segment, ...], int]:
    """Return the start of an episode, its segments after `offset`, and the offset of the next one."""
    first = next(read(file), None)
    start = _start(first, name=name)
    segments: list[Segment] = []
    offset = offset or (first.end if first else 0)
    for record in read(file, offset):
        offset = record.end
        if record.kind is not Kind.SEGMENT:
            break
        try:
            segments.append(_unpack_segment(record.payload, episode_id=start.id)[0])
        except ValueError as error:
            raise StoreError(f"{name} cannot be read: {error}") from error
    return start, tuple(segments), offset


def _start(record: Record | None, *, name: str) -> EpisodeStart:
    if record is None or record.kind is not Kind.START:
        raise StoreError(f"the first record of {name} is damaged. `dovetail episodes verify` shows what is left.")
    try:
        return EpisodeStart.from_json(load_json(record.payload, name=name))
    except (KeyError, TypeError, ValueError, SpecMismatch) as error:
        raise StoreError(f"{name} has a start that is not valid: {shown(error)}") from error


def _end(record: Record, *, name: str) -> _End:
    try:
        end = load_json(record.payload, name=name)
        return _End(
            outcome=Outcome(end["outcome"]),
            judgement=Outcome(end["judgement"]) if end["judgement"] else None,
            **optional_facts(end),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{name} has an end that is not valid: {shown(error)}") from error


def number_of(path: Path) -> int:
    """Return the number of an episode in the order of their starts; 0 if it is damaged, so that it comes first."""
    try:
        with open_file(path) as file:
            record = next(read(file), None)
        return int(load_json(record.payload, name=str(path))["number"]) if record else 0
    except (OSError, StoreError, KeyError, TypeError, ValueError):
        return 0
