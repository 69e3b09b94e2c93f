"""Labels of a run: one append-only file of JSON lines, several per episode, the newest one counts.

    labels/labels.jsonl

A line is committed by its newline. The body is fsynced before the newline is written, so a line that ends and
does not check out is damage, and an unfinished one at the end is what a crash left: never acknowledged, cut
off by the next writer before it can glue anything to it.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.disk import dump_json, fsync_folder, load_json, writer
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array, Labels

__all__ = ["LabelStore"]


class LabelStore:
    """Every reader sees what any process has added: a question first reads what is new."""

    def __init__(self, folder: Path | str, *, now_unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = Path(folder)
        self._path = self._folder / "labels.jsonl"
        self._now_unix_ns = now_unix_ns
        self._by_episode: dict[str, list[Labels]] = {}
        self._offset = 0  # all before it has been read and was whole
        self._num_lines = 0

    def add(self, labels: Labels) -> None:
        """Append, durably. What is the newest already is not added again, so sending twice is harmless."""
        body = dump_json({**_to_json(labels), "added_unix_ns": self._now_unix_ns()})
        with writer(self._folder):
            self._refresh()
            newest = self._by_episode.get(labels.episode_id, [])[-1:]
            if newest and _to_json(newest[0]) == _to_json(labels):
                return
            fresh = not self._path.exists()
            with self._path.open("r+b" if not fresh else "w+b", buffering=0) as file:
                file.truncate(self._offset)
                file.seek(self._offset)
                if self._offset and not self._ends_line(file.fileno()):
                    _write_all(file.fileno(), b"\n")
                _write_all(file.fileno(), body)
                os.fsync(file.fileno())
                _write_all(file.fileno(), b"\n")
            if fresh:
                fsync_folder(self._folder)
            self._refresh()

    def newest(self, episode_id: str) -> Labels | None:
        """The labels that count for an episode, or none yet."""
        history = self.history(episode_id)
        return history[-1] if history else None

    def history(self, episode_id: str) -> list[Labels]:
        """Everything that was ever said about an episode, oldest first."""
        self._refresh()
        return list(self._by_episode.get(episode_id, []))

    def ids(self) -> list[str]:
        """Episodes that have labels, sorted."""
        self._refresh()
        return sorted(self._by_episode)

    def _ends_line(self, descriptor: int) -> bool:
        return os.pread(descriptor, 1, self._offset - 1) == b"\n"

    def _refresh(self) -> None:
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    raise StoreError(f"{self._path} has lost lines that were there before")
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError as error:
            if self._offset:
                raise StoreError(f"{self._path} has gone") from error
            return
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        *lines, tail = data.split(b"\n")
        for line in lines:
            self._accept(line, num_bytes=len(line) + 1)
        if tail and _is_whole(tail):  # only its newline was lost
            self._accept(tail, num_bytes=len(tail))

    def _accept(self, line: bytes, *, num_bytes: int) -> None:
        if line:  # an empty one is the newline of a line read before it had one
            self._num_lines += 1
            name = f"{self._path} line {self._num_lines}"
            try:
                labels = _from_json(load_json(line, name=name))
            except StoreError:
                self._num_lines -= 1
                raise
            self._by_episode.setdefault(labels.episode_id, []).append(labels)
        self._offset += num_bytes


def _is_whole(tail: bytes) -> bool:
    """Whether a line without its newline was written to the end: no proper prefix of a JSON object is one.

    A whole object with something behind it is a newline that was damaged, which the caller then reports.
    """
    try:
        json.JSONDecoder().raw_decode(tail.decode())
    except ValueError:
        return False
    return True


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _to_json(labels: Labels) -> dict[str, Any]:
    if len(labels.rewards) != len(labels.discounts):
        raise UsageError(
            f"labels of episode {labels.episode_id} have {len(labels.rewards)} rewards "
            f"and {len(labels.discounts)} discounts"
        )
    return {
        "episode_id": labels.episode_id,
        "labeler": labels.labeler,
        "version": labels.version,
        "success": bool(labels.success),
        "confidence": float(labels.confidence),
        "num_steps": len(labels.rewards),
        "rewards": _encode(labels.rewards),
        "discounts": _encode(labels.discounts),
    }


def _from_json(data: dict[str, Any]) -> Labels:
    return Labels(
        episode_id=data["episode_id"],
        rewards=_decode(data["rewards"]),
        discounts=_decode(data["discounts"]),
        success=data["success"],
        confidence=data["confidence"],
        labeler=data["labeler"],
        version=data["version"],
    )


def _encode(values: Array) -> str:
    """Little-endian float32 in base64: exact to the bit, NaN included."""
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def _decode(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)
