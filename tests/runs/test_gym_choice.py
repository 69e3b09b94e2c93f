"""The settings that are chosen for a Gymnasium environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.config.schema import RunConfig
from dovetail.core.errors import UsageError
from dovetail.robots.gym import GymRobotConfig
from dovetail.robots.gym_look import NUM_STEPS, look_at
from dovetail.runs.assembly.gym_choice import choose
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun

ENVS = "support.gym_envs:"
TINY = (
    "run.env_steps=60",
    "run.eval_episodes=2",
    "run.untrained_episodes=1",
    "run.eval_every_steps=null",
    "learner.start_after_steps=20",
    "algorithm.batch_size=16",
    "algorithm.hidden=[16, 16]",
    "policy.hidden=[16, 16]",
)


def chosen(name: str, *overrides: str) -> tuple[RunConfig, str]:
    choice = choose(f"{ENVS}{name}-v0", overrides=overrides)
    config = load([choice.source], overrides)
    return config, "\n".join(choice.lines(config))


def robot(config: RunConfig) -> GymRobotConfig:
    assert isinstance(config.robot.config, GymRobotConfig)
    return config.robot.config


def settings(config: RunConfig) -> dict[str, Any]:
    values: dict[str, Any] = config.model_dump(mode="json")
    return values


def test_dense_reward_without_success_learns_from_the_reward_by_sac() -> None:
    config, text = chosen("PointDense")
    assert config.algorithm.type == "sac"
    assert settings(config)["labels"][0]["dense"] is True
    assert (config.run.demos, config.run.deterministic_share) == (0, 0.0)
    assert robot(config).control_hz == 20.0
    assert robot(config).success_key is None
    assert "none: the return counts" in text
    assert "dense: -" in text
    assert "state float32[4]" in text
    assert "20 steps at most, at 20 Hz" in text
    assert "algorithm=ppo" in text


def test_goal_environment_uses_all_three_keys_and_its_success() -> None:
    config, text = chosen("PointGoal")
    assert settings(config)["policy"]["inputs"] == ["achieved_goal", "desired_goal", "observation"]
    assert (robot(config).success_key, robot(config).success_ends) == ("is_success", True)
    assert "sparse: -1 or 0" in text
    assert "info['is_success'], which ends the episode  [robot.success_ends=false]" in text


def test_images_are_inputs_and_the_film_shows_the_camera() -> None:
    config, text = chosen("PointImage")
    assert settings(config)["policy"]["inputs"] == ["side", "state"]
    assert set(settings(config)["policy"]["normalization"]) == {"state"}
    assert config.run.video_camera == "side"
    assert "side uint8[16, 16, 3]" in text


def test_positive_rewards_are_not_lost_by_an_early_end() -> None:
    config, text = chosen("PointPositive")
    assert robot(config).success_ends is False
    assert settings(config)["labels"][0]["success_is_terminal"] is False
    assert "does not end the episode" in text


def test_unknown_word_for_success_is_named_with_its_setting() -> None:
    config, text = chosen("PointSucceed")
    assert robot(config).success_key is None
    assert "unknown; `info` has succeed  [robot.success_key=succeed]" in text
    config, text = chosen("PointSucceed", "robot.success_key=succeed")
    assert robot(config).success_key == "succeed"
    assert "info['succeed']" in text


def test_missing_time_limit_and_action_limits_are_replaced() -> None:
    config, text = chosen("PointEndless")
    assert (robot(config).max_steps, robot(config).action_limit) == (1000, 1.0)
    assert "those without a limit get -1 to 1" in text
    config, _ = chosen("PointEndless", "robot.max_steps=30", "robot.action_limit=2.0")
    assert (robot(config).max_steps, robot(config).action_limit) == (30, 2.0)


def test_normalization_is_that_of_random_steps_and_enlarges_at_most_tenfold() -> None:
    facts = look_at(GymRobotConfig(id=f"{ENVS}PointDense-v0"))
    assert len(facts.rewards) == NUM_STEPS
    assert 0.3 < facts.statistics["state"].std.min() < 1.0
    config, _ = chosen("PointDense")
    known = settings(config)["policy"]["normalization"]["state"]
    np.testing.assert_allclose(known["mean"], facts.statistics["state"].mean, rtol=1e-3)
    still, _ = chosen("PointDense", "robot.kwargs={action_limit: 1.0e-6}")  # nothing moves
    assert min(settings(still)["policy"]["normalization"]["state"]["std"]) >= 0.1


def test_look_is_the_same_each_time() -> None:
    assert choose(f"{ENVS}PointGoal-v0").source == choose(f"{ENVS}PointGoal-v0").source


def test_ppo_gets_its_policy_and_the_default_labels() -> None:
    config, text = chosen("PointDense", "algorithm=ppo")
    assert (config.algorithm.type, config.policy.type) == ("ppo", "actor_critic")
    assert settings(config)["labels"][0]["dense"] is False
    assert "[algorithm=sac]" in text


def test_ppo_leaves_images_out() -> None:
    config, text = chosen("PointImage", "algorithm=ppo")
    assert settings(config)["policy"]["inputs"] == ["state"]
    assert "not used: side" in text


def test_settings_that_were_given_count() -> None:
    config, text = chosen("PointDense", "run.env_steps=777", "algorithm.gamma=0.9", "robot.control_hz=5")
    assert (config.run.env_steps, robot(config).control_hz) == (777, 5.0)
    assert settings(config)["algorithm"]["gamma"] == 0.9
    assert "777 steps" in text


def test_observation_that_no_policy_can_use_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"has table float32\[2, 2\], but the policy needs a vector") as caught:
        choose(f"{ENVS}PointTable-v0")
    assert "\n" not in str(caught.value)


def test_discrete_actions_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"takes Discrete\(2\) actions") as caught:
        choose("CartPole-v1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["PointDense", "PointGoal", "PointImage", "PointPositive", "PointSucceed"])
def test_chosen_settings_run_to_the_end(name: str, tmp_path: Path) -> None:
    config, _ = chosen(name, *TINY)
    run = InlineRun(RunFolder.create(tmp_path / "run", config))
    run.run()
    assert run.status.updates >= 40
    assert json.loads((tmp_path / "run/evaluations/after.json").read_text())["episodes"] == 2


def test_policy_starts_with_wide_noise_and_the_statistics(tmp_path: Path) -> None:
    config, _ = chosen("PointDense", *TINY)
    run = InlineRun(RunFolder.create(tmp_path / "run", config))
    policy: Any = run.runtime.learner.policy
    try:
        known = settings(config)["policy"]["normalization"]["state"]
        np.testing.assert_allclose(policy._normalizer.mean["state"], known["mean"], rtol=1e-6)
        np.testing.assert_allclose(policy._normalizer.std["state"], known["std"], rtol=1e-6)
    finally:
        run.close()
