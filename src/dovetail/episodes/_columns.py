"""An episode as plain columns and back: what the log writes, hashes and reads.

Numbers are merged over the segments. Images stay where they are, in pieces: they are most of an episode, and a
second copy of them is what a robot's machine has no memory for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Episode, Observation, Segment
from dovetail.episodes._frames import is_image

__all__ = ["FRAME", "OBSERVATION", "Columns", "checksum"]

OBSERVATION = "observation/"
FRAME = "frame/"  # where a camera's images are kept apart: for each row, the index of its frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The steps of an episode or of a part of it, and the observation after the last of them."""

    steps: Mapping[str, Array]  # [T, ...], without images
    last: Mapping[str, Array]  # the last observation by its keys, without images
    images: Mapping[str, Sequence[Array]]  # pieces [t, H, W, C] of [T + 1, H, W, C], by the observation's key
    last_time_ns: int

    @staticmethod
    def of(episode: Episode) -> Columns:
        """Merge the segments, or say in what way they are not one whole episode."""
        num_steps = 0
        for segment in episode.segments:
            if segment.episode_id != episode.id:
                raise StoreError(f"episode {episode.id} holds a segment of episode {segment.episode_id}")
            if segment.first != num_steps:
                raise StoreError(f"episode {episode.id} has a gap: step {segment.first} follows {num_steps - 1}")
            num_steps += len(segment)
        last = episode.segments[-1].last_observation if episode.segments else None
        if last is None:
            raise StoreError(f"episode {episode.id} is not finished: it has no last observation")
        return Columns.join(episode.segments, last, name=f"episode {episode.id}")

    @staticmethod
    def join(segments: Sequence[Segment], last: Observation, *, name: str) -> Columns:
        """Columns of segments and of what was seen after them, if they fit each other."""
        pieces = {key: [segment.columns.get(key) for segment in segments] for key in segments[0].columns}
        num_rows = [len(segment) for segment in segments]
        for segment in segments[1:]:
            if set(segment.columns) != set(pieces):
                odd = ", ".join(sorted(set(segment.columns) ^ set(pieces)))
                raise StoreError(f"{name}: columns not in all segments: {odd}")
        steps = {key: _fitting(pieces[key], num_rows, name=name, column=key) for key in sorted(pieces)}
        values = {key: _native(value) for key, value in last.values.items()}
        seen = {key.removeprefix(OBSERVATION) for key in steps if key.startswith(OBSERVATION)}
        if seen != set(values):
            odd = ", ".join(sorted(seen ^ set(values)))
            raise StoreError(f"{name}: not both in the steps and the last observation: {odd}")
        for key, value in values.items():
            column = steps[OBSERVATION + key][0]
            if value.shape != column.shape[1:] or value.dtype != column.dtype:
                raise StoreError(
                    f"{name}: last observation '{key}' is {value.dtype}{list(value.shape)}, "
                    f"but in the steps it is {column.dtype}{list(column.shape[1:])}"
                )
        cameras = [key for key in values if is_image(steps[OBSERVATION + key][0])]
        images = {key: (*steps.pop(OBSERVATION + key), values.pop(key)[None]) for key in cameras}
        numbers = {key: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for key, arrays in steps.items()}
        return Columns(steps=numbers, last=values, images=images, last_time_ns=int(last.time_ns))

    def rows(self, key: str) -> Iterator[Array]:
        """Every image of a camera, the last observation's included, as they were seen: T + 1 of them."""
        for piece in self.images[key]:
            yield from piece

    def checksums(self) -> dict[str, str]:
        """One of each column as it was given, however it is encoded: what two equal episodes have in common."""
        return {
            **{f"steps/{name}": checksum([column]) for name, column in self.steps.items()},
            **{f"last/{key}": checksum([value]) for key, value in sorted(self.last.items())},
            **{f"image/{key}": checksum(pieces) for key, pieces in sorted(self.images.items())},
        }


def checksum(pieces: Sequence[Array]) -> str:
    """Of an array in pieces: its values, its dtype and its shape."""
    first = pieces[0]
    shape = first.shape if first.ndim == 0 else (sum(map(len, pieces)), *first.shape[1:])
    digest = hashlib.sha256(json.dumps([first.dtype.str, shape]).encode())
    for piece in pieces:
        digest.update(np.ascontiguousarray(piece).data)
    return digest.hexdigest()[:32]


def _fitting(
    pieces: Sequence[Array | None], num_rows: Sequence[int], *, name: str, column: str
) -> tuple[Array, ...]:
    arrays = tuple(_native(piece) for piece in pieces if piece is not None)
    first = arrays[0]
    if column.startswith(FRAME):
        raise StoreError(f"{name}: column '{column}' has a name that the log needs for itself")
    for array, expected in zip(arrays, num_rows, strict=True):
        if array.dtype.hasobject:
            raise StoreError(f"{name}: column '{column}' holds Python objects, not numbers")
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
            raise StoreError(f"{name}: column '{column}' changes its dtype or shape on the way")
        if array.ndim == 0 or len(array) != expected:
            rows = len(array) if array.ndim else "no"
            raise StoreError(f"{name}: column '{column}' has {rows} rows, not {expected}")
    return arrays


def _native(values: Array) -> Array:
    """This machine's byte order, which numpy's own functions keep or drop as they please."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
