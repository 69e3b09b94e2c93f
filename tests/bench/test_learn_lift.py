"""What the bench of lifted policies makes of the reports of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.bench import learn_lift
from dovetail.bench.rows import Row
from dovetail.config.load import recipes


def report(before: float, after: float, episodes: int) -> dict[str, Any]:
    return {
        "success_before": {"rate": before, "episodes": 100},
        "success_after": {"rate": after, "episodes": 100},
        "episodes": episodes,
        "robot_minutes": 8.0,
        "interventions": 30,
        "wall_s": 200.0,
    }


class Shards:
    """Each seed does a little better; nothing is run."""

    asked: list[tuple[str, tuple[str, ...]]]

    def __init__(self) -> None:
        type(self).asked = []

    def report(self, name: str, recipe: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
        self.asked.append((name, tuple(overrides)))
        seed = int(overrides[0].partition("=")[2])
        return report(0.40 + 0.05 * seed, 0.96 + 0.01 * seed, 100 + seed)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    monkeypatch.setattr(learn_lift, "Shards", Shards)
    return {row.name: row for row in learn_lift.bench(quick=False)}


def test_it_measures_recipes_that_there_are() -> None:
    assert set(learn_lift.AIMS) <= {recipe.name for recipe in recipes()}


def test_each_recipe_and_seed_has_its_rows(rows: dict[str, Row]) -> None:
    assert rows["pick-place-hi-ors, seed 1: cloning"].value == pytest.approx(0.45)
    assert rows["pick-place-hi-ors, seed 1: after"].ratio == pytest.approx(0.97 / 0.45)
    assert rows["pick-place-hi-ors, seed 1: interventions"].value == 30
    assert len({name for name, _ in Shards.asked}) == 3 * len(learn_lift.AIMS)


def test_seeds_are_judged_together(rows: dict[str, Row]) -> None:
    after = rows["pick-place-hg-dagger, 3 seeds: after"]
    assert (after.value, after.aim, after.met) == (pytest.approx(0.97), 0.97, True)  # 291 of 300
    assert rows["table-cleanup-hi-ors, 3 seeds: after"].aim == 0.90
    assert rows["pick-place-hg-dagger, 3 seeds: online episodes"].value == 102  # the most of any
    above = rows["peg-insertion-dsrl, 3 seeds: lower end after, upper end of cloning"]
    assert above.value == pytest.approx(0.944, abs=1e-3)  # Wilson, of 291 in 300
    assert above.aim == pytest.approx(0.507, abs=1e-3)  # and of 135 in 300
    assert above.met
    assert "peg-insertion-dsrl, 3 seeds: after" not in rows  # what it reaches depends on what it steers


def test_no_surer_than_before_is_a_miss() -> None:
    found = list(learn_lift._verdict("x", [report(0.5, 0.55, 100)], None))
    assert [row.met for row in found] == [False]


def test_too_many_episodes_are_a_miss() -> None:
    found = {row.name: row.met for row in learn_lift._verdict("x", [report(0.5, 1.0, 200)], 0.97)}
    assert found["x: online episodes"] is False


def test_a_quick_one_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn_lift, "Shards", Shards)
    assert all(row.aim is None for row in learn_lift.bench(quick=True))
    assert len(Shards.asked) == 1
    assert "run.env_steps=100" in Shards.asked[0][1]
