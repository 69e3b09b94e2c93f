"""An episode as plain columns and back: what the log writes, hashes and reads."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Episode, Observation, Segment

__all__ = ["Columns", "pack", "unpack"]

_OBSERVATION = "observation/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The steps [T, ...] of an episode, and the observation after the last of them."""

    steps: Mapping[str, Array]
    last: Mapping[str, Array]
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
        names = set(episode.segments[0].columns)
        for segment in episode.segments:
            if set(segment.columns) != names:
                odd = ", ".join(sorted(set(segment.columns) ^ names))
                raise StoreError(f"episode {episode.id}: columns not in all segments: {odd}")
            for name, column in segment.columns.items():
                if column.dtype != episode.segments[0].columns[name].dtype:
                    raise StoreError(f"episode {episode.id}: column '{name}' changes its dtype on the way")
        columns = Columns(
            steps={name: _native(episode.column(name)) for name in sorted(names)},
            last={key: _native(value) for key, value in last.values.items()},
            last_time_ns=int(last.time_ns),
        )
        columns._check(episode.id, num_steps)
        return columns

    def _check(self, episode_id: str, num_steps: int) -> None:
        for name, column in self.steps.items():
            if column.dtype.hasobject:
                raise StoreError(f"episode {episode_id}: column '{name}' holds Python objects, not numbers")
            if len(column) != num_steps:
                raise StoreError(f"episode {episode_id}: column '{name}' has {len(column)} rows, not {num_steps}")
        seen = {name.removeprefix(_OBSERVATION) for name in self.steps if name.startswith(_OBSERVATION)}
        if seen != set(self.last):
            odd = ", ".join(sorted(seen ^ set(self.last)))
            raise StoreError(f"episode {episode_id}: not both in the steps and the last observation: {odd}")
        for key, value in self.last.items():
            column = self.steps[_OBSERVATION + key]
            if value.shape != column.shape[1:] or value.dtype != column.dtype:
                raise StoreError(
                    f"episode {episode_id}: last observation '{key}' is {value.dtype}{list(value.shape)}, "
                    f"but in the steps it is {column.dtype}{list(column.shape[1:])}"
                )

    def segment(self, episode_id: str) -> Segment:
        return Segment(
            episode_id=episode_id,
            first=0,
            final=True,
            columns=self.steps,
            last_observation=Observation(time_ns=self.last_time_ns, values=self.last),
        )

    def with_last(self, key: str) -> Array:
        """Every row of an observation, the last one included: [T + 1, ...]."""
        return np.concatenate([self.steps[_OBSERVATION + key], self.last[key][None]])

    def digest(self, facts: Mapping[str, Any]) -> str:
        """What decides whether two episodes of one id are the same: the values, not how they were encoded."""
        digest = hashlib.sha256(json.dumps({**facts, "last_time_ns": self.last_time_ns}, sort_keys=True).encode())
        for kind, arrays in (("steps", self.steps), ("last", self.last)):
            for name in sorted(arrays):
                value = arrays[name]
                digest.update(json.dumps([kind, name, value.dtype.str, value.shape]).encode())
                digest.update(value.tobytes())
        return digest.hexdigest()


def _native(values: Array) -> Array:
    """This machine's byte order, which numpy's own functions keep or drop as they please."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def pack(arrays: Mapping[str, Array]) -> bytes:
    """Named arrays as the bytes of an .npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> dict[str, Array]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
