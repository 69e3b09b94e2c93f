"""Robot time that learning needs, at 10 Hz: the shipped recipes, three seeds each, with scheduled evaluations.

Robot time to 95 % is the online time before the first of two successive evaluations that both reach 95 % of 100 episodes.
Interventions count, the 20 demonstrations of each recipe do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from benchmarks import _sb3_sac
from benchmarks._cached_runs import CachedRuns
from dovetail.bench.rows import Row, at_most
from dovetail.config.load import load

__all__ = ["CASES", "ENOUGH", "SEEDS", "Case", "Point", "bench", "evaluations", "seconds_to"]

ENOUGH = 0.95
SEEDS = (0, 1, 2)
HZ = 10.0


class Case(NamedTuple):
    recipe: str
    aim_s: int  # also the budget: not reached by then is missed
    changes: tuple[str, ...] = ()
    name: str = ""
    aimed: bool = True  # False: measured for comparison only

    @property
    def label(self) -> str:
        return self.name or self.recipe


# the charger's settings on the peg; they need half the time of the demo's recipe
QUICK = (
    "operator.watched_share=1.0",
    "operator.fade_out_minutes=8.0",
    "operator.stuck_after_steps=5",
    "algorithm.gamma=0.99",
    "algorithm.bc_weight=50.0",
    "algorithm.count_rewards_after_takeover=true",
    "algorithm.actor_every=1",
    "algorithm.actor_after=0",
    "algorithm.actor_q_from_update=3000",
    "learner.utd=2",
)
CASES = (
    Case("peg-insertion", 300, QUICK, "peg-insertion-quick"),
    Case("charger", 300),
    Case("push-cube", 300),
    Case("cap-tightening", 300),
    Case("pick-place", 600),
    Case("peg-insertion-offset", 1500),
    Case("peg-insertion", 300),  # as `make demo` runs it
    Case("peg-insertion-sac", 600, aimed=False),
    Case("peg-insertion-sac-flow", 200, aimed=False),
)
EVERY_S = 30  # at most twenty evaluations in a run
TINY = (
    "run.demos=5",
    "run.env_steps=200",
    "run.eval_every_steps=100",
    "run.eval_episodes=5",
    "learner.bc_updates=200",
    "learner.warmup_updates=100",
)


class Point(NamedTuple):
    """One evaluation of a run."""

    env_steps: int
    rate: float

    @property
    def seconds(self) -> float:
        return self.env_steps / HZ


def bench(*, quick: bool) -> Iterator[Row]:
    runs = CachedRuns()
    for case in CASES[:1] if quick else CASES:
        for seed in SEEDS[:1] if quick else SEEDS:
            yield from _rows(case, seed, runs, quick=quick)
    for reward, with_demos in _sb3_sac.VARIANTS[:1] if quick else _sb3_sac.VARIANTS:
        for seed in SEEDS[:1] if quick else SEEDS:
            yield from _peer_rows(reward, seed, runs, with_demos=with_demos, quick=quick)


def _rows(case: Case, seed: int, runs: CachedRuns, *, quick: bool) -> Iterator[Row]:
    every_s = max(EVERY_S, case.aim_s // 20)
    changes = [
        f"run.seed={seed}",
        "run.untrained_episodes=0",
        "run.video_episodes=0",
        "run.eval_episodes=100",
        f"run.env_steps={round(case.aim_s * HZ)}",
        f"run.eval_every_steps={round(every_s * HZ)}",
        *case.changes,
        *(TINY if quick else ()),
    ]
    run = f"minutes-{case.label}-{seed}" + ("-tiny" if quick else "")
    report = runs.report(run, case.recipe, changes)
    name = f"{case.label}, seed {seed}"
    yield Row(name=f"{name}: cloning", value=report["success_before"]["rate"], unit="success")
    aim_s = float(case.aim_s) if case.aimed and not quick else None
    yield _time_row(name, evaluations(report), aim_s)
    after = report["success_after"]
    yield Row(
        name=f"{name}: at the end [{after['low']:.2f}, {after['high']:.2f}]",
        value=after["rate"],
        unit="success",
        baseline="cloning",
        ratio=after["rate"] / report["success_before"]["rate"] if report["success_before"]["rate"] else None,
    )
    yield Row(name=f"{name}: steps by the operator", value=report["human_share"], unit="share")
    yield Row(name=f"{name}: wall time", value=report["wall_s"], unit="s")


def _time_row(name: str, points: Sequence[Point], aim_s: float | None) -> Row:
    seconds = seconds_to(points)
    if seconds is not None and aim_s is not None:
        return at_most(f"{name}: robot time to 95 %", seconds, "s", aim_s)
    if seconds is not None:
        return Row(name=f"{name}: robot time to 95 %", value=seconds, unit="s")
    online_s = points[-1].seconds if points else 0.0
    met = None if aim_s is None else False
    return Row(name=f"{name}: 95 % not reached within", value=online_s, unit="s", aim=aim_s, met=met)


def seconds_to(points: Sequence[Point], enough: float = ENOUGH) -> float | None:
    """Robot time at the first of two successive evaluations that both reach `enough`, None without such a pair."""
    for first, second in itertools.pairwise(points):
        if min(first.rate, second.rate) >= enough:
            return first.seconds
    return None


def evaluations(report: Mapping[str, Any]) -> list[Point]:
    """The scheduled evaluations of a run and the final one, in order."""
    points = {point["env_steps"]: Point(point["env_steps"], point["rate"]) for point in report["scheduled"]}
    points[report["env_steps"]] = Point(report["env_steps"], report["success_after"]["rate"])
    return [points[steps] for steps in sorted(points)]


def _peer_rows(
    reward: Literal["sparse", "dense"], seed: int, runs: CachedRuns, *, with_demos: bool, quick: bool
) -> Iterator[Row]:
    case = CASES[0]
    changes = TINY if quick else (f"run.env_steps={round(case.aim_s * HZ)}", "run.eval_episodes=100")
    config = load([case.recipe], [*case.changes, *changes, f"run.seed={seed}"])
    label = f"SB3 SAC, {reward}" + (", demonstrations in its replay" if with_demos else "")
    file = (
        runs.folder / f"minutes-sb3-{reward}{'-demos' if with_demos else ''}-{seed}{'-tiny' if quick else ''}.json"
    )
    found = _sb3_sac.learn_once(config, file=file, reward=reward, with_demos=with_demos, every_s=EVERY_S)
    points = [Point(int(steps), rate) for steps, rate in found["points"]]
    yield _time_row(f"{label}, seed {seed}", points, None)
    yield Row(name=f"{label}, seed {seed}: at the end", value=points[-1].rate, unit="success")
    yield Row(name=f"{label}, seed {seed}: wall time", value=found["wall_s"], unit="s")
