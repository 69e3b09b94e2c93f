"""What each part of the demo contributes: the same demonstrations, operator, seeds and online steps with parts switched off.

Cloning alone; corrections of the operator cloned, without RL; RL without an operator; both, which is the recipe. Each way
changes one setting. All begin with the same cloned policy and are evaluated on the same resets.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks._cached_runs import CachedRuns
from dovetail.bench.rows import Row
from dovetail.core.errors import FailureError
from dovetail.core.figures import Performance
from dovetail.core.stats import Rate

__all__ = ["SEEDS", "WAYS", "bench", "rows"]

RECIPE = "peg-insertion"
SEEDS = (21, 22, 23)  # no other benchmark and no trial used them
CLONING = "cloning only"
NEVER = 10**9
WAYS: Mapping[str, tuple[str, ...]] = {
    "corrections cloned": (f"algorithm.actor_q_from_update={NEVER}",),
    "RL without a person": ("operator={type: none}",),
    "RL with a person": (),
}
SETTINGS = ("run.untrained_episodes=0", "run.video_episodes=0")
TINY = (
    "run.demos=5",
    "run.env_steps=200",
    "run.eval_episodes=5",
    "learner.bc_updates=200",
    "learner.warmup_updates=100",
    "algorithm.actor_q_from_update=100",
)


def bench(*, quick: bool) -> Iterator[Row]:
    runs = CachedRuns()
    found: dict[str, list[Performance]] = {name: [] for name in (CLONING, *WAYS)}
    for seed in SEEDS[:1] if quick else SEEDS:
        reports = {}
        for way, changes in WAYS.items():
            settings = (f"run.seed={seed}", *SETTINGS, *(TINY if quick else ()), *changes)
            name = f"ablation-{way.replace(' ', '-')}-{seed}" + ("-tiny" if quick else "")
            reports[way] = runs.report(name, RECIPE, settings)
            yield from _help_rows(f"{way}, seed {seed}", reports[way])
        for way, figures in _figures(reports, seed=seed).items():
            found[way].append(figures)
            yield from rows(f"{way}, seed {seed}", [figures])
    if not quick:
        for way, several in found.items():
            yield from rows(f"{way}, {len(SEEDS)} seeds", several)


def rows(name: str, figures: Sequence[Performance]) -> Iterator[Row]:
    """Success with its 95 % interval over all seeds, and the cycle time: the median of the seeds' medians."""
    rates = [one.success for one in figures if one.success is not None]
    pooled = Rate(successes=sum(r.successes for r in rates), episodes=sum(r.episodes for r in rates))
    samples = tuple(rate.rate for rate in rates) if len(rates) > 1 else ()
    yield Row(
        name=f"{name}: success", value=pooled.rate, unit="", interval=(pooled.low, pooled.high), samples=samples
    )
    cycles = [one.cycle_time_s for one in figures if one.cycle_time_s is not None]
    if cycles:
        medians = [cycle.median for cycle in cycles]
        quartiles = (statistics.median(c.low for c in cycles), statistics.median(c.high for c in cycles))
        yield Row(
            name=f"{name}: cycle time, median and quartiles",
            value=statistics.median(medians),
            unit="s",
            interval=quartiles,
            samples=tuple(medians) if len(medians) > 1 else (),
        )


def _figures(reports: Mapping[str, Mapping[str, Any]], *, seed: int) -> dict[str, Performance]:
    """The figures of each way. Cloning is a part of every run, and must be the same in all."""
    cloned = [Performance.from_json(report["evaluations"]["cloning"]) for report in reports.values()]
    if any(one != cloned[0] for one in cloned):
        raise FailureError(
            f"the runs of seed {seed} did not begin with the same cloned policy: they cannot be compared"
        )
    after = {way: Performance.from_json(report["evaluations"]["after"]) for way, report in reports.items()}
    return {CLONING: cloned[0], **after}


def _help_rows(name: str, report: Mapping[str, Any]) -> Iterator[Row]:
    yield Row(name=f"{name}: online steps", value=report["env_steps"], unit="")
    yield Row(name=f"{name}: interventions", value=report["interventions"], unit="")
    yield Row(name=f"{name}: wall time", value=report["wall_s"], unit="s")
