"""What lies on disk: labels as lines of JSON, and how much of the file was ever acknowledged."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dovetail.core.disk import MissingError, dump_json, load_json, read_file, sha256, write_file
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Labels

__all__ = [
    "FILE",
    "MARK",
    "Head",
    "LabelRecord",
    "decode",
    "encode",
    "encode_retraction",
    "head",
    "is_intact",
    "read_mark",
    "salvage",
    "write_mark",
]

FILE = "labels.jsonl"
MARK = "committed.json"

_END = re.compile(rb', "checksum": "([0-9a-f]{64})"\}')
_END_BYTES = 15 + 64 + 2
# From where a line can begin to where it ends next. No string in it can hold either: JSON escapes the quotes.
_LINE = re.compile(rb'(?=(\{"episode_id": .*?, "checksum": "[0-9a-f]{64}"\}))', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRecord:
    """What was said about an episode, and when, by the clock of whoever added it. Clocks jump: it orders nothing."""

    labels: Labels
    added_unix_ns: int
    retracted: bool = False  # taken back later: it is as if it had not been said


class Head(NamedTuple):
    """What a line says of itself without its rewards."""

    episode_id: str
    labeler: str
    version: str
    priority: int
    retracts: bool  # it takes back what the same labeler said last, and says nothing itself

    @property
    def speaker(self) -> tuple[str, str, int]:
        return self.labeler, self.version, self.priority


def encode(labels: Labels, *, added_unix_ns: int) -> bytes:
    """One line, without its newline, that ends in a checksum of what stands before it."""
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
            **({"discard": True} if labels.discard else {}),  # nearly none are: lines stay as they were
            **({"why": labels.why} if labels.why else {}),
            "added_unix_ns": added_unix_ns,
        }
    )


def encode_retraction(labels: Labels, *, added_unix_ns: int) -> bytes:
    """A line that takes back the last one of the same labeler, version and priority."""
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
    """Whether a line is what was written, told from its bytes: no need to parse what nobody asks for."""
    end = _END.fullmatch(line[-_END_BYTES:])
    return end is not None and sha256(line[:-_END_BYTES] + b"}") == end[1].decode()


def head(line: bytes) -> Head:
    """Of an intact line."""
    data = json.loads(line)
    return Head(
        episode_id=data["episode_id"],
        labeler=data["labeler"],
        version=data["version"],
        priority=data.get("priority", 0),  # there were lines before there were priorities
        retracts=data.get("retracts", False),
    )


def decode(line: bytes) -> LabelRecord:
    data: dict[str, Any] = json.loads(line)
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
    return LabelRecord(labels=labels, added_unix_ns=data["added_unix_ns"])


def salvage(damaged: bytes) -> list[bytes]:
    """Intact lines inside a damaged one: where a newline was hit, two have run together."""
    return [found[1] for found in _LINE.finditer(damaged) if is_intact(found[1])]


def read_mark(folder: Path) -> int:
    """So many bytes of the file were acknowledged; less of it is a loss, and what is more may be torn.

    The newline of the last line is not counted: it alone is not flushed to the disk.
    """
    path = folder / MARK
    try:
        return int(load_json(read_file(path), name=str(path))["num_bytes"])
    except MissingError:
        return 0


def write_mark(folder: Path, num_bytes: int, *, temporary: Path) -> None:
    staged = temporary / MARK
    write_file(staged, dump_json({"num_bytes": num_bytes}))
    os.replace(staged, folder / MARK)


def _pack(values: Array) -> str:
    """Little-endian float32 in base64: exact to the bit, NaN included."""
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def _unpack(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)
