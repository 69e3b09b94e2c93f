"""A reader's copy of the tables, and the steps that a view selects from it.

A view selects spans: contiguous steps of one episode with the same source and policy version. There are far fewer spans
than steps, so a view needs little memory, and drawing a step needs one binary search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.types import Array, View
from dovetail.replay._rings import Counters, Ring, fence

__all__ = ["PARTS", "Snapshot", "ViewSteps", "check_view"]

_MAX_CACHED_VIEWS = 64  # a sliding window of versions creates new views without end

# Masks of the spans in each part. An operator's step in an online episode is both online and prior data, as in RLPD.
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
        raise UsageError(
            f"half_life_steps of a replay view is {view.half_life_steps}; it must be at least 1 and finite, or None"
        )
    for name, value in (("min_source_run", view.min_source_run), ("min_episode_steps", view.min_episode_steps)):
        if value < 1:
            raise UsageError(f"{name} of a replay view is {value}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class ViewSteps:
    """The steps of a view as runs of rows, with their sampling weights."""

    rows: Array  # [R] first rows
    num_steps: Array  # [R]
    ends: Array  # [R] cumulative number of steps, or cumulative weights if `decay` is set
    decay: float | None = None  # a step's weight is exp(-decay) times the weight of the step after it

    @property
    def total(self) -> int:
        return int(self.num_steps.sum())

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draw rows [B] with replacement. Uniform draws do not depend on how steps are split into runs."""
        rows: Array
        if self.decay is None:
            drawn = rng.integers(self.ends[-1], size=count)
            run = np.searchsorted(self.ends, drawn, side="right")
            rows = self.rows[run] + drawn - (self.ends[run] - self.num_steps[run])
        else:
            run = np.searchsorted(self.ends, rng.random(count) * self.ends[-1], side="right")
            run = np.minimum(run, len(self.rows) - 1)  # rounding may give exactly the last end
            num_steps = self.num_steps[run]
            age = np.log1p(rng.random(count) * np.expm1(-self.decay * num_steps)) / -self.decay  # within the run
            rows = self.rows[run] + num_steps - 1 - np.minimum(age.astype(np.int64), num_steps - 1)
        return rows


