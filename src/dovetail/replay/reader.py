"""Readers of a replay: any number, in any process; no lock, and no call to anybody, on the way to a batch.

What a batch is made of may be overwritten while it is gathered: the writer says first what it will overwrite, so a
reader looks at the tail of the ring afterwards, and draws again in the rare case that it was overtaken.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.prompts import PROMPT_BYTES
from dovetail.core.types import Array, View, Window
from dovetail.replay._files import fence
from dovetail.replay._gather import Copiers, Files
from dovetail.replay._layout import Layout
from dovetail.replay._snapshot import Snapshot, check_view

__all__ = ["ReplayView"]

_PATIENCE_S = 10.0
_NUM_TRIES = 20  # for a snapshot newer than the last, which is as good
_PLAIN = Window()


class ReplayView:
    """See the ReplayReader contract. Before the first episode, and only then, there is nothing to open.

    Any thread may call it: files and the snapshot of their tables are replaced together.
    """

    def __init__(self, folder: Path, *, num_threads: int = 2) -> None:
        self._folder = folder
        self._copiers = Copiers(num_threads)
        self._state: tuple[Files, Snapshot] | None = None

    def size(self, view: View) -> int:
        check_view(view)
        state = self._refresh()
        return state[1].choose(view).total if state else 0

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window = _PLAIN
    ) -> None:
        check_view(view)
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            state = self._refresh()
            if state is None:
                raise UsageError(f"replay view '{view.part}' is empty: nothing to sample from")
            files, snapshot = state
            choice = snapshot.choose(view)
            if not len(choice.rows):
                raise UsageError(f"replay view '{view.part}' is empty: nothing to sample from")
            batch = _check(into, window, files.layout)
            if not batch:
                return
            relabels = files.counters["relabels"]
            fence()
            if relabels % 2 == 0:
                rows = choice.draw(rng, batch)
                oldest = files.gather(into, rows, window, head_row=snapshot.head_row, copiers=self._copiers)
                if "prompt" in into:
                    into["prompt"][:] = snapshot.prompts(rows)
                fence()
                if files.counters["relabels"] == relabels and files.are_intact(oldest):
                    return
            if time.monotonic() > deadline_s:
                raise StoreError(
                    f"the replay in {self._folder} changes faster than a batch can be read, or its writer was killed: "
                    "raise replay.capacity_gb, or start the writer again"
                )
            time.sleep(1e-4)  # a real pause: this may be a real-time process that would never let the writer on

    def _refresh(self) -> tuple[Files, Snapshot] | None:
        """The files and the newest snapshot of them, or the one before while a change is being published; None while
        there are no files yet."""
        state = self._state
        files = state[0] if state is not None and state[0].are_current() else None
        if state is not None and files is not None:
            version = files.counters["version"]
            if version == state[1].version or version % 2:
                return state
        deadline_s = time.monotonic() + _PATIENCE_S
        for number in itertools.count():
            if files is None or not files.are_current():
                state, files = None, Files.open(self._folder, deadline_s=deadline_s)
            if files is None:
                self._state = None
                return None
            snapshot = Snapshot.take(files.counters, files.rings)
            if snapshot is not None:
                self._state = (files, snapshot)
                return self._state
            if state is not None and number >= _NUM_TRIES:
                return state
            if time.monotonic() > deadline_s:
                raise StoreError(f"the replay in {self._folder} was left half published: start its writer again")
            time.sleep(1e-4)  # a real pause: this may be a real-time process that would never let the writer on
        raise AssertionError("a count has no end")


def _check(into: Mapping[str, Array], window: Window, layout: Layout) -> int:
    """The B of the caller's arrays, after checking that each can take what it is named for."""
    counts = {"num_steps": window.num_steps, "horizon": window.horizon, **window.history}
    for name, count in counts.items():
        if count < 1:
            raise UsageError(f"a window's {name} is {count}: it counts from 1")
    sizes = {len(out) for out in into.values()}
    if len(sizes) != 1:
        raise UsageError(f"arrays to sample into must all have one length, not {sorted(sizes)}")
    for name, out in into.items():
        shape, dtype = _expected(name, window, layout)
        if out.dtype != dtype or out.shape[1:] != shape:
            raise UsageError(
                f"'{name}' is {dtype}{list(shape)} a row in the replay, "
                f"the array to sample into has {out.dtype}{list(out.shape[1:])}"
            )
    return int(sizes.pop())


def _expected(name: str, window: Window, layout: Layout) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    ahead = (window.horizon,) if window.horizon > 1 else ()
    if name == "action/mask" and ahead:
        return ahead, np.dtype(bool)
    if name in ("action", "achieved", "human", "policy_version") and name in layout.columns:
        spec = layout.columns[name]
        return (*ahead, *spec.shape), np.dtype(spec.dtype)
    if name in ("reward", "discount"):
        return (), np.dtype(np.float32)
    if name == "prompt":
        return (PROMPT_BYTES,), np.dtype(np.uint8)
    side, _, key = name.partition("/")
    ticks = window.history.get(key)
    if side in ("observation", "next"):
        if key.endswith("/mask") and key[:-5] in window.history:
            return (window.history[key[:-5]],), np.dtype(bool)
        if key in layout.keys:
            spec = layout.robot.observation[key]
            return (*(() if ticks is None else (ticks,)), *spec.shape), np.dtype(spec.dtype)
    held = [f"{side}/{key}" for side in ("observation", "next") for key in layout.keys]
    raise UsageError(
        f"the replay does not hold '{name}'."
        + did_you_mean(name, [*held, "action", "reward", "discount", "human"])
    )
