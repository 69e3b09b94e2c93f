"""Robot time to success: what counts as reached, what a run and a peer come to in rows, and a peer that really runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.bench import _sb3_sac, learn_minutes
from dovetail.bench.learn_minutes import Case, Point, seconds_to, seen
from dovetail.config.load import load


def _rate(rate: float, episodes: int = 100) -> dict[str, float]:
    return {"rate": rate, "low": rate - 0.05, "high": rate + 0.02, "episodes": episodes}


def _report(*rates: float, after: float) -> dict[str, Any]:
    return {
        "success_before": _rate(0.4),
        "success_after": _rate(after),
        "scheduled": [
            {"env_steps": 300 * (n + 1), "robot_minutes": 0.5 * (n + 1), **_rate(rate)}
            for n, rate in enumerate(rates)
        ],
        "env_steps": 300 * len(rates) + 12,
        "human_share": 0.25,
        "wall_s": 90.0,
    }


def test_reached_is_twice_in_a_row_and_counted_from_the_first_of_the_two() -> None:
    points = [Point(n, rate) for n, rate in ((300, 0.96), (610, 0.94), (905, 0.95), (1200, 1.0), (1500, 0.5))]
    assert seconds_to(points) == 90.5
    assert seconds_to(points[:3]) is None
    assert seconds_to([]) is None


def test_the_end_of_a_run_is_one_of_its_evaluations() -> None:
    assert seen(_report(0.5, 0.96, after=0.97)) == [Point(300, 0.5), Point(600, 0.96), Point(612, 0.97)]
    same = _report(0.5, after=0.6)
    same["env_steps"] = 300  # the schedule was due at the very end
    assert seen(same) == [Point(300, 0.6)]


class _Kept:
    """Shards whose runs are all done."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.folder, self.asked = Path("nowhere"), []
        self._report = report

    def report(self, name: str, recipe: str, overrides: list[str]) -> dict[str, Any]:
        self.asked.append((name, recipe, overrides))
        return self._report


def _values(rows: Any) -> dict[str, tuple[float, bool | None]]:
    return {row.name: (row.value, row.met) for row in rows}


def test_a_run_in_rows() -> None:
    kept = _Kept(_report(0.5, 0.96, 0.97, after=0.98))
    rows = _values(learn_minutes._rows(Case("charger", 300), 1, kept, quick=False))  # type: ignore[arg-type]
    assert rows["charger, seed 1: cloning"] == (0.4, None)
    assert rows["charger, seed 1: robot time to 95 %"] == (60.0, True)
    assert rows["charger, seed 1: at the end [0.93, 1.00]"] == (0.98, None)
    name, recipe, overrides = kept.asked[0]
    assert (name, recipe) == ("minutes-charger-1", "charger")
    assert {"run.seed=1", "run.env_steps=3000", "run.eval_every_steps=300", "run.eval_episodes=100"} <= set(
        overrides
    )


def test_what_was_not_reached_is_a_miss_and_says_how_long_it_tried() -> None:
    kept = _Kept(_report(0.5, 0.96, 0.9, after=0.96))
    rows = _values(learn_minutes._rows(Case("charger", 300), 1, kept, quick=False))  # type: ignore[arg-type]
    assert rows["charger, seed 1: 95 % not reached within"] == (91.2, False)
    beside = Case("charger", 300, aimed=False)  # nothing is aimed for: nothing is missed
    rows = _values(learn_minutes._rows(beside, 1, kept, quick=False))  # type: ignore[arg-type]
    assert rows["charger, seed 1: 95 % not reached within"] == (91.2, None)


@pytest.mark.parametrize("case", learn_minutes.CASES, ids=lambda case: case.label)
def test_every_recipe_takes_the_budget_and_20_demonstrations(case: Case) -> None:
    config = load([case.recipe], [f"run.env_steps={10 * case.aim_s}", *case.changes])
    assert config.run.demos == 20
    assert config.robot.config.control_hz == learn_minutes.HZ  # type: ignore[attr-defined]


def test_the_peer_learns_on_the_same_task_and_its_result_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    changes = ["run.demos=1", "run.env_steps=110", "run.eval_episodes=1", "learner.utd=1"]
    config = load(["push-cube"], [*changes, "run.demo_noise=0.0"])
    file = tmp_path / "found.json"
    found = _sb3_sac.learned(config, file=file, reward="dense", with_demos=True, every_s=11.0)
    assert [steps for steps, _ in found["points"]] == [110]
    before = file.read_bytes()
    assert _sb3_sac.learned(config, file=file, reward="dense", with_demos=True, every_s=11.0) == found
    assert file.read_bytes() == before


def test_the_peer_sees_and_moves_what_our_policy_does() -> None:
    config = load(["peg-insertion"])
    env = _sb3_sac._Flat(config, "dense")
    observation, _ = env.reset(seed=3)
    assert observation.shape == (6 + 6 + 10,)  # ee_twist, ee_error, task_state
    np.testing.assert_allclose(observation[12:], env.task.read_state(env.task.world), atol=1e-6)  # type: ignore[attr-defined]
    down = np.array((0.0, 0.0, 1.0, 0.0, 0.0, 0.0), np.float32)
    before = env.task.world.tcp_pose()[0][2]  # type: ignore[attr-defined]
    _, reward, *_ = env.step(down)
    assert env.task.world.tcp_pose()[0][2] < before - 0.002  # type: ignore[attr-defined]
    assert reward != 0.0  # dense: some way was made or lost
    np.testing.assert_allclose(env.to_unit(0.01 * down), down)  # a whole step is max_step_m
    env.scale(observation - 1.0, np.full(22, 0.5))
    np.testing.assert_allclose(env.scaled(observation), np.full(22, 2.0), rtol=1e-5)
    env.close()
