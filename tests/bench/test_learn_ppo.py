"""What the PPO benchmark computes, from events with known times."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch

from benchmarks import learn_ppo
from benchmarks._slowed_plugins import SlowActorCritic, SlowActorCriticConfig
from dovetail.config.load import load
from dovetail.core.types import ActContext
from dovetail.runs.assembly.build import build_assembly
from dovetail.testing.fakes import FakeArm, FakeArmConfig


def write_run(folder, rollouts):
    lines = [{"event": "checkpoint", "time": 0.0}]
    for number, (at_s, success) in enumerate(rollouts, start=1):
        times = {"time": 100.0 + at_s, "collect_s": 2.0, "update_s": 1.0}
        lines.append({"event": "practice", "env_steps": 10 * number, "success": success, **times})
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_pace_is_read_from_the_events_of_a_run(tmp_path):
    # 95 of the last 100 at the fourth rollout, 94 at the third; rollouts take 3 s except the first
    write_run(
        tmp_path, [(9.0, [False] * 50), (12.0, [True] * 60), (15.0, [True] * 34), (18.0, [True]), (21.0, [])]
    )
    pace = learn_ppo._pace(tmp_path)
    assert (pace.collect_s, pace.update_s, pace.rollout_s) == (2.0, 1.0, 3.0)
    assert (pace.solved_s, pace.solved_steps) == (12.0, 40)  # four times (2 + 1) s


def test_unsolved_run_has_no_solved_time(tmp_path):
    write_run(tmp_path, [(9.0, [True] * 99), (12.0, []), (15.0, [])])  # 99 episodes are fewer than the window
    pace = learn_ppo._pace(tmp_path)
    assert pace.solved_s is None
    assert pace.solved_steps is None


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_settings_change_only_what_is_measured(mode):
    recipe = load([learn_ppo.RECIPE])
    config = load([learn_ppo.RECIPE], learn_ppo._settings(4, mode, {"act_s": 0.01, "learn_s": 0.002}))
    ours, theirs = config.policy.to_plain(), recipe.policy.to_plain()
    assert {name: ours[name] for name in theirs if name != "type"} == {
        name: value for name, value in theirs.items() if name != "type"
    }
    algorithm, shipped = config.algorithm.to_plain(), recipe.algorithm.to_plain()
    changed = {name for name in shipped if algorithm[name] != shipped[name]}
    assert changed <= {"num_envs", "rollout_steps", "asynchronous"}
    assert algorithm["asynchronous"] == (mode == "async")
    sizes = [config["num_envs"] * config["rollout_steps"] for config in (algorithm, shipped)]
    assert sizes[0] == sizes[1]
    build_assembly(config).close()


def test_slow_policy_sleeps_in_training_but_not_in_evaluation(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    robot = FakeArm(FakeArmConfig()).spec
    policy = SlowActorCritic(SlowActorCriticConfig(act_s=0.5, learn_s=0.25), robot=robot)
    seen = {key: np.zeros((2, *spec.shape), np.float32) for key, spec in policy.spec.observation.items()}
    policy.act(seen, ActContext(deterministic=True))
    assert slept == []
    chunk = policy.act(seen, ActContext(seed=1))
    assert slept == [0.5]
    features = policy.features({key: torch.from_numpy(value) for key, value in seen.items()})
    policy.evaluate_actions(features, torch.from_numpy(chunk.extras["drawn"]))
    assert slept == [0.5, 0.25]
