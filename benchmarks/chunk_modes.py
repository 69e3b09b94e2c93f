"""Modes of chunked acting under inference delay: success, episode length, and jumps where chunks meet.

One flow policy per recipe is trained first; every mode then acts on the same resets, in simulated time. With two cores the
whole benchmark takes about an hour.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

from benchmarks._chunk_modes import MODES, Trial, paired_difference, run_trials, trained_flow
from dovetail.bench.rows import Row, at_least, at_most

__all__ = ["bench"]

RECIPES = ("peg-insertion-rtc", "pick-place-rtc")
DELAYS = (0, 2, 4, 8, 12)  # ticks of 20 ms
_SEED = 1000  # of the resets; recipes were tuned on seed 0


def bench(*, quick: bool) -> Iterator[Row]:
    num_resets, delays = (20, (0, 8)) if quick else (200, DELAYS)
    cache = Path(tempfile.gettempdir()) / "dovetail-bench-flows"
    cache.mkdir(exist_ok=True)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for recipe in RECIPES:
            snapshot = trained_flow(recipe, cache=cache)
            jobs: dict[tuple[str, int], Future[list[Trial]]] = {}
            for mode in MODES:
                for delay in delays:
                    jobs[mode, delay] = pool.submit(
                        run_trials, recipe, mode, delay, snapshot, num_resets=num_resets, seed=_SEED
                    )
            found = {}
            for (mode, delay), job in jobs.items():
                found[mode, delay] = job.result()
                yield from _mode_rows(recipe, mode, delay, found[mode, delay])
            raw = {f"{mode}, {delay}": [t.success for t in trials] for (mode, delay), trials in found.items()}
            (cache / f"{recipe}.json").write_text(json.dumps(raw))
            yield from _comparison_rows(recipe, found)


def _mode_rows(recipe: str, mode: str, delay: int, trials: Sequence[Trial]) -> Iterator[Row]:
    label = f"{recipe}, {mode}, delay {delay}"
    yield Row(name=f"{label}: success", value=100 * mean(t.success for t in trials), unit="%")
    yield Row(name=f"{label}: episode", value=mean(t.seconds for t in trials), unit="s")
    yield Row(name=f"{label}: largest jump", value=100 * mean(t.largest_jump for t in trials), unit="% of range")
    yield Row(name=f"{label}: mean jump", value=100 * mean(t.mean_jump for t in trials), unit="% of range")
    yield Row(name=f"{label}: mean jerk", value=100 * mean(t.mean_jerk for t in trials), unit="% of range")


def _comparison_rows(recipe: str, found: dict[tuple[str, int], list[Trial]]) -> Iterator[Row]:
    for mode in MODES:
        change = paired_difference(found[mode, 8], found[mode, 0])
        name = f"{recipe}, {mode}: success at delay 8 minus at 0 [{change.low:.1f}, {change.high:.1f}]"
        if mode == "rtc":
            yield at_least(name, change.difference, "points", -5)
        else:
            yield Row(name=name, value=change.difference, unit="points")
    for mode in ("naive", "rtc, identity"):
        change = paired_difference(found["rtc", 8], found[mode, 8])
        name = f"{recipe}: success of rtc minus {mode}, delay 8 [{change.low:.1f}, {change.high:.1f}]"
        yield Row(name=name, value=change.difference, unit="points")

    def seconds(mode: str) -> float:
        return mean(trial.seconds for trial in found[mode, 8])

    shorter = 100 * (1 - seconds("rtc") / seconds("sequential"))
    yield at_least(f"{recipe}: rtc's episodes shorter, delay 8", shorter, "%", 20, baseline="sequential")
    for which in ("largest", "mean"):
        rtc, naive = (mean(getattr(t, f"{which}_jump") for t in found[mode, 8]) for mode in ("rtc", "naive"))
        jump = rtc / naive
        yield at_most(f"{recipe}: rtc's {which} jump, delay 8", jump, "x", 0.5, baseline="naive", ratio=jump)
