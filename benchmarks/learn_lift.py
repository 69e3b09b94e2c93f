"""How far online learning improves a policy cloned from too few demonstrations: HG-DAgger and Hi-ORS with a scripted
operator, DSRL without. The shipped recipes, three seeds each. No run takes 45 minutes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from benchmarks._cached_runs import CachedRuns
from dovetail.bench.rows import Row, at_least, at_most
from dovetail.core.stats import Rate

__all__ = ["AIMS", "MOST_EPISODES", "SEEDS", "bench", "pooled"]

AIMS: dict[str, float | None] = {
    "pick-place-hg-dagger": 0.97,
    "pick-place-hi-ors": 0.97,
    "peg-insertion-dsrl": None,  # must be significantly better than the policy that it steers
    "table-cleanup-hg-dagger": 0.90,
    "table-cleanup-hi-ors": 0.90,
}
MOST_EPISODES = 199
SEEDS = (0, 1, 2)
TINY = (
    "run.demos=2",
    "run.env_steps=100",
    "run.eval_episodes=2",
    "run.video_episodes=0",
    "learner.bc_updates=50",
    "learner.warmup_updates=50",
)


def bench(*, quick: bool) -> Iterator[Row]:
    runs = CachedRuns()
    for recipe, aim in list(AIMS.items())[: 1 if quick else None]:
        reports = []
        for seed in SEEDS[: 1 if quick else None]:
            changes = (f"run.seed={seed}", "run.untrained_episodes=0", *(TINY if quick else ()))
            name = f"{recipe}-{seed}" + ("-tiny" if quick else "")
            reports.append(runs.report(name, recipe, changes))
            yield from _rows(f"{recipe}, seed {seed}", reports[-1])
        if not quick:  # a tiny budget only shows that it runs
            yield from _comparison_rows(f"{recipe}, {len(SEEDS)} seeds", reports, aim)


def _rows(name: str, report: dict[str, Any]) -> Iterator[Row]:
    before, after = report["success_before"]["rate"], report["success_after"]["rate"]
    yield Row(name=f"{name}: cloning", value=before, unit="success")
    ratio = after / before if before else None
    yield Row(name=f"{name}: after", value=after, unit="success", baseline="cloning", ratio=ratio)
    yield Row(name=f"{name}: online episodes", value=report["episodes"], unit="")
    yield Row(name=f"{name}: online learning", value=report["robot_minutes"], unit="robot min")
    yield Row(name=f"{name}: interventions", value=report["interventions"], unit="")
    yield Row(name=f"{name}: wall time", value=report["wall_s"], unit="s")


def _comparison_rows(name: str, reports: list[dict[str, Any]], aim: float | None) -> Iterator[Row]:
    """Over all seeds: success after, whether it is significantly better than before, and the most episodes used."""
    before, after = pooled(reports, "success_before"), pooled(reports, "success_after")
    if aim is not None:
        ratio = after.rate / before.rate if before.successes else None
        yield at_least(f"{name}: after", after.rate, "success", aim, baseline="cloning", ratio=ratio)
        yield at_most(f"{name}: online episodes", max(r["episodes"] for r in reports), "", MOST_EPISODES)
    yield at_least(f"{name}: lower end after, upper end of cloning", after.low, "success", before.high)


def pooled(reports: list[dict[str, Any]], when: Literal["untrained", "success_before", "success_after"]) -> Rate:
    """The success rate over all seeds."""
    rates = [report[when] for report in reports]
    return Rate(
        successes=sum(round(rate["rate"] * rate["episodes"]) for rate in rates),
        episodes=sum(rate["episodes"] for rate in rates),
    )
