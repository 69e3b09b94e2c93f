"""Robot time to 95 %: when it counts as reached, and whether the peer gets the same task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import _sb3_sac, learn_minutes
from benchmarks.learn_minutes import Case, Point, evaluations, seconds_to
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


def test_time_is_the_first_of_two_successive_evaluations_that_reach_it() -> None:
    points = [Point(n, rate) for n, rate in ((300, 0.96), (610, 0.94), (905, 0.95), (1200, 1.0), (1500, 0.5))]
    assert seconds_to(points) == 90.5
    assert seconds_to(points[:3]) is None
    assert seconds_to([]) is None


def test_final_evaluation_is_included() -> None:
    assert evaluations(_report(0.5, 0.96, after=0.97)) == [Point(300, 0.5), Point(600, 0.96), Point(612, 0.97)]
    same = _report(0.5, after=0.6)
    same["env_steps"] = 300  # the last scheduled evaluation was at the end
    assert evaluations(same) == [Point(300, 0.6)]


@pytest.mark.parametrize("case", learn_minutes.CASES, ids=lambda case: case.label)
def test_every_recipe_accepts_the_budget_and_has_20_demonstrations(case: Case) -> None:
    config = load([case.recipe], [f"run.env_steps={10 * case.aim_s}", *case.changes])
    assert config.run.demos == 20
    assert config.robot.config.control_hz == learn_minutes.HZ  # type: ignore[attr-defined]


def test_peer_learns_on_the_same_task_and_its_result_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    changes = ["run.demos=1", "run.env_steps=110", "run.eval_episodes=1", "learner.utd=1"]
    config = load(["push-cube"], [*changes, "run.demo_noise=0.0"])
    file = tmp_path / "found.json"
    found = _sb3_sac.learn_once(config, file=file, reward="dense", with_demos=True, every_s=11.0)
    assert [steps for steps, _ in found["points"]] == [110]
    before = file.read_bytes()
    assert _sb3_sac.learn_once(config, file=file, reward="dense", with_demos=True, every_s=11.0) == found
    assert file.read_bytes() == before


def test_peer_observes_and_moves_the_same_as_our_policy() -> None:
    config = load(["peg-insertion"])
    env = _sb3_sac._FlatEnv(config, "dense")
    observation, _ = env.reset(seed=3)
    assert observation.shape == (6 + 6 + 10,)  # ee_twist, ee_error, task_state
    np.testing.assert_allclose(observation[12:], env.task.read_state(env.task.world), atol=1e-6)  # type: ignore[attr-defined]
    down = np.array((0.0, 0.0, 1.0, 0.0, 0.0, 0.0), np.float32)
    before = env.task.world.tcp_pose()[0][2]  # type: ignore[attr-defined]
    _, reward, *_ = env.step(down)
    assert env.task.world.tcp_pose()[0][2] < before - 0.002  # type: ignore[attr-defined]
    assert reward != 0.0  # dense: the distance to the goal changed
    np.testing.assert_allclose(env.to_unit(0.01 * down), down)  # a full step is max_step_m
    env.scale(observation - 1.0, np.full(22, 0.5))
    np.testing.assert_allclose(env.scaled(observation), np.full(22, 2.0), rtol=1e-5)
    env.close()
