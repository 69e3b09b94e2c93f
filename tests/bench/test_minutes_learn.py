"""The shipped recipes are surely better after practice than what they started from: three seeds each, judged together.
Minutes each, so `make test-slow`; small versions on a toy are in tests/runtime/test_inline.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.bench import learn_minutes
from dovetail.bench.learn_lift import pooled
from dovetail.bench.shards import Shards

RECIPES = sorted({case.recipe for case in learn_minutes.CASES})


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_interval_after_practice_lies_above_the_starting_policys(recipe: str, tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    changes = ["run.untrained_episodes=0", "run.showcase_episodes=0"]
    reports = [shards.report(str(seed), recipe, [f"run.seed={seed}", *changes]) for seed in learn_minutes.SEEDS]
    assert pooled(reports, "success_after").low > pooled(reports, "success_before").high
