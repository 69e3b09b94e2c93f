"""`make demo` for several seeds: the command itself, each in its own process, and the same recipe with `runtime=inline`."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._cached_runs import run_command
from dovetail.bench.rows import Row, at_least, at_most

__all__ = ["bench"]

RECIPE = "peg-insertion"
SEEDS = (0, 1, 2, 3, 4)
WAYS = {"ray": ("runtime=ray", "--console"), "inline": ("runtime=inline",)}
TINY = (
    "run.demos=5",
    "run.env_steps=300",
    "run.eval_episodes=10",
    "run.untrained_episodes=2",
    "run.video_episodes=1",
    "learner.bc_updates=300",
    "learner.warmup_updates=100",
)


def bench(*, quick: bool) -> Iterator[Row]:
    for seed in SEEDS[:1] if quick else SEEDS:
        for name, way in WAYS.items():
            report, wall_s = _run(seed, [*way, *(TINY if quick else ())])
            label = f"{name}, seed {seed}" + (", tiny budget" if quick else "")
            yield from _rows(label, report, wall_s, aims=not quick)


def _rows(name: str, report: dict[str, Any], wall_s: float, *, aims: bool) -> Iterator[Row]:
    before, after = report["success_before"]["rate"], report["success_after"]["rate"]
    yield Row(name=f"{name}: cloning", value=before, unit="success")
    ratio = after / before if before else None
    if aims:
        yield at_least(f"{name}: after", after, "success", 0.95, baseline="cloning", ratio=ratio)
        yield at_most(f"{name}: wall time", wall_s, "s", 300)
    else:  # a tiny budget only shows that it runs
        yield Row(name=f"{name}: after", value=after, unit="success", baseline="cloning", ratio=ratio)
        yield Row(name=f"{name}: wall time", value=wall_s, unit="s")
    yield Row(name=f"{name}: online learning", value=report["robot_minutes"], unit="robot min")


def _run(seed: int, overrides: Sequence[str]) -> tuple[dict[str, Any], float]:
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        arguments = [RECIPE, f"run.seed={seed}", *overrides, "--runs-dir", folder, "--name", "demo"]
        started_s = time.monotonic()
        run_command(arguments, what=f"the demo with seed {seed}")
        wall_s = time.monotonic() - started_s
        report: dict[str, Any] = json.loads((Path(folder) / "demo" / "report.json").read_text("utf-8"))
        return report, wall_s
