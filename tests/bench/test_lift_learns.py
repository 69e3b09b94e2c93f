"""The shipped recipes that were measured lift what was cloned: three seeds each, judged together, in minutes each."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.bench import learn_lift
from dovetail.bench.shards import Shards


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["pick-place-hg-dagger", "pick-place-hi-ors", "peg-insertion-dsrl", "table-cleanup-hg-dagger"]
)
def test_the_interval_after_lies_above_the_one_before(recipe: str, tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    reports = [
        shards.report(str(seed), recipe, [f"run.seed={seed}", "run.showcase_episodes=0"])
        for seed in learn_lift.SEEDS
    ]
    assert learn_lift.pooled(reports, "after").low > learn_lift.pooled(reports, "before").high
    assert max(report["episodes"] for report in reports) <= learn_lift.MOST_EPISODES
