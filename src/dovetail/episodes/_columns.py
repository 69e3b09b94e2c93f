"""An episode as plain columns, as the log writes and hashes them.

Numeric columns of the segments are concatenated. Images stay in pieces, because a second copy of them may not fit into
the memory of the robot's machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.prompts import check_prompt_changes
from dovetail.core.types import Array, Episode, Observation, Segment
from dovetail.episodes._frames import is_image
from dovetail.episodes._image_stream import ImageStream

__all__ = ["FRAME", "OBSERVATION", "Columns", "checksum"]

OBSERVATION = "observation/"
FRAME = "frame/"  # prefix of the column with the frame index of each row; the frames are stored separately


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Steps of an episode, or of some of its segments, and the observation after the last step."""

    steps: Mapping[str, Array]  # [T, ...], without images
    last: Mapping[str, Array]  # values of the last observation, without images
    images: Mapping[
        str, Sequence[Array | ImageStream]
    ]  # pieces [t, H, W, C] of [T + 1, H, W, C], by observation key
    last_time_ns: int

    @staticmethod
    def of(episode: Episode, streams: Mapping[str, ImageStream] | None = None) -> Columns:
        """Merge the segments. Raises StoreError if they are not one complete episode. `streams` are cameras that the
        segments lack."""
        num_steps = 0
        for segment in episode.segments:
            if segment.episode_id != episode.id:
                raise StoreError(f"episode {episode.id} contains a segment of episode {segment.episode_id}")
            if segment.first != num_steps:
                raise StoreError(f"episode {episode.id} has a gap: step {segment.first} follows {num_steps - 1}")
            num_steps += len(segment)
        last = episode.segments[-1].last_observation if episode.segments else None
        if last is None:
            raise StoreError(f"episode {episode.id} is not finished: it has no last observation")
        try:
            check_prompt_changes(episode.prompt_changes, first=0, num_steps=num_steps)
        except UsageError as error:
            raise StoreError(f"episode {episode.id}: {error}") from error
        found = Columns.join(episode.segments, last, name=f"episode {episode.id}")
        if bad := [key for key, stream in (streams or {}).items() if len(stream) != num_steps + 1]:
            raise StoreError(f"episode {episode.id}: camera '{bad[0]}' should have {num_steps + 1} images")
        return replace(found, images={**found.images, **{key: (one,) for key, one in (streams or {}).items()}})

    @staticmethod
    def join(segments: Sequence[Segment], last: Observation, *, name: str) -> Columns:
        """Merge segments and the observation after them. Raises StoreError if their columns do not match."""
        pieces = {key: [segment.columns.get(key) for segment in segments] for key in segments[0].columns}
        num_rows = [len(segment) for segment in segments]
        for segment in segments[1:]:
            if set(segment.columns) != set(pieces):
                odd = ", ".join(sorted(set(segment.columns) ^ set(pieces)))
                raise StoreError(f"{name}: some segments lack these columns: {odd}")
        steps = {key: _checked_pieces(pieces[key], num_rows, name=name, column=key) for key in sorted(pieces)}
        values = {key: _native(value) for key, value in last.values.items()}
        seen = {key.removeprefix(OBSERVATION) for key in steps if key.startswith(OBSERVATION)}
        if seen != set(values):
            odd = ", ".join(sorted(seen ^ set(values)))
            raise StoreError(f"{name}: only the steps or only the last observation have: {odd}")
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
        """Yield the T + 1 images of a camera, including that of the last observation."""
        for piece in self.images[key]:
            yield from piece

    def checksums(self) -> dict[str, str]:
        """Return the checksum of each column's values, which does not depend on how they are encoded."""
        return {
            **{f"steps/{name}": checksum([column]) for name, column in self.steps.items()},
            **{f"last/{key}": checksum([value]) for key, value in sorted(self.last.items())},
            **{f"image/{key}": checksum(pieces) for key, pieces in sorted(self.images.items())},
        }


def checksum(pieces: Sequence[Array | ImageStream]) -> str:
    """Checksum of the values, dtype and shape of an array that is given in pieces."""
    first = pieces[0]
    shape = first.shape if first.ndim == 0 else (sum(map(len, pieces)), *first.shape[1:])
    digest = hashlib.sha256(json.dumps([first.dtype.str, shape]).encode())
    for piece in pieces:
        for part in piece if isinstance(piece, ImageStream) else (piece,):
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]


def _checked_pieces(
    pieces: Sequence[Array | None], num_rows: Sequence[int], *, name: str, column: str
) -> tuple[Array, ...]:
    arrays = tuple(_native(piece) for piece in pieces if piece is not None)
    first = arrays[0]
    if column.startswith(FRAME):
        raise StoreError(f"{name}: column '{column}' has the prefix '{FRAME}', which is reserved for the log")
    for array, expected in zip(arrays, num_rows, strict=True):
        if array.dtype.hasobject:
            raise StoreError(f"{name}: column '{column}' contains Python objects, not numbers")
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
            raise StoreError(f"{name}: column '{column}' has different dtypes or shapes in its segments")
        if array.ndim == 0 or len(array) != expected:
            rows = len(array) if array.ndim else "no"
            raise StoreError(f"{name}: column '{column}' has {rows} rows, expected {expected}")
    return arrays


def _native(values: Array) -> Array:
    """Convert to this machine's byte order, because numpy's functions do so only sometimes."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
