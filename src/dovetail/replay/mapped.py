"""A replay in memory-mapped files: the writer and a reader of one folder, as one process has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, EpisodeStart, Labels, Segment, View, Window
from dovetail.replay.reader import ReplayView
from dovetail.replay.writer import ReplayStore

__all__ = ["MappedReplay", "MappedReplayConfig"]


class MappedReplayConfig(Config):
    capacity_gb: float = Field(default=8.0, gt=0.0)
    """Beyond this the oldest episodes make room, whole ones. Space is taken as it is needed, not before."""
    capacity_rows: int | None = Field(default=None, ge=2)
    """A bound in rows besides: an episode of T steps takes T + 1."""
    keep_demos: bool = True
    """Demonstrations never make room: prior data stays prior data, however long a run is."""
    num_threads: int = Field(default=2, ge=1, le=64)
    """Threads that copy images into a batch."""


class MappedReplay:
    """See the ReplayWriter and ReplayReader contracts. The same episodes in the same order and the same generator
    give the same batches.

    `keys` are the observations worth keeping; by default all that are not images.
    """

    Config: ClassVar[type[MappedReplayConfig]] = MappedReplayConfig

    def __init__(
        self, config: MappedReplayConfig | None = None, *, folder: Path, keys: Iterable[str] | None = None
    ) -> None:
        config = config or MappedReplayConfig()
        self._store = ReplayStore(
            folder,
            keys=None if keys is None else tuple(keys),
            capacity_bytes=int(config.capacity_gb * 1e9),
            capacity_rows=config.capacity_rows,
            keep_demos=config.keep_demos,
        )
        self._view = ReplayView(folder, num_threads=config.num_threads)

    def open(self) -> str | None:
        """Take up what is there. If that had to be thrown away, the reason: everything is to be added again."""
        self._store.open()
        return self._store.reset_because

    def close(self) -> None:
        self._store.close()

    def add(self, episode: Episode, labels: Labels) -> None:
        self._store.add(episode, labels)

    def extend(self, start: EpisodeStart, segment: Segment) -> None:
        self._store.extend(start, segment)

    def relabel(self, labels: Labels) -> None:
        self._store.relabel(labels)

    def drop(self, episode_id: str) -> None:
        self._store.drop(episode_id)

    def ids(self) -> list[str]:
        return self._store.ids()

    def knows(self, episode_id: str) -> bool:
        return self._store.knows(episode_id)

    def was_dropped(self, episode_id: str) -> bool:
        return self._store.was_dropped(episode_id)

    def reset(self) -> None:
        self._store.reset()

    def skip(self, episode_id: str, robot: RobotSpec, *, num_steps: int) -> None:
        self._store.skip(episode_id, robot, num_steps=num_steps)

    def room(self, robot: RobotSpec) -> int:
        return self._store.room(robot)

    def size(self, view: View) -> int:
        return self._view.size(view)

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window | None = None
    ) -> None:
        self._view.sample(into, view=view, rng=rng, window=window or Window())
