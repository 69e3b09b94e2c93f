"""What a reader knows of a replay at one moment, and the views over it.

A view chooses among spans: runs of steps of one episode that have one source and one policy version. There are few of
them however many steps there are, so a view costs no memory to speak of, and a draw costs one search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.types import Array, View
from dovetail.replay._files import Counters, Ring, fence

__all__ = ["PARTS", "Choice", "Snapshot", "check_view"]

_NUM_CHOICES = 64  # kept at a time: a window of versions that slides makes new views for ever

# Which spans a part holds, by three masks. A corrected step of an online episode is both online and prior data, as RLPD
# wants it.
PARTS: Mapping[str, Callable[[Array, Array, Array], Array]] = {
    "all": lambda demo, human, success: np.ones_like(demo),
    "demo": lambda demo, human, success: demo,
    "online": lambda demo, human, success: ~demo,
    "human": lambda demo, human, success: human & ~demo,
    "policy": lambda demo, human, success: ~human & ~demo,
    "prior": lambda demo, human, success: human | demo,
    "accepted": lambda demo, human, success: success,
}


def check_view(view: View) -> None:
    if view.part not in PARTS:
        raise UsageError(f"there is no replay view '{view.part}'." + did_you_mean(view.part, PARTS))
    if view.half_life_steps is not None and not 1.0 <= view.half_life_steps < np.inf:
        raise UsageError(f"half_life_steps of a replay view is {view.half_life_steps}: give 1 or more, or None")
    for name in ("min_run", "min_episode_steps"):
        if getattr(view, name) < 1:
            raise UsageError(f"{name} of a replay view is {getattr(view, name)}: it counts from 1")


@dataclass(frozen=True, slots=True)
class Choice:
    """The steps of a view, as runs of rows and how likely each is."""

    rows: Array  # [R] first rows
    num_steps: Array  # [R]
    ends: Array  # [R] cumulative steps, or weights where older steps are drawn less often
    decay: float | None = None  # a step counts exp(-decay) times the one after it

    @property
    def total(self) -> int:
        return int(self.num_steps.sum())

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Rows [B], with replacement. Uniform draws do not depend on how steps are cut into runs."""
        rows: Array
        if self.decay is None:
            drawn = rng.integers(self.ends[-1], size=count)
            run = np.searchsorted(self.ends, drawn, side="right")
            rows = self.rows[run] + drawn - (self.ends[run] - self.num_steps[run])
        else:
            run = np.searchsorted(self.ends, rng.random(count) * self.ends[-1], side="right")
            run = np.minimum(run, len(self.rows) - 1)  # a product may be rounded up to the end itself
            num_steps = self.num_steps[run]
            age = np.log1p(rng.random(count) * np.expm1(-self.decay * num_steps)) / -self.decay  # within the run
            rows = self.rows[run] + num_steps - 1 - np.minimum(age.astype(np.int64), num_steps - 1)
        return rows


@dataclass(slots=True)
class Snapshot:
    """The tables as they were at `version` of the counters."""

    version: int
    head_row: int
    newest_version: int
    episodes: Array
    spans: Array
    owners: Array  # for each span, where its episode is among the episodes
    _choices: dict[View, Choice] = field(default_factory=dict)
    _by_row: tuple[Array, Array] | None = None  # first rows of the spans, in order, and whose they are

    @staticmethod
    def take(counters: Counters, rings: Mapping[str, Ring]) -> Snapshot | None:
        """A copy; none if the tables changed while it was made."""
        version = counters["version"]
        fence()
        if version % 2:
            return None
        for ring in rings.values():  # files grow before anything in their new part is counted
            ring.look()
        first = counters["tail_episode"]
        head_row, newest = counters["head_row"], counters["newest_version"]
        episodes = rings["episodes"].get(np.arange(first, counters["head_episode"]))
        spans = rings["spans"].get(np.arange(counters["tail_span"], counters["head_span"]))
        fence()
        if counters["version"] != version:
            return None
        spans = spans[spans["episode"] >= first]
        owners = spans["episode"] - first
        live = ~episodes["dropped"][owners]
        return Snapshot(version, head_row, newest, episodes, spans[live], owners[live])

    def choose(self, view: View) -> Choice:
        choice = self._choices.get(view)
        if choice is None:
            choice = self._make(view)
            if len(self._choices) >= _NUM_CHOICES:
                self._choices.clear()
            self._choices[view] = choice
        return choice

    def prompts(self, rows: Array) -> Array:
        """What the task of each row's episode was in words, uint8 [B, 256]."""
        if self._by_row is None:
            order = np.argsort(self.spans["row"])
            self._by_row = self.spans["row"][order], self.owners[order]
        firsts, owners = self._by_row
        texts = self.episodes["prompt"][owners[np.searchsorted(firsts, rows, side="right") - 1]]
        return texts.view(np.uint8).reshape(len(rows), -1)

    def _runs_from(self) -> Array:
        """From the first step of each span on, how many steps of its episode the same hand took [S].

        Spans of an episode are in its order, but those of others may lie between them.
        """
        order = np.argsort(self.owners, kind="stable")
        owners, human, num_steps = (v[order] for v in (self.owners, self.spans["human"], self.spans["num_steps"]))
        changes = (owners[1:] != owners[:-1]) | (human[1:] != human[:-1])
        run = np.concatenate(([0], np.cumsum(changes)))[: len(order)]
        before = np.cumsum(num_steps) - num_steps
        run_ends = np.bincount(run, num_steps).cumsum().astype(np.int64) if len(run) else run
        runs = np.empty_like(num_steps)
        runs[order] = run_ends[run] - before
        return runs

    def _make(self, view: View) -> Choice:
        check_view(view)
        spans, episodes, owners = self.spans, self.episodes, self.owners
        mask = PARTS[view.part](episodes["demo"][owners], spans["human"], episodes["success"][owners])
        for name in ("robot", "task"):
            wanted = getattr(view, name)
            if wanted is not None:
                same = episodes[name] == np.array(wanted.encode(), episodes.dtype[name])
                mask = mask & same[owners]
        if view.min_episode_steps > 1:
            mask = mask & (episodes["num_rows"] - episodes["finished"] >= view.min_episode_steps)[owners]
        if view.return_above is not None:
            mask = mask & ((episodes["labels"] != b"") & (episodes["return"] > view.return_above))[owners]
        windows = [view.versions] if view.versions is not None else []
        if view.max_staleness is not None:
            windows.append((self.newest_version - view.max_staleness, self.newest_version))
        for first, last in windows:
            mask = mask & ~spans["human"] & (spans["version"] >= first) & (spans["version"] <= last)
        beginnings = spans["num_steps"]
        if view.min_run > 1:  # of each span, the steps that enough of the same hand follow, in it or beyond it
            beginnings = np.clip(self._runs_from() - (view.min_run - 1), 0, beginnings)
            mask = mask & (beginnings > 0)
        rows, num_steps = spans["row"][mask], beginnings[mask]
        if view.half_life_steps is None or not len(rows):
            return Choice(rows, num_steps, np.cumsum(num_steps))
        # Ages count from the newest step of the view, so that what is drawn least often is old within it: counted from
        # the newest of all, the weights of an old view would all be too small for a float.
        decay = float(np.log(2.0) / view.half_life_steps)
        newest = spans["born"][mask] + num_steps - 1
        weights = np.exp(-decay * (newest.max() - newest)) * (np.expm1(-decay * num_steps) / np.expm1(-decay))
        return Choice(rows, num_steps, np.cumsum(weights), decay)
