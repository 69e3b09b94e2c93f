"""The shipped recipes that were measured lift what they start from: three seeds each, judged together, in minutes each."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.bench import learn_lift
from dovetail.bench.shards import Shards


@pytest.mark.slow
@pytest.mark.parametrize("recipe", learn_lift.AIMS)
def test_the_interval_after_lies_above_the_one_before(recipe: str, tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    reports = [
        shards.report(str(seed), recipe, [f"run.seed={seed}", "run.showcase_episodes=0"])
        for seed in learn_lift.SEEDS
    ]
    before, after = (learn_lift.pooled(reports, name) for name in ("success_before", "success_after"))
    assert after.low > before.high
    assert max(report["episodes"] for report in reports) <= learn_lift.MOST_EPISODES


@pytest.mark.slow
def test_what_was_cloned_lies_above_what_has_learned_nothing(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    changes = ["run.untrained_episodes=100", "run.showcase_episodes=0"]
    reports = [
        shards.report(str(seed), "pick-place-sft", [f"run.seed={seed}", *changes]) for seed in learn_lift.SEEDS
    ]
    untrained, after = (learn_lift.pooled(reports, name) for name in ("untrained", "success_after"))
    assert after.low > untrained.high
    assert all(report["env_steps"] == 0 for report in reports)
