"""A replay in memory: every observation once, transitions gathered by index.

An episode of T steps takes T + 1 rows: its steps, then the true last observation. The observation after row i
is row i + 1, always, because the row after the last step is there and is never itself drawn: nothing crosses
an episode's border, and the last step, with its reward and its end, is drawn as often as any other.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Labels, Purpose, Source
from dovetail.replay._checks import check_episode, check_labels, check_same_robot, low_dimensional
from dovetail.replay._columns import RingColumn, RowQueue

__all__ = ["VIEWS", "MemoryReplay", "MemoryReplayConfig"]

# Which steps of an episode a view holds: (it is a demonstration, its human steps [T]) -> mask [T]. A
# corrected step of an online episode is both online and prior data, as RLPD wants it.
VIEWS: Mapping[str, Callable[[bool, Array], Array]] = {
    "all": lambda demo, human: np.ones_like(human),
    "demo": lambda demo, human: np.full_like(human, demo),
    "online": lambda demo, human: np.full_like(human, not demo),
    "human": lambda demo, human: human & (not demo),
    "policy": lambda demo, human: ~human & (not demo),
    "prior": lambda demo, human: human | demo,
}


_LEFT = "steps_left"  # how many steps of the episode there are from a row on, itself included


class MemoryReplayConfig(Config):
    capacity_steps: int = Field(default=1_000_000, gt=0)
    """Beyond this many steps the oldest episodes make room, whole ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """Where an episode lies, and how many of its steps each view holds."""

    start: int
    num_steps: int
    counts: Mapping[str, int]


