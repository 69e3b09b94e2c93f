"""Reference model of the replay, written with plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.core.contracts import ReplayReader
from dovetail.core.types import Array, Episode, EpisodeStart, Labels, Purpose, Segment, Source, View, Window
from dovetail.replay._snapshot import PARTS

KEYS = ("state", "wrist")
VIEWS = [
    *(View(part=part) for part in PARTS),
    View(robot="x5"),
    View(task="open_drawer", part="online"),
    View(versions=(1, 2)),
    View(max_staleness=1),
    View(part="accepted", robot="panda", max_staleness=2),
    View(part="human", min_source_run=2),
    View(min_source_run=3),
    View(min_source_run=2, versions=(0, 1)),
    View(min_episode_steps=3),
    View(part="online", return_above=0.5, min_episode_steps=2),
]
WINDOWS = [  # gamma is a power of two, so that sums are exact in any precision
    Window(),
    Window(gamma=0.5, num_steps=3, horizon=2, history={"state": 3, "wrist": 2}),
    Window(gamma=0.5, num_steps=2, horizon=5, history={"wrist": 4}),
    Window(gamma=0.5, num_steps=4, stop_at_takeover=True),
]


class Refused(Exception):
    """The real replay must raise as well."""


class Stopped(Exception):
    """Raised after eviction, before anything was added."""


@dataclass
class Held:
    """The stored part of an episode."""

    episode: Episode  # all of it; the first `num_steps` are here
    num_steps: int = 0
    finished: bool = False
    dropped: bool = False
    labels: Labels | None = None
    rows: list[int] = field(default_factory=list)  # where it lies; the last observation has a row too
    born: list[int] = field(default_factory=list)  # how many rows were ever added before

    @property
    def id(self) -> str:
        return self.episode.id

    @property
    def demo(self) -> bool:
        return self.episode.purpose is Purpose.DEMO

    @property
    def num_drawable(self) -> int:
        return max(0, len(self.rows) - 1)


@dataclass
class Model:
    capacity: int
    keep_demos: bool
    records: list[Held] = field(default_factory=list)  # oldest first
    pieces: list[tuple[Held | None, int]] = field(default_factory=list)  # of the ring: whose, how many rows
    order: list[tuple[Held, int]] = field(default_factory=list)  # steps in the order they became drawable
    head_row: int = 0
    num_born: int = 0
    newest_version: int = 0
    begun: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    exists: bool = False
    only_evict: bool = False  # stop there

    # ---- writing

    def held(self, episode_id: str) -> Held | None:
        found = [r for r in self.records if r.id == episode_id and not r.dropped]
        return found[0] if found else None

    def ids(self) -> list[str]:
        return [record.id for record in self.records if not record.dropped]

    def add(self, episode: Episode, labels: Labels) -> None:
        name = episode.id
        if self.held(name) is None:
            if name in self.dropped:
                return
            if name in self.whole and not (self.keep_demos and episode.purpose is Purpose.DEMO):
                return
        self._append(episode, num_steps=len(episode), final=True, labels=labels)

    def extend(self, start: EpisodeStart, segment: Segment, episode: Episode) -> None:
        if self.held(start.id) is None and start.id in self.dropped | self.whole | self.begun:
            return
        record = self.held(start.id)
        if segment.first > (record.num_steps if record else 0):
            self.exists = True
            raise Refused
        self._append(episode, num_steps=segment.first + len(segment), final=segment.final, labels=None)

    def _append(self, episode: Episode, *, num_steps: int, final: bool, labels: Labels | None) -> None:
        self.exists = True
        record = self.held(episode.id) or Held(episode)
        if record.finished:
            record.labels = record.labels or labels
            return
        num_new = max(0, num_steps - record.num_steps) + final
        if not num_new:
            return
        self._evict_for(record, num_new)
        if self.only_evict:
            raise Stopped
        if not record.rows:
            self.records.append(record)
        record.num_steps, record.finished = max(num_steps, record.num_steps), final
        self._put(record, num_new)
        record.labels = labels
        (self.whole if final else self.begun).add(episode.id)

    def _put(self, record: Held, num_new: int) -> None:
        num_drawable = record.num_drawable
        record.rows += range(self.head_row, self.head_row + num_new)
        record.born += range(self.num_born, self.num_born + num_new)
        self.head_row += num_new
        self.num_born += num_new
        self.pieces.append((record, num_new))
        self.order += [(record, tick) for tick in range(num_drawable, record.num_drawable)]
        versions = record.episode.column("policy_version")[: record.num_steps]
        self.newest_version = max(self.newest_version, *versions.tolist())

    def _evict_for(self, mine: Held, num_new: int) -> None:
        stays = [r for r in self.records if not r.dropped and self.keep_demos and r.demo and r is not mine]
        if len(mine.rows) + sum(len(r.rows) for r in stays) + num_new > self.capacity:
            raise Refused
        moving = []
        records, pieces = list(self.records), list(self.pieces)
        while sum(n for _, n in pieces) + sum(len(r.rows) for r in moving) + num_new > self.capacity:
            oldest = records.pop(0)
            if oldest is mine or oldest in stays:
                moving.append(oldest)
            while pieces and not any(pieces[0][0] is r for r in records):
                pieces.pop(0)
        gone = [r for r in self.records if not any(r is kept for kept in records)]
        # what is moved leaves rows behind as well, where they lie between those of others
        self.pieces = [(None if any(r is g for g in gone) else r, n) for r, n in pieces]
        self.records = records + moving
        self.order = [(r, tick) for r, tick in self.order if not any(r is g for g in gone)]
        for record in moving:
            num_rows = len(record.rows)
            record.rows = list(range(self.head_row, self.head_row + num_rows))
            self.head_row += num_rows
            self.pieces.append((record, num_rows))
            self.order += [(record, tick) for tick in range(record.num_drawable)]

    def relabel(self, labels: Labels) -> None:
        record = self.held(labels.episode_id)
        if record is None:
            if labels.episode_id in self.begun | self.whole | self.dropped:
                return
            raise Refused
        if not record.finished:
            raise Refused
        record.labels = labels

    def drop(self, episode_id: str) -> None:
        record = self.held(episode_id)
        if record is not None:
            record.dropped = True
        if self.exists:
            self.dropped.add(episode_id)

    # ---- reading

    def view(self, view: View) -> list[tuple[Held, int]]:
        """Its steps, in the order in which uniform draws count them."""
        return [
            (record, tick) for record, tick in self.order if not record.dropped and self._is_in(record, tick, view)
        ]

    def _is_in(self, record: Held, tick: int, view: View) -> bool:
        episode, demo = record.episode, record.demo
        human = bool(episode.column("source")[tick] == Source.HUMAN)
        version = int(episode.column("policy_version")[tick])
        parts = {
            "all": True,
            "demo": demo,
            "online": not demo,
            "human": human and not demo,
            "policy": not human and not demo,
            "prior": human or demo,
            "accepted": record.labels is not None and record.labels.success,
        }
        hands = (episode.column("source") == Source.HUMAN)[tick : record.num_drawable]
        run = next((k for k, is_human in enumerate(hands) if is_human != human), len(hands))
        total = -np.inf if record.labels is None else float(record.labels.rewards.sum())
        return (
            parts[view.part]
            and run >= view.min_source_run
            and record.num_steps >= view.min_episode_steps
            and (view.return_above is None or total > view.return_above)
            and view.robot in (None, episode.robot.name)
            and view.task in (None, episode.task)
            and (view.versions is None or (not human and view.versions[0] <= version <= view.versions[1]))
            and (view.max_staleness is None or (not human and version >= self.newest_version - view.max_staleness))
        )

    def window(self, record: Held, tick: int, window: Window, keys: tuple[str, ...]) -> dict[str, Array]:
        """What is around a step, as a batch of one has it."""
        episode, end = record.episode, record.num_drawable
        rewards, discounts = [0.0] * end, [1.0] * end
        if record.labels is not None:
            rewards, discounts = record.labels.rewards.tolist(), record.labels.discounts.tolist()
        human = episode.column("source") == Source.HUMAN
        reward, weight, after = 0.0, 1.0, min(tick + window.num_steps, end)
        if window.stop_at_takeover:
            after = next((k for k in range(tick + 1, after) if human[k] and not human[k - 1]), after)
        for k in range(tick, after):
            reward += weight * rewards[k]
            weight *= window.gamma * discounts[k]
        ahead = [min(tick + k, end - 1) for k in range(window.horizon)]
        found = {
            "reward": np.float32(reward),
            "discount": np.float32(weight),
            "action": episode.column("executed")[ahead],
            "human": human[ahead],
            "policy_version": episode.column("policy_version")[ahead],
        }
        if window.horizon > 1:
            found["action/mask"] = np.array([tick + k < end for k in range(window.horizon)])
        else:
            found |= {name: found[name][0] for name in ("action", "human", "policy_version")}
        for key in keys:
            values = [*episode.column(f"observation/{key}"), episode.last_observation.values[key]]
            for side, now in (("observation", tick), ("next", after)):
                depth = window.history.get(key)
                if depth is None:
                    found[f"{side}/{key}"] = values[now]
                    continue
                ticks = [now - depth + 1 + k for k in range(depth)]
                found[f"{side}/{key}"] = np.stack([values[max(0, t)] for t in ticks])
                found[f"{side}/{key}/mask"] = np.array([t >= 0 for t in ticks])
        return found


class EachOnce:
    """A generator by which a batch as large as a view holds each of its steps, in order."""

    def integers(self, high: int, size: int) -> Array:
        return np.arange(size) % high


def assert_matches_model(
    replay: ReplayReader, model: Model, *, seed: int = 0, views: Sequence[View] = tuple(VIEWS)
) -> None:
    """Each step of each view, with all that is around it; and what a real generator draws."""
    for number, view in enumerate(views):
        expected = model.view(view)
        assert replay.size(view) == len(expected), view
        if expected:
            _same_batch(replay, model, view, expected, WINDOWS[(number + seed) % len(WINDOWS)], EachOnce())
    everything = model.view(View())
    if everything:
        drawn = [everything[i] for i in np.random.default_rng(seed).integers(len(everything), size=16)]
        _same_batch(replay, model, View(), drawn, WINDOWS[0], np.random.default_rng(seed))


def _same_batch(
    replay: ReplayReader, model: Model, view: View, expected: list[tuple[Held, int]], window: Window, rng: Any
) -> None:
    rows = [model.window(record, tick, window, KEYS) for record, tick in expected]
    wanted = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    into = {name: np.full_like(values, 77) for name, values in wanted.items()}
    replay.sample(into, view=view, rng=rng, window=window)
    for name, values in wanted.items():
        np.testing.assert_array_equal(into[name], values, err_msg=f"{name} of {view}")
