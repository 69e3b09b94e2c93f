"""Reader of a replay. Any number of readers may run in any process; sampling takes no lock and makes no remote call.

The writer may overwrite rows while a reader gathers them. It moves the ring's tail before it overwrites anything, so the
reader checks the tail after gathering and draws again in the rare case of a conflict.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.policy_rate import begun_steps
from dovetail.core.prompts import MAX_PROMPT_BYTES
from dovetail.core.types import Array, TicksPerStep, View, Window
from dovetail.replay._layout import STEP_COLUMNS, Layout
from dovetail.replay._prompts import PromptFiles
from dovetail.replay._reader_files import CopyThreads, ReaderFiles
from dovetail.replay._rings import fence
from dovetail.replay._snapshot import Snapshot, check_view

__all__ = ["MappedReplayReader"]

_TIMEOUT_S = 10.0
_MAX_SNAPSHOT_TRIES = 20  # then the previous snapshot is used
_SINGLE_STEP = Window()


class MappedReplayReader:
    """Implements ReplayReader. Any thread may call it. There are no files before the first episode."""

    def __init__(self, folder: Path, *, num_threads: int = 2) -> None:
        self._folder = folder
        self._prompts = PromptFiles(folder)
        self._copy_threads = CopyThreads(num_threads)
        self._state: tuple[ReaderFiles, Snapshot] | None = None  # replaced together

    def size(self, view: View) -> int:
        check_view(view)
        state = self._refresh()
        return state[1].steps_of(view).total if state else 0

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window = _SINGLE_STEP
    ) -> None:
        check_view(view)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            state = self._refresh()
            steps = state[1].steps_of(view) if state else None
            if state is None or steps is None or not len(steps.rows):
                raise UsageError(f"replay view '{view.part}' is empty; there is nothing to sample")
            files, snapshot = state
            batch = _check(into, window, files.layout)
            if not batch:
                return
            relabels = files.counters["relabels"]
            fence()
            if relabels % 2 == 0:
                rows = steps.draw(rng, batch)
                oldest = files.gather(
                    into, rows, window, head_row=snapshot.head_row, copy_threads=self._copy_threads
                )
                prompt_numbers = files.rings["prompt"].get(rows) if "prompt" in into else None
                _read_outcomes(into, snapshot, rows, ticks_per_step=window.ticks_per_step)
                fence()
                if files.counters["relabels"] == relabels and files.none_overwritten(oldest):
                    if prompt_numbers is not None:
                        self._prompts.read(snapshot.prompts(rows), prompt_numbers, into["prompt"])
                    return
            if time.monotonic() > deadline_s:
                raise StoreError(
                    f"the replay in {self._folder} changes faster than a batch can be read, or its writer was killed. "
                    "Raise replay.capacity_gb or restart the writer."
                )
            time.sleep(1e-4)  # not 0: a real-time process would keep the writer from running

    def _refresh(self) -> tuple[ReaderFiles, Snapshot] | None:
        """Return the files and their newest snapshot, or the previous one during a publication; None without files."""
        state = self._state
        files = state[0] if state is not None and state[0].are_current() else None
        if state is not None and files is not None:
            version = files.counters["version"]
            if version == state[1].version or version % 2:
                return state
        deadline_s = time.monotonic() + _TIMEOUT_S
        for number in itertools.count():
            if files is None or not files.are_current():
                state, files = None, ReaderFiles.open(self._folder, deadline_s=deadline_s)
            if files is None:
                self._state = None
                return None
            snapshot = Snapshot.read(files.counters, files.rings)
            if snapshot is not None:
                files.check_complete()
                self._state = (files, snapshot)
                return self._state
            if state is not None and number >= _MAX_SNAPSHOT_TRIES:
                return state
            if time.monotonic() > deadline_s:
                raise StoreError(
                    f"the writer of the replay in {self._folder} stopped during a publication. Restart the writer."
                )
            time.sleep(1e-4)  # not 0: a real-time process would keep the writer from running
        raise AssertionError("unreachable")


def _read_outcomes(
    into: Mapping[str, Array], snapshot: Snapshot, rows: Array, *, ticks_per_step: TicksPerStep
) -> None:
    if "steps_to_end" in into or "success" in into:
        num_ticks, success = snapshot.outcomes(rows)
        for name, values in (("steps_to_end", begun_steps(num_ticks, ticks_per_step)), ("success", success)):
            if name in into:
                into[name][:] = values


def _check(into: Mapping[str, Array], window: Window, layout: Layout) -> int:
    """Check names, shapes and dtypes of the caller's arrays; returns the batch size."""
    counts: dict[str, TicksPerStep] = {"num_steps": window.num_steps, "horizon": window.horizon}
    counts |= {"ticks_per_step": window.ticks_per_step, **window.history}
    for name, count in counts.items():
        if count < 1:
            raise UsageError(f"{name} of a replay window is {count}; it must be at least 1")
    sizes = {len(out) for out in into.values()}
    if len(sizes) != 1:
        raise UsageError(f"arrays to sample into must have the same length, got lengths {sorted(sizes)}")
    for name, out in into.items():
        shape, dtype = _expected(name, window, layout)
        if out.dtype != dtype or out.shape[1:] != shape:
            raise UsageError(
                f"a row of '{name}' in the replay is {dtype}{list(shape)}, "
                f"but a row of the array to sample into is {out.dtype}{list(out.shape[1:])}"
            )
    return int(sizes.pop())


def _expected(name: str, window: Window, layout: Layout) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    ahead = (window.horizon,) if window.horizon > 1 else ()
    if name == "action/mask" and ahead:
        return ahead, np.dtype(bool)
    if name in STEP_COLUMNS and name in layout.columns:
        spec = layout.columns[name]
        return (*ahead, *spec.shape), np.dtype(spec.dtype)
    if name in ("reward", "discount"):
        return (), np.dtype(np.float32)
    if name == "steps_to_end":
        return (), np.dtype(np.int64)
    if name == "success":
        return (), np.dtype(bool)
    if name == "prompt":
        return (MAX_PROMPT_BYTES,), np.dtype(np.uint8)
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
        f"the replay does not store '{name}'."
        + did_you_mean(name, [*held, "action", "reward", "discount", "human"])
    )
