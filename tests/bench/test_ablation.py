"""The ablation reports success and cycle time of each way, and refuses runs that began differently."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import ablation
from benchmarks._cached_runs import CachedRuns
from dovetail.config.load import load
from dovetail.core.errors import FailureError
from dovetail.core.figures import EpisodeScore, Performance


def figures(num_successes: int, *, cycle_s: float) -> dict[str, Any]:
    scores = [EpisodeScore(success=number < num_successes, duration_s=cycle_s) for number in range(100)]
    return Performance.of(scores).to_json()


def fake_reports(monkeypatch: pytest.MonkeyPatch, *, cloned: dict[str, int]) -> list[tuple[str, ...]]:
    """Reports of runs that were not made: the ways reach 60, 70 and 80 %, and 10 % more with each seed."""
    asked: list[tuple[str, ...]] = []

    def report(self: CachedRuns, name: str, recipe: str, overrides: Any = ()) -> dict[str, Any]:
        asked.append(tuple(overrides))
        way = next(one for one in ablation.WAYS if one.replace(" ", "-") in name)
        better = 10 * list(ablation.WAYS).index(way) + 10 * ablation.SEEDS.index(int(name.rsplit("-", 1)[1]))
        evaluations = {
            "cloning": figures(cloned.get(way, 50), cycle_s=3.0),
            "after": figures(60 + better, cycle_s=2.0 - better / 100),
        }
        return {"evaluations": evaluations, "env_steps": 3000, "interventions": 7, "wall_s": 1.0}

    monkeypatch.setattr(CachedRuns, "report", report)
    return asked


def test_figures_of_all_ways_are_pooled_over_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_reports(monkeypatch, cloned={})
    rows = {row.name: row for row in ablation.bench(quick=False)}
    assert rows["cloning only, 3 seeds: success"].value == 0.5
    success = rows["RL without a person, 3 seeds: success"]
    assert (success.value, success.samples) == (pytest.approx(0.8), (0.7, 0.8, 0.9))
    assert success.interval == pytest.approx((0.751, 0.841), abs=0.001)  # Wilson, 240 of 300
    cycle = rows["RL with a person, 3 seeds: cycle time, median and quartiles"]
    assert (cycle.value, cycle.samples) == (pytest.approx(1.7), pytest.approx((1.8, 1.7, 1.6)))


def test_ways_differ_in_one_setting_of_a_valid_config(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_reports(monkeypatch, cloned={})
    list(ablation.bench(quick=False))
    without_rl, without_person, both = (load([ablation.RECIPE], overrides) for overrides in asked[:3])
    assert without_rl.algorithm.config.actor_q_from_update == ablation.NEVER
    assert without_rl.operator == both.operator
    assert (without_person.operator.type, both.operator.type) == ("none", "scripted")
    assert without_person.algorithm == both.algorithm
    assert len({config.run.seed for config in (without_rl, without_person, both)}) == 1


def test_runs_that_began_with_other_policies_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_reports(monkeypatch, cloned={"RL with a person": 51})
    with pytest.raises(FailureError, match="seed 21 did not begin with the same cloned policy"):
        list(ablation.bench(quick=False))