@dataclass(slots=True)
class Snapshot:
    """Copy of the tables at one `version` of the counters."""

    version: int
    head_row: int
    newest_version: int
    episodes: Array
    spans: Array
    owners: Array  # for each span, the index of its episode in `episodes`
    _view_steps: dict[View, ViewSteps] = field(default_factory=dict)
    _by_row: tuple[Array, Array] | None = None  # sorted first rows of the spans, and the indices of the spans
    _steps_to_end: Array | None = None  # for each span, the steps from its first to the end of the episode

    @staticmethod
    def read(counters: Counters, rings: Mapping[str, Ring]) -> Snapshot | None:
        """Copy the tables; None if they changed meanwhile. Raises StoreError if they are damaged."""
        version = counters["version"]
        fence()
        if version % 2:
            return None
        for ring in rings.values():  # files grow before the counters refer to their new part
            ring.remap()
        first, end = counters["tail_episode"], counters["head_episode"]
        first_span, end_span = counters["tail_span"], counters["head_span"]
        head_row, newest = counters["head_row"], counters["newest_version"]
        fence()
        if counters["version"] != version:
            return None
        if not (
            0 <= end - first <= rings["episodes"].num_items
            and 0 <= end_span - first_span <= rings["spans"].num_items
        ):
            raise StoreError("the counters of the replay are damaged. Restart its writer.")
        episodes = rings["episodes"].get(np.arange(first, end))
        spans = rings["spans"].get(np.arange(first_span, end_span))
        fence()
        if counters["version"] != version:
            return None
        spans = spans[spans["episode"] >= first]
        owners = spans["episode"] - first
        inside = (spans["row"] >= 0) & (spans["num_steps"] <= head_row - spans["row"]) & (spans["num_steps"] > 0)
        if not (inside & (owners < len(episodes))).all():
            raise StoreError("the tables of the replay are damaged. Restart its writer.")
        live = ~episodes["dropped"][owners]
        return Snapshot(version, head_row, newest, episodes, spans[live], owners[live])

    def steps_of(self, view: View) -> ViewSteps:
        steps = self._view_steps.get(view)
        if steps is None:
            steps = self._select(view)
            if len(self._view_steps) >= _MAX_CACHED_VIEWS:
                self._view_steps.clear()
            self._view_steps[view] = steps
        return steps

    def prompts(self, rows: Array) -> Array:
        """Return the prompt record of each row's episode, uint8 [B, 256]: see `PromptFiles`."""
        texts = self.episodes["prompt"][self.owners[self._spans_of(rows)]]
        return texts.view(np.uint8).reshape(len(rows), -1)

    def outcomes(self, rows: Array) -> tuple[Array, Array]:
        """Return the number of steps from each row to the end of its episode, and whether the episode is a success, [B]."""
        if self._steps_to_end is None:
            self._steps_to_end = self._count_to_end(np.zeros(len(self.owners), bool))
        spans = self._spans_of(rows)
        steps = self._steps_to_end[spans] - (rows - self.spans["row"][spans])
        return steps, self.episodes["success"][self.owners[spans]]

    def _spans_of(self, rows: Array) -> Array:
        """Return the index of each row's span."""
        if self._by_row is None:
            order = np.argsort(self.spans["row"])
            self._by_row = self.spans["row"][order], order
        firsts, order = self._by_row
        spans: Array = order[np.searchsorted(firsts, rows, side="right") - 1]
        return spans

    def _count_to_end(self, kinds: Array) -> Array:
        """For each span, count the steps from its first on until the kind [S] changes or the episode ends [S].

        Spans of an episode are in time order, but spans of other episodes may lie between them.
        """
        order = np.argsort(self.owners, kind="stable")
        owners, kinds, num_steps = (v[order] for v in (self.owners, kinds, self.spans["num_steps"]))
        changes = (owners[1:] != owners[:-1]) | (kinds[1:] != kinds[:-1])
        run = np.concatenate(([0], np.cumsum(changes)))[: len(order)]
        before = np.cumsum(num_steps) - num_steps
        run_ends = np.bincount(run, num_steps).cumsum().astype(np.int64) if len(run) else run
        runs = np.empty_like(num_steps)
        runs[order] = run_ends[run] - before
        return runs

    def _select(self, view: View) -> ViewSteps:
        check_view(view)
        spans, episodes, owners = self.spans, self.episodes, self.owners
        mask = PARTS[view.part](episodes["demo"][owners], spans["human"], episodes["success"][owners])
        for name, value in (("robot", view.robot), ("task", view.task)):
            if value is not None:
                same = episodes[name] == np.array(value.encode(), episodes.dtype[name])
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
        num_starts = spans["num_steps"]
        if (
            view.min_source_run > 1
        ):  # only steps that enough steps of the same source follow, within the span or after it
            num_starts = np.clip(self._count_to_end(spans["human"]) - (view.min_source_run - 1), 0, num_starts)
            mask = mask & (num_starts > 0)
        rows, num_steps = spans["row"][mask], num_starts[mask]
        if view.half_life_steps is None or not len(rows):
            return ViewSteps(rows, num_steps, np.cumsum(num_steps))
        # Ages are relative to the newest step of the view. Relative to the newest step of the replay, all weights of an
        # old view would underflow.
        decay = float(np.log(2.0) / view.half_life_steps)
        newest = spans["born"][mask] + num_steps - 1
        weights = np.exp(-decay * (newest.max() - newest)) * (np.expm1(-decay * num_steps) / np.expm1(-decay))
        return ViewSteps(rows, num_steps, np.cumsum(weights), decay)
