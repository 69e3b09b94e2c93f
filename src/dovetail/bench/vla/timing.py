"""Time chunks, and make the rows of what was measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from torch import Tensor

from dovetail.bench.rows import Row
from dovetail.core.errors import one_line

__all__ = ["chunk_row", "difference", "or_skipped", "skipped", "times_ms"]


def times_ms(call: Callable[[], Tensor], num: int) -> list[float]:
    """The time of each call until its result is in the CPU's memory, after two calls that do not count."""
    times = []
    for _ in range(max(num, 3) + 2):
        start_s = time.perf_counter()
        call().cpu()
        times.append(1e3 * (time.perf_counter() - start_s))
    return times[2:]


def chunk_row(
    name: str,
    times_ms: list[float],
    *,
    aim: float | None = None,
    baseline: str | None = None,
    ratio: float | None = None,
) -> Row:
    median = statistics.median(times_ms)
    return Row(
        name=name,
        value=median,
        unit="ms/chunk",
        baseline=baseline,
        ratio=ratio,
        aim=aim,
        met=None if aim is None else median <= aim,
        samples=tuple(times_ms),
    )


def difference(name: str, ours: Tensor, theirs: Tensor) -> Row:
    relative = (ours.float() - theirs.float()).norm() / theirs.float().norm()
    return Row(name=f"{name}: difference of actions", value=100.0 * float(relative), unit="%")


def skipped(name: str, reason: object) -> Row:
    why = one_line(reason) if isinstance(reason, Exception) else str(reason)
    return Row(name=f"{name} skipped: {why[:200]}", value=0.0, unit="")


def or_skipped(name: str, part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    try:
        yield from part()
    except Exception as error:  # one part that fails, or lacks a package, must not lose the other rows
        yield skipped(name, error)
