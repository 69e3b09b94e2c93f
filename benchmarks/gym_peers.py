"""`dovetail run --gym ID` against Stable-Baselines3's SAC and PPO with their defaults: the same steps, three seeds each.

The aim of our rows is the better of the two means of Stable-Baselines3: of the return or, on an environment with success, of
the success rate at any step of an episode. The return is only shown there, since we end episodes at success.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._cached_runs import CachedRuns
from benchmarks._gym_peers import CASES, LEARNERS, learn, result_file
from dovetail.bench.rows import Row, at_least
from dovetail.core.errors import FailureError

__all__ = ["SEEDS", "bench", "rows_of"]

SEEDS = (0, 1, 2)


def bench(*, quick: bool) -> Iterator[Row]:
    folder = CachedRuns().folder / "gym_peers"
    if quick:
        for learner in LEARNERS:
            found = learn(folder / "quick", "pendulum", learner, 0, env_steps=400)
            yield Row(name=f"pendulum, {learner}, 400 steps: return", value=found["return_mean"], unit="return")
        return
    for case in CASES:
        if not importlib.util.find_spec(CASES[case].module or "gymnasium"):
            continue  # gym_hil is not in the extra `bench`: install it with --no-deps, and add it to PYTHONPATH
        results = {
            learner: [_result(folder, case, learner, seed) for seed in SEEDS] for learner in reversed(LEARNERS)
        }
        yield from rows_of(case, results)


def rows_of(case: str, results: dict[str, list[dict[str, Any]]]) -> Iterator[Row]:
    """Means over seeds, Stable-Baselines3 first; ours has the better of its means as its aim."""
    decisive = "success" if CASES[case].success_key else "return_mean"
    for figure in ("return_mean", "success", "steps_to_success"):
        best: float | None = None
        for learner, found in results.items():
            values = [one[figure] for one in found if one[figure] is not None]
            if not values:
                continue
            mean, name = (
                statistics.mean(values),
                f"{case}, {learner}: {figure.removesuffix('_mean').replace('_', ' ')}",
            )
            if learner == "dovetail" and figure == decisive and best is not None:
                row = at_least(name, mean, _unit(figure), best, baseline="Stable-Baselines3")
            else:
                row = Row(name=name, value=mean, unit=_unit(figure), samples=tuple(values))
            yield row
            best = mean if best is None else max(best, mean)


def _unit(figure: str) -> str:
    return {"return_mean": "return", "success": "success", "steps_to_success": "steps"}[figure]


def _result(folder: Path, case: str, learner: str, seed: int) -> dict[str, Any]:
    """One process for each run, so that libraries do not disturb each other; an interrupted benchmark continues."""
    if not result_file(folder, case, learner, seed).exists():
        command = [sys.executable, "-m", "benchmarks._gym_peers", str(folder), case, learner, str(seed)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise FailureError(f"{case}, {learner}, seed {seed} failed: {last}")
    return learn(folder, case, learner, seed)
