"""The shipped recipes are surely better after practice than what they started from: three seeds each, judged together.
Minutes each, so `make test-slow`; small versions on a toy are in tests/runtime/test_inline.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.bench import learn_minutes
from dovetail.bench.shards import Shards
from dovetail.core.stats import Rate

RECIPES = sorted({case.recipe for case in learn_minutes.CASES})


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_interval_after_practice_lies_above_the_starting_policys(recipe: str, tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    before, after = [], []
    for seed in learn_minutes.SEEDS:
        changes = [f"run.seed={seed}", "run.untrained_episodes=0", "run.showcase_episodes=0"]
        report = shards.report(str(seed), recipe, changes)
        before.append(report["success_before"])
        after.append(report["success_after"])
    assert _pooled(after).low > _pooled(before).high


def _pooled(rates: list[dict[str, float]]) -> Rate:
    return Rate(
        successes=sum(round(rate["rate"] * rate["episodes"]) for rate in rates),
        episodes=sum(int(rate["episodes"]) for rate in rates),
    )
