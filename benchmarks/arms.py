"""Two arms that share one policy: robot time that each needs to learn, against the same arm alone.

Two tasks (a peg and a cap, two arms with seven joints), and two embodiments on one task (seven and six joints). All use RLPD
on state. Robot time to 90 % is the arm's online time before the first of two successive evaluations that both reach 90 %.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._cached_runs import CachedRuns
from benchmarks.learn_minutes import HZ, QUICK, TINY, Point, seconds_to
from dovetail.bench.rows import Row

__all__ = ["CASES", "Arms", "bench", "points_of"]

ENOUGH, WITHIN = 0.9, 1.5
SEEDS = (0, 1, 2)
BUDGET_S, EVERY_S, EPISODES = 150, 30, 50  # of each arm
_ACTOR_Q_FROM_UPDATE = 3000  # updates for one arm; with two arms, each arm has half of every batch


class Arms(NamedTuple):
    name: str
    changes: tuple[str, ...]  # settings of all arms
    inputs: str
    arms: dict[str, str]  # settings of each arm, as in `cluster.robots`
    alone: dict[str, tuple[str, ...]]  # the same settings for a run of that arm alone


CASES = (
    Arms(
        "two tasks",
        QUICK,
        "[ee_twist, ee_error, gripper, task_state]",
        {
            "peg": "{}",
            "cap": "{task: {type: cap_tightening}, operator: {min_takeover_steps: 20, max_takeover_steps: 60}, "
            "robot: {max_step_m: 0.02, max_turn_rad: 0.1, max_lead_m: 0.02, max_lead_rad: 0.15}}",
        },
        {
            "peg": (),
            "cap": (
                "task={type: cap_tightening}",
                "operator.min_takeover_steps=20",
                "operator.max_takeover_steps=60",
                "robot.max_step_m=0.02",
                "robot.max_turn_rad=0.1",
                "robot.max_lead_m=0.02",
                "robot.max_lead_rad=0.15",
            ),
        },
    ),
    Arms(
        "two bodies",
        QUICK,
        "[ee_twist, ee_error, task_state]",
        {"seven": "{}", "six": "{robot: {arm: x5}}"},
        {"seven": (), "six": ("robot.arm=x5",)},
    ),
)


def bench(*, quick: bool) -> Iterator[Row]:
    runs = CachedRuns()
    for case in CASES[1:] if quick else CASES:
        for seed in SEEDS[:1] if quick else SEEDS:
            yield from _rows(case, seed, runs, quick=quick)


def _rows(case: Arms, seed: int, runs: CachedRuns, *, quick: bool) -> Iterator[Row]:
    run = f"arms-{case.name.replace(' ', '-')}-{seed}" + ("-tiny" if quick else "")
    each = ", ".join(f"{name}: {settings}" for name, settings in case.arms.items())
    together = [
        *_settings(seed, case, num_arms=len(case.arms), quick=quick),
        "runtime=ray",
        "policy.type=shared",
        f"policy.policy={{type: gaussian_mlp, inputs: {case.inputs}}}",
        f"cluster.robots={{{each}}}",
        "cluster.max_steps_ahead=100",
        "cluster.robot_timeout_s=600",
    ]
    report = runs.report(run, "peg-insertion", together)
    for arm, changes in case.alone.items():
        own = f"{run}-{arm}"
        settings = [*_settings(seed, case, num_arms=1, quick=quick), f"policy.inputs={case.inputs}", *changes]
        runs.report(own, "peg-insertion", settings)
        name = f"{case.name}, seed {seed}: {arm}"
        beside, alone = points_of(runs.folder / run, arm), points_of(runs.folder / own)
        yield _row(name, beside, alone)
        yield Row(name=f"{name}: at the end", value=beside[-1].rate, unit="success")
    yield Row(name=f"{case.name}, seed {seed}: wall time", value=report["wall_s"], unit="s")


def _settings(seed: int, case: Arms, *, num_arms: int, quick: bool) -> list[str]:
    steps = TINY if quick else ()
    return [
        f"run.seed={seed}",
        "run.untrained_episodes=0",
        "run.video_episodes=0",
        f"run.eval_episodes={EPISODES}",
        f"run.env_steps={round(BUDGET_S * HZ) * num_arms}",
        f"run.eval_every_steps={round(EVERY_S * HZ) * num_arms}",
        "safety.workspace={low: [0.1, -0.35, 0.0], high: [0.75, 0.35, 0.4]}",
        *case.changes,
        f"algorithm.actor_q_from_update={_ACTOR_Q_FROM_UPDATE * num_arms}",
        *steps,
    ]


def _row(name: str, beside: Sequence[Point], alone: Sequence[Point]) -> Row:
    """An arm alone that does not reach 90 % counts as its budget. Together, not reaching it misses the aim."""
    took, took_alone = seconds_to(beside, ENOUGH), seconds_to(alone, ENOUGH)
    limit_s = took_alone if took_alone is not None else alone[-1].seconds
    seconds = took if took is not None else beside[-1].seconds
    ratio = seconds / limit_s if limit_s else None
    return Row(
        name=f"{name}: robot time to 90 %" + ("" if took is not None else ", not reached"),
        value=seconds,
        unit="s",
        baseline="alone" + ("" if took_alone is not None else ", not reached"),
        ratio=ratio,
        aim=WITHIN * max(limit_s, float(EVERY_S)),
        met=took is not None and seconds <= WITHIN * max(limit_s, float(EVERY_S)),
    )


def points_of(run: Path, arm: str | None = None) -> list[Point]:
    """The evaluations of an arm, the one after cloning first: its own steps and its success rate."""
    names = ["cloning", *sorted(path.stem for path in (run / "evaluations").glob("at-*.json")), "after"]
    files = [json.loads((run / f"evaluations/{name}.json").read_text("utf-8")) for name in names]
    found = [one["robots"][arm] if arm else one for one in files]
    return list({one["env_steps"]: Point(one["env_steps"], one["rate"]) for one in found}.values())
