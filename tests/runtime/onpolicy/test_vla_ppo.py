"""PPO trains a model of the user: its rollouts hold the prompt, it resumes exactly, and it learns."""

import os

import gymnasium
import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.prompts import decode_prompt
from dovetail.reports.report import write_report
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.runtime.onpolicy.collector import ProcessCollector, build_collector, collector_settings
from support import TESTS
from support.onpolicy_runs import PPO_RUN, build_training

VLA = "policy={type: vla, model_class: 'support.user_models:%s', inputs: [ee_pose, goal]}"


@pytest.fixture(autouse=True)
def _importable_in_child_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "ppo.yaml"
    path.write_text(PPO_RUN)
    return lambda name, *overrides: load([path], [VLA % name, *overrides])


def flat(weights):
    return {f"{c}/{n}": v for c, arrays in weights.items() for n, v in arrays.items()}


@pytest.mark.parametrize("name", ["ActsAndValues", "WithTensorDicts"])
def test_update_changes_every_network_of_the_model(config, name):
    training = build_training(config(name))
    before = flat(training.policy_weights())
    result = training.step()
    after = flat(training.policy_weights())
    training.close()
    for key in ("actor.0.weight", "actor.2.bias", "critic.0.weight", "critic.2.bias", "log_std"):
        assert not np.array_equal(before[f"model/{key}"], after[f"model/{key}"]), key
    assert result.metrics["entropy"] == pytest.approx(7 * (0.5 + 0.5 * np.log(2 * np.pi) + np.log(0.5)), abs=0.1)


@pytest.mark.parametrize("name", ["ChunksWithValues", "DensityOfChunks"])
def test_update_of_chunks_changes_every_network_of_the_model(config, name):
    chunks = ("policy.horizon=4", "actor.execution_horizon=2", "task.max_steps=5", "task.tolerance=0.0001")
    training = build_training(config(name, *chunks))
    before = flat(training.policy_weights())
    result = training.step()
    after = flat(training.policy_weights())
    training.close()
    for key in ("actor.0.weight", "actor.2.bias", "critic.0.weight", "critic.2.bias", "log_std"):
        assert not np.array_equal(before[f"model/{key}"], after[f"model/{key}"]), key
    assert training.env_steps < 4 * 16 * 2  # an episode of five steps ends inside its third chunk
    assert result.metrics["entropy"] == pytest.approx(7 * (0.5 + 0.5 * np.log(2 * np.pi) + np.log(0.5)), abs=0.1)


def test_chunks_from_images_prompt_and_history_learn(config):
    inputs = "policy.inputs=[ee_pose, goal, front]", "policy.history={goal: 2}", "policy.horizon=2"
    robot = "robot={type: 'dovetail.testing.fakes:FakeArm', image_size: [16, 16]}"
    training = build_training(config("SeesReadsAndRemembers", robot, *inputs))
    before = flat(training.policy_weights())["model/actor.0.weight"]
    training.step()
    after = flat(training.policy_weights())["model/actor.0.weight"]
    training.close()
    assert after.shape == (32, 7 + 2 * 3 + 3 + 1)
    changed = (before != after).any(axis=0)  # by input
    assert changed[:3].all() and changed[7:].all()  # the arm never rotates


def test_both_spellings_of_the_methods_learn_the_same(config):
    weights = []
    for name in ("ActsAndValues", "WithTensorDicts"):
        training = build_training(config(name))
        training.step()
        weights.append(flat(training.policy_weights()))
        training.close()
    for key, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_rollout_holds_the_prompt_of_each_step(config):
    built = config("ActsAndValues", "task.max_steps=5", "task.tolerance=0.0001")
    training = build_training(built)
    collector = build_collector(collector_settings(built, training._rollouts, num_rollouts=0), {})
    rollout = collector.collect()
    collector.close()
    assert rollout["observation/prompt"].shape == (4, 17, 256)
    expected = built.task.build().prompt
    assert {decode_prompt(row) for row in rollout["observation/prompt"].reshape(-1, 256)} == {expected}
    assert {decode_prompt(row) for row in rollout["final/prompt"]} == {expected}


@pytest.mark.extended
def test_other_process_collects_the_same_rollout(config):
    built = config("ActsAndValues", "algorithm.asynchronous=true")
    training = build_training(built)
    settings = collector_settings(built, training._rollouts, num_rollouts=0)
    here, there = build_collector(settings, {}), ProcessCollector(settings, {})
    for one in (here, there):
        one.load(training.policy_weights(), version=0)
    expected, rollout = here.collect(), there.collect()
    here.close()
    there.close()
    assert expected.keys() == rollout.keys()
    for key, value in expected.items():
        assert np.array_equal(value, rollout[key]), key


def test_resumed_training_continues_exactly(config):
    whole = build_training(config("ActsAndValues"))
    whole.step()
    state = whole.state_dict()
    whole.step()
    resumed = build_training(config("ActsAndValues"))
    resumed.load_state_dict(state)
    resumed.step()
    for key, value in flat(whole.policy_weights()).items():
        assert np.array_equal(value, flat(resumed.policy_weights())[key]), key
    whole.close()
    resumed.close()


class PointReach(gymnasium.Env):
    """Move a point to a goal on a plane."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.goal = self.np_random.uniform(-1.0, 1.0, (2, 2))
        return self.observe(), {}

    def step(self, action):
        self.position = np.clip(self.position + 0.1 * action, -1.0, 1.0)
        distance = float(np.linalg.norm(self.goal - self.position))
        return self.observe(), -distance, distance < 0.1, False, {"is_success": distance < 0.1}

    def observe(self):
        return np.concatenate((self.position, self.goal)).astype(np.float32)


@pytest.mark.slow
def test_ppo_learns_with_a_model_of_the_user(tmp_path):
    if "VlaPointReach-v0" not in gymnasium.registry:
        gymnasium.register("VlaPointReach-v0", entry_point=PointReach, max_episode_steps=50)
    sections = {
        "robot": {"type": "gym", "id": "VlaPointReach-v0"},
        "policy": {"type": "vla", "model_class": "support.user_models:ActsAndValues"},
        "algorithm": {"type": "ppo", "num_envs": 8, "rollout_steps": 128, "lr": 0.001, "batch_size": 256},
        "run": {"demos": 0, "env_steps": 51200, "eval_episodes": 50, "video_episodes": 0},
    }
    more = ["algorithm.gamma=0.95", "algorithm.entropy_coef=0.0"]
    folder = RunFolder.create(tmp_path / "run", load([sections], more))
    InlineRun(folder).run()
    report = write_report(folder)
    assert report.untrained.rate < 0.2
    assert report.success_after.low > 0.5