class MemoryReplay:
    """ReplayWriter and ReplayReader in one process. The same episodes in the same order and the same
    generator give the same batches.

    `keys` are the observations worth keeping; by default all that are not images.
    """

    Config: ClassVar[type[MemoryReplayConfig]] = MemoryReplayConfig
    INITIAL_ROWS = 1024

    def __init__(self, config: MemoryReplayConfig | None = None, *, keys: Iterable[str] | None = None) -> None:
        self._capacity = (config or MemoryReplayConfig()).capacity_steps
        self._keys: tuple[str, ...] | None = None if keys is None else tuple(keys)
        self._robot: RobotSpec | None = None  # of the first episode; all others must fit it
        self._columns: dict[str, RingColumn] = {}
        self._num_rows = 0  # allocated
        self._first = 0  # oldest live row
        self._live = 0  # rows in use, from there on
        self._num_steps = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._seen: set[str] = set()
        self._views = {name: RowQueue() for name in VIEWS}

    # -- writing

    def add(self, episode: Episode, labels: Labels) -> None:
        """Make an episode's steps available. An id added before, evicted since or not, changes nothing."""
        if episode.id in self._seen:
            return
        keys = self._keys if self._keys is not None else low_dimensional(episode.robot)
        check_episode(episode, labels, keys=keys, capacity_steps=self._capacity)
        if self._robot is None:
            self._allocate(episode, keys)
        else:
            check_same_robot(self._robot, episode, keys=keys)
        num_steps = len(episode)
        while self._num_steps + num_steps > self._capacity:
            self._evict()
        self._reserve(num_steps + 1)
        start = (self._first + self._live) % self._num_rows
        self._write(start, episode, labels)
        human = episode.column("source") == Source.HUMAN
        rows = (start + np.arange(num_steps)) % self._num_rows
        counts = {}
        for name, members in VIEWS.items():
            chosen = rows[members(episode.purpose is Purpose.DEMO, human)]
            self._views[name].append(chosen)
            counts[name] = len(chosen)
        self._entries[episode.id] = _Entry(start, num_steps, counts)
        self._seen.add(episode.id)
        self._live += num_steps + 1
        self._num_steps += num_steps

    def relabel(self, labels: Labels) -> None:
        """Put newer rewards in the place of older ones. Of an evicted episode nothing is left to change."""
        entry = self._entries.get(labels.episode_id)
        if entry is None:
            if labels.episode_id in self._seen:
                return
            raise UsageError(f"cannot relabel episode {labels.episode_id}: it was never added")
        check_labels(labels, labels.episode_id, entry.num_steps)
        self._columns["reward"].put(entry.start, labels.rewards)
        self._columns["discount"].put(entry.start, labels.discounts)

    # -- reading

    def ids(self) -> list[str]:
        """Episodes that are held, oldest first."""
        return list(self._entries)

    def size(self, view: str) -> int:
        return len(self._view(view))

    def sample(
        self,
        into: Mapping[str, Array],
        *,
        view: str,
        rng: np.random.Generator,
        gamma: float = 1.0,
        num_steps: int = 1,
    ) -> None:
        """Fill the caller's arrays, each [B, ...], with B transitions drawn uniformly, with replacement."""
        queue = self._view(view)
        if not len(queue):
            raise UsageError(f"replay view '{view}' is empty: nothing to sample from")
        batch = self._batch_size(into)
        rows = queue.rows[rng.integers(len(queue), size=batch)]
        spans = np.minimum(num_steps, self._columns[_LEFT].rows[rows])  # [B] never beyond the episode's end
        following = (rows + spans) % self._num_rows
        for name, out in into.items():
            if name in ("reward", "discount"):
                continue
            key, index = (f"observation/{name[5:]}", following) if name.startswith("next/") else (name, rows)
            # "clip" changes nothing, rows are in range; under "raise" numpy gathers into a copy of `out` first
            np.take(self._columns[key].rows, index, axis=0, out=out, mode="clip")
        rewards, discounts = self._returns(rows, spans, gamma=gamma, num_steps=num_steps)
        for name, values in (("reward", rewards), ("discount", discounts)):
            if name in into:
                into[name][:] = values

    def _returns(self, rows: Array, spans: Array, *, gamma: float, num_steps: int) -> tuple[Array, Array]:
        """What is earned over each span, and what the value of what follows counts for."""
        rewards, weights = np.zeros(len(rows), np.float32), np.ones(len(rows), np.float32)
        for k in range(num_steps):
            index = (rows + k) % self._num_rows
            within = k < spans
            rewards += np.where(within, weights * self._columns["reward"].rows[index], np.float32(0.0))
            factor = np.float32(gamma) * self._columns["discount"].rows[index]
            weights *= np.where(within, factor, np.float32(1.0))
        return rewards, weights

    # -- inside

    def _view(self, name: str) -> RowQueue:
        if name not in self._views:
            raise UsageError(f"there is no replay view '{name}'." + did_you_mean(name, self._views))
        return self._views[name]

    def _batch_size(self, into: Mapping[str, Array]) -> int:
        """The B of the caller's arrays, after checking that each can take its column as it is."""
        sizes = {len(out) for out in into.values()}
        if len(sizes) != 1:
            raise UsageError(f"arrays to sample into must all have one length, not {sorted(sizes)}")
        for name, out in into.items():
            source = name.replace("next/", "observation/", 1) if name.startswith("next/") else name
            column = self._columns.get(source)
            if column is None:
                raise UsageError(f"the replay does not hold '{name}'." + did_you_mean(name, self._columns))
            if out.dtype != column.rows.dtype or out.shape[1:] != column.rows.shape[1:]:
                raise UsageError(
                    f"'{name}' is {column.rows.dtype}{list(column.rows.shape[1:])} a row in the replay, "
                    f"the array to sample into has {out.dtype}{list(out.shape[1:])}"
                )
        return int(sizes.pop())

    def _allocate(self, episode: Episode, keys: tuple[str, ...]) -> None:
        """The first episode decides the columns."""
        self._keys, self._robot = keys, episode.robot
        self._num_rows = min(self.INITIAL_ROWS, self._capacity + 1)
        samples = {f"observation/{key}": episode.last_observation.values[key] for key in keys}
        samples["action"] = episode.segments[0].columns["executed"][0]
        samples["reward"] = samples["discount"] = np.zeros((), np.float32)
        samples["human"] = np.zeros((), np.bool_)
        samples[_LEFT] = np.zeros((), np.int64)
        self._columns = {
            name: RingColumn(self._num_rows, sample.shape, sample.dtype) for name, sample in samples.items()
        }

    def _reserve(self, count: int) -> None:
        """Have room for `count` more rows: doubling up to the capacity, then only as much as is needed."""
        needed = self._live + count
        if needed <= self._num_rows:
            return
        bound = self._capacity + self._capacity // 16
        num_rows = max(needed + needed // 16, min(2 * self._num_rows, bound))
        for column in self._columns.values():
            column.grow(num_rows, start=self._first, count=self._live)
        for queue in self._views.values():
            queue.renumber(start=self._first, num_rows=self._num_rows)
        for name, entry in self._entries.items():
            moved = (entry.start - self._first) % self._num_rows
            self._entries[name] = dataclasses.replace(entry, start=moved)
        self._first, self._num_rows = 0, num_rows

    def _write(self, start: int, episode: Episode, labels: Labels) -> None:
        """Copy an episode straight from its segments into the ring."""
        names = {f"observation/{key}": f"observation/{key}" for key in self._keys or ()}
        for name, source in (names | {"action": "executed"}).items():
            for segment in episode.segments:
                row = (start + segment.first) % self._num_rows
                self._columns[name].put(row, segment.columns[source])
        end = (start + len(episode)) % self._num_rows
        for key in self._keys or ():
            self._columns[f"observation/{key}"].put(end, episode.last_observation.values[key][None])
        self._columns["reward"].put(start, labels.rewards)
        self._columns["discount"].put(start, labels.discounts)
        self._columns["human"].put(start, episode.column("source") == Source.HUMAN)
        self._columns[_LEFT].put(start, np.arange(len(episode), 0, -1))

    def _evict(self) -> None:
        """Forget the oldest episode; queues are in the order of adding, so its steps are at their front."""
        _, entry = self._entries.popitem(last=False)
        for name, count in entry.counts.items():
            self._views[name].drop(count)
        self._first = (self._first + entry.num_steps + 1) % self._num_rows
        self._live -= entry.num_steps + 1
        self._num_steps -= entry.num_steps
