"""The shipped recipes improve their cloned policy significantly: three seeds each, pooled. Minutes to hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import learn_lift, learn_minutes
from benchmarks._cached_runs import CachedRuns
from benchmarks.learn_lift import SEEDS, pooled

OF_LEROBOT = ("pick-place-act", "pick-place-diffusion")
RECIPES = sorted({case.recipe for case in learn_minutes.CASES} | set(learn_lift.AIMS) | set(OF_LEROBOT))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_interval_after_online_learning_lies_above_cloning(recipe: str, tmp_path: Path) -> None:
    runs = CachedRuns(tmp_path)
    changes = ["run.untrained_episodes=0", "run.video_episodes=0"]
    reports = [runs.report(str(seed), recipe, [f"run.seed={seed}", *changes]) for seed in SEEDS]
    assert pooled(reports, "success_after").low > pooled(reports, "success_before").high
    if recipe in learn_lift.AIMS:
        assert max(report["episodes"] for report in reports) <= learn_lift.MOST_EPISODES


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        ["pick-place-sft"],
        *([recipe, "run.env_steps=0", "algorithm=imitation", "run.demos=12"] for recipe in OF_LEROBOT),
    ],
    ids=lambda changes: changes[0],
)
def test_interval_after_cloning_lies_above_untrained(changes: list[str], tmp_path: Path) -> None:
    runs = CachedRuns(tmp_path)
    recipe, *changes = changes
    changes += ["run.untrained_episodes=100", "run.video_episodes=0"]
    reports = [runs.report(str(seed), recipe, [f"run.seed={seed}", *changes]) for seed in SEEDS]
    untrained, after = (pooled(reports, name) for name in ("untrained", "success_after"))
    assert after.low > untrained.high
    assert all(report["env_steps"] == 0 for report in reports)
