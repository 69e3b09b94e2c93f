"""Acting in real time: lateness of the control loop, and whether new weights disturb it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import mean

from dovetail.bench._control_loops import control_process, plain_loop, weight_swaps
from dovetail.bench.rows import Row, at_least, at_most

__all__ = ["bench"]

_TURNS = 3


def bench(*, quick: bool) -> Iterator[Row]:
    yield from _lateness(seconds=6.0 if quick else 60.0)
    yield from _swaps(seconds=6.0 if quick else 30.0)


def _lateness(*, seconds: float) -> Iterator[Row]:
    """Our loop and a plain one in turns, both beside a learner that keeps one core busy."""
    with _learner():
        for control_hz in (50, 100, 500):
            ours, plain = [], []
            for _ in range(_TURNS):
                ours.append(control_process(control_hz, seconds=seconds / _TURNS))
                plain.append(plain_loop(control_hz, seconds=seconds / _TURNS))
            yield from _compare(control_hz, ours, plain)


def _compare(
    control_hz: int, ours: Sequence[dict[str, float]], plain: Sequence[dict[str, float]]
) -> Iterator[Row]:
    for name, turns in (("plain time.sleep", plain), ("dovetail", ours)):
        ticks = sum(turn["ticks"] for turn in turns)
        for figure, how in (("p50", mean), ("p99", mean), ("max", max)):
            value = 1e3 * how([turn[f"lateness_{figure}_ms"] for turn in turns])
            yield Row(name=f"{control_hz} Hz, {name}: lateness {figure}", value=value, unit="us")
        missed = 100 * sum(turn["missed"] for turn in turns) / ticks
        label = f"{control_hz} Hz, {name}: later than a period, of {ticks:.0f} ticks"
        if name == "dovetail" and control_hz == 50:
            yield at_most(label, missed, "%", 0.1)
        else:
            yield Row(name=label, value=missed, unit="%")
    theirs, mine = (mean(turn["lateness_p50_ms"] for turn in turns) for turns in (plain, ours))
    times = theirs / max(mine, 1e-6)
    yield at_least(
        f"{control_hz} Hz: p50 lateness, times lower", times, "x", 10, baseline="plain time.sleep", ratio=times
    )


@contextmanager
def _learner() -> Iterator[None]:
    """Run a learner in another process until the block ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-P", "-m", "dovetail.bench._busy_learner"], env=environment)
    try:
        time.sleep(5.0)  # until it has imported torch and updates
        if process.poll() is not None:
            raise RuntimeError(
                "the learner process has ended; run `python -m dovetail.bench._busy_learner` to see why"
            )
        yield
    finally:
        process.kill()
        process.wait()


def _swaps(*, seconds: float) -> Iterator[Row]:
    quiet, busy = weight_swaps(seconds=seconds)
    yield Row(
        name="100 MB of weights published every second: versions loaded", value=busy["weights_swaps"], unit=""
    )
    yield Row(
        name="reading, checking and loading a version beside the inference, at most",
        value=busy["weights_load_max_ms"],
        unit="ms",
    )
    yield Row(name="swap, at most", value=1e3 * busy["weights_swap_max_ms"], unit="us")
    for name, turn in (("without", quiet), ("with", busy)):
        label = f"50 Hz, {name} new weights"
        yield Row(name=f"{label}: inference p50", value=turn["inference_p50_ms"], unit="ms")
        yield Row(name=f"{label}: lateness p99", value=1e3 * turn["lateness_p99_ms"], unit="us")
        lost = turn["missed"] + turn.get("starved", 0.0)
        total = f"{label}: ticks missed or without an action, of {turn['ticks']:.0f}"
        yield at_most(total, lost, "", 0) if name == "with" else Row(name=total, value=lost, unit="")
