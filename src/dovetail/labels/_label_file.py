"""File format of labels: lines of JSON, and a file with the committed size."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dovetail.core.disk import MissingError, dump_json, load_json, parse_json, read_file, sha256, write_file
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array, Labels

__all__ = [
    "FILE",
    "MARK",
    "Head",
    "LabelRecord",
    "before_hole",
    "decode",
    "encode",
    "encode_retraction",
    "head",
    "is_intact",
    "is_valid",
    "read_committed_size",
    "salvage",
    "write_committed_size",
]

FILE = "labels.jsonl"
MARK = "committed.json"

_END = re.compile(rb', "checksum": "([0-9a-f]{64})"\}')
_END_BYTES = 15 + 64 + 2
# From the start of a line to its next end. No string inside can contain either, because JSON escapes quotes.
_LINE = re.compile(rb'(?=(\{"episode_id": .*?, "checksum": "[0-9a-f]{64}"\}))', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRecord:
    """Labels of an episode with the time they were added. The time gives no order, because clocks jump."""

    labels: Labels
    added_unix_ns: int
    retracted: bool = False


class Head(NamedTuple):
    """A line without its rewards."""

    episode_id: str
    labeler: str
    version: str
    priority: int
    retracts: bool  # the line retracts the last labels of the same source and contains none itself

    @property
    def source(self) -> tuple[str, str, int]:
        return self.labeler, self.version, self.priority


def encode(labels: Labels, *, added_unix_ns: int) -> bytes:
    """Encode labels as one line, without newline, that ends in a checksum of the rest."""
    if len(labels.rewards) != len(labels.discounts):
        raise UsageError(
            f"labels of episode {labels.episode_id} have {len(labels.rewards)} rewards "
            f"and {len(labels.discounts)} discounts"
        )
    return dump_json(
        {
            "episode_id": labels.episode_id,
            "labeler": labels.labeler,
            "version": labels.version,
            "priority": int(labels.priority),
            "success": bool(labels.success),
            "confidence": float(labels.confidence),
            "num_steps": len(labels.rewards),
            "rewards": _pack(labels.rewards),
            "discounts": _pack(labels.discounts),
            **({"discard": True} if labels.discard else {}),
            **({"why": labels.why} if labels.why else {}),
            "added_unix_ns": added_unix_ns,
        }
    )


def encode_retraction(labels: Labels, *, added_unix_ns: int) -> bytes:
    """Encode a line that retracts the last labels of the same labeler, version and priority."""
    return dump_json(
        {
            "episode_id": labels.episode_id,
            "labeler": labels.labeler,
            "version": labels.version,
            "priority": int(labels.priority),
            "retracts": True,
            "added_unix_ns": added_unix_ns,
        }
    )


def is_intact(line: bytes) -> bool:
    """Whether a line matches its checksum. Does not parse it."""
    end = _END.fullmatch(line[-_END_BYTES:])
    return end is not None and sha256(line[:-_END_BYTES] + b"}") == end[1].decode()


def head(line: bytes) -> Head:
    """Parse the head of an intact line. Raises ValueError if its content is not that of a label."""
    data = _parse(line)
    return Head(
        episode_id=data["episode_id"],
        labeler=data["labeler"],
        version=data["version"],
        priority=data.get("priority", 0),  # old files have no priorities
        retracts=data.get("retracts", False),
    )


def decode(line: bytes) -> LabelRecord:
    """Parse an intact line. Raises ValueError if its content is not that of a label."""
    data = _parse(line)
    try:
        labels = Labels(
            episode_id=data["episode_id"],
            rewards=_unpack(data["rewards"]),
            discounts=_unpack(data["discounts"]),
            success=data["success"],
            confidence=data["confidence"],
            labeler=data["labeler"],
            version=data["version"],
            priority=data.get("priority", 0),
            discard=data.get("discard", False),
            why=data.get("why", ""),
        )
        if len(labels.rewards) != len(labels.discounts) or not isinstance(labels.why, str):
            raise ValueError("rewards and discounts have different lengths")
        if type(labels.success) is not bool or type(labels.discard) is not bool:
            raise ValueError("success and discard should be true or false")
        if not isinstance(labels.confidence, int | float) or not 0 <= labels.confidence <= 1:
            raise ValueError("confidence should be 0 to 1")
        return LabelRecord(labels=labels, added_unix_ns=_added(data["added_unix_ns"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a label: {error}") from error


def _parse(line: bytes) -> dict[str, Any]:
    """A checksum shows accidents only: the file may come from an untrusted source."""
    data = parse_json(line)
    texts = isinstance(data, dict) and all(
        isinstance(data.get(key), str) for key in ("episode_id", "labeler", "version")
    )
    if not texts or type(data.get("priority", 0)) is not int or type(data.get("retracts", False)) is not bool:
        raise ValueError("not a label")
    return dict(data)


def _added(unix_ns: Any) -> int:
    if type(unix_ns) is not int or not 0 <= unix_ns < 9 * 10**18:
        raise ValueError("added_unix_ns is out of range")
    return unix_ns


def is_valid(line: bytes) -> bool:
    """Whether a line matches its checksum and contains a label or a retraction."""
    try:
        return is_intact(line) and (head(line).retracts or decode(line) is not None)
    except ValueError:
        return False


def before_hole(body: bytes) -> bytes | None:
    """Return the line, or nothing, before the zeros that a power cut leaves where data was not synced; None: no zeros."""
    line, zero, _ = body.partition(b"\0")
    return line if zero and (not line or is_intact(line)) else None


def salvage(damaged: bytes) -> list[bytes]:
    """Return valid lines inside a damaged one. A damaged newline joins two lines."""
    return [found[1] for found in _LINE.finditer(damaged) if is_valid(found[1])]


def read_committed_size(folder: Path) -> int:
    """Return the number of committed bytes. A smaller file has lost data; bytes beyond may be incomplete.

    The newline of the last line does not count, because it is not fsynced.
    """
    path = folder / MARK
    try:
        return int(load_json(read_file(path, max_bytes=1000), name=str(path))["num_bytes"])
    except MissingError:
        return 0
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error


def write_committed_size(folder: Path, num_bytes: int, *, temporary: Path) -> None:
    staged = temporary / MARK
    write_file(staged, dump_json({"num_bytes": num_bytes}))
    os.replace(staged, folder / MARK)


def _pack(values: Array) -> str:
    """Encode as little-endian float32 in base64, which keeps every bit of NaN."""
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def _unpack(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
