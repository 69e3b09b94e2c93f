"""Residual learning on a frozen flow: peg with a hidden offset of 2 mm, and pick and place, with and without a person.

Next to it, with the same demonstrations and operator: HG-DAgger, RLPD and DSRL. 600 s of robot time each. One pooled test
says whether a residual policy was clearly worse than its base on any evaluation. `benchmarks._residual_runs` plays one run.
The plot is runs/residual/residual.png.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from benchmarks._residual_plot import draw
from benchmarks._residual_runs import FOLDER, METHODS, RESIDUAL, TASKS, Result, result_of
from dovetail.bench.rows import Row, at_least
from dovetail.core.stats import Rate

__all__ = ["bench", "fisher_p", "pooled_p", "rows"]

SEEDS = (11, 12, 13)  # no tuning used them
AIM = 0.95
LEVEL = 0.05


def bench(*, quick: bool) -> Iterator[Row]:
    found = []
    for task in TASKS:
        for method in RESIDUAL[:1] if quick else METHODS:
            several = [result_of(task, seed, method, tiny=quick) for seed in (SEEDS[:1] if quick else SEEDS)]
            found += several
            yield from rows(several)
    draw(found, FOLDER / "residual.png")
    p = pooled_p([one for one in found if one.method in RESIDUAL])
    yield at_least("no residual evaluation is clearly worse than its base: p of the pooled test", p, "", LEVEL)


def rows(several: Sequence[Result]) -> Iterator[Row]:
    """Start and end of each seed, and of all seeds together."""
    name = f"{several[0].task}, {several[0].method}"
    for one in several:
        yield _row(f"{name}, seed {one.seed}: start", [one.start.rate])
        for evaluated in one.later[:-1]:
            yield _row(f"{name}, seed {one.seed}: after {evaluated.robot_s:.0f} s", [evaluated.rate])
        yield _row(f"{name}, seed {one.seed}: end", [one.later[-1].rate], aim=AIM)
        yield Row(name=f"{name}, seed {one.seed}: robot time", value=one.later[-1].robot_s, unit="s")
        yield Row(name=f"{name}, seed {one.seed}: share of human steps", value=one.human_share, unit="")
    yield _row(f"{name}, {len(several)} seeds: start", [one.start.rate for one in several])
    yield _row(f"{name}, {len(several)} seeds: end", [one.later[-1].rate for one in several], aim=AIM)


def _row(name: str, rates: Sequence[Rate], *, aim: float | None = None) -> Row:
    pooled = Rate(successes=sum(r.successes for r in rates), episodes=sum(r.episodes for r in rates))
    return Row(
        name=name,
        value=pooled.rate,
        unit="",
        interval=(pooled.low, pooled.high),
        samples=tuple(rate.rate for rate in rates) if len(rates) > 1 else (),
        aim=aim,
        met=None if aim is None else pooled.rate >= aim,
    )


def pooled_p(results: Sequence[Result]) -> float:
    """The p-value of "no evaluation was worse than its base": the smallest of all, times their number (Bonferroni).

    It is right whatever the dependence: evaluations of one run share their base."""
    each = [fisher_p(one.rate, of=result.start.rate) for result in results for one in result.later]
    return min(1.0, len(each) * min(each))


def fisher_p(rate: Rate, *, of: Rate) -> float:
    """Fisher's exact test: the probability of at most as many successes, if both had the same success rate."""
    num, successes = rate.episodes + of.episodes, rate.successes + of.successes
    least = max(0, successes - of.episodes)
    ways = sum(
        math.comb(successes, k) * math.comb(num - successes, rate.episodes - k)
        for k in range(least, rate.successes + 1)
    )
    return ways / math.comb(num, rate.episodes)
