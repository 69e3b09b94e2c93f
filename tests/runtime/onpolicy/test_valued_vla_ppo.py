"""PPO trains a small pi0: rollouts hold cached features instead of images, and only chosen weights change."""

import json
import os

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.core.frozen_base import referenced_base
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.networks.transformers import VisionTower
from dovetail.policies.vla.new_model import write_new_model
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.runtime.onpolicy.collector import ProcessCollector, build_collector, collector_settings
from support import TESTS
from support.onpolicy_runs import PPO_RUN, build_training
from support.small_vlas import SMALL_VLAS, STATS, write_small_vla

CHANGES = (
    "robot={type: 'dovetail.testing.fakes:FakeArm', image_size: [64, 64]}",
    "algorithm={type: ppo, num_envs: 2, rollout_steps: 4, lr: 0.001, batch_size: 8, num_epochs: 1, normalize: false, "
    "chunk_density: joint}",
    "actor.execution_horizon=2",
    "task.max_steps=5",
    "task.tolerance=0.0001",
)


@pytest.fixture(autouse=True)
def _importable_in_child_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vla")
    write_new_model(folder / "pi0", PI0, horizon=3)
    sizes = {"observation.state": 10, "action": 7}
    statistics = {name: {"mean": [0.0] * size, "std": [0.05] * size} for name, size in sizes.items()}
    (folder / "stats.json").write_text(json.dumps(statistics))
    return folder


@pytest.fixture
def config(folder, tmp_path):
    path = tmp_path / "ppo.yaml"
    path.write_text(PPO_RUN)
    policy = (
        f"policy={{type: valued_pi0, checkpoint: {folder}/pi0, stats: {folder}/stats.json, state: [ee_pose, goal], "
        "images: {base_0_rgb: front}, device: cpu, num_flow_steps: 2, value_hidden: [8]}"
    )
    return lambda *overrides: load([path], [policy, *CHANGES, *overrides])


def flat(weights):
    return {f"{c}/{n}": v for c, arrays in weights.items() for n, v in arrays.items()}


def collected(built):
    training = build_training(built)
    collector = build_collector(collector_settings(built, training._rollouts, num_rollouts=0), {})
    collector.load(training.policy_weights(), version=0)
    rollout = collector.collect()
    collector.close()
    training.close()
    return rollout


def test_rollouts_hold_features_of_a_frozen_vision_tower(config):
    images = collected(config("policy.train=expert"))
    features = collected(config("policy.train=expert", "policy.cache_vision=true"))
    assert images["observation/front"].shape == (2, 5, 64, 64, 3)
    assert images["observation/front"].dtype == np.uint8
    assert features["observation/front"].ndim == 4 and features["observation/front"].dtype == np.float32
    assert features["observation/front"].shape[:2] == (2, 5)
    assert (
        len(features["final_at"]) == 2
        and features["final/front"].shape[1:] == features["observation/front"].shape[2:]
    )
    for name in ("action", "log_prob", "reward", "observation/goal"):
        np.testing.assert_allclose(images[name], features[name], rtol=1e-3, atol=1e-4, err_msg=name)
    policy = build_training(config("policy.train=expert", "policy.cache_vision=true"))._algorithm._policy
    again = policy.encode("front", images["final/front"])
    np.testing.assert_allclose(features["final/front"], again, rtol=1e-4, atol=1e-5)


def test_rollouts_with_cameras_do_not_depend_on_the_number_of_processes(config):
    one, two = (
        collected(config("policy.train=expert", "policy.cache_vision=true", f"algorithm.num_processes={number}"))
        for number in (1, 2)
    )
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert np.array_equal(values, two[name]), name


def test_no_epoch_of_an_update_encodes_an_image(config, monkeypatch):
    training = build_training(config("policy.train=expert", "policy.cache_vision=true", "algorithm.num_epochs=3"))
    encoded = []
    forward = VisionTower.forward

    def counted(self, images, *rest):
        encoded.append(len(images))
        return forward(self, images, *rest)

    monkeypatch.setattr(VisionTower, "forward", counted)
    result = training.step()
    training.close()
    assert sum(encoded) == 2 * 5 + 2  # each observation once, and the last ones of two truncated episodes
    assert result.metrics["epochs"] == 3


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        (("policy.train=expert",), {"expert", "critic"}),
        (("policy.train=expert", "policy.path_noise={type: learned}"), {"expert", "critic", "path_noise"}),
        (("policy.train=lora", "policy.lora.rank=2"), {"lora", "critic"}),
        (("policy.freeze_vision=true",), {"text", "expert", "critic"}),
    ],
)
def test_update_changes_what_is_trained(config, settings, trained):
    training = build_training(config(*settings))
    before = training.policy_weights()
    metrics = training.step().metrics
    after = training.policy_weights()
    training.close()
    changed = {
        name for name in before if not all(np.array_equal(v, after[name][k]) for k, v in before[name].items())
    }
    assert changed == trained
    assert {name for name in after if referenced_base(after[name])} == after.keys() - trained - {"normalizer"}
    assert metrics["behaviour_kl"] == pytest.approx(0.0, abs=1e-4)  # the learner's densities are the collector's
    assert metrics["critic_grad_norm"] > 0


def test_resumed_training_continues_exactly(config):
    settings = ("policy.train=expert", "policy.cache_vision=true", "algorithm.start_kl_coef=0.1")
    whole = build_training(config(*settings))
    whole.step()
    state = whole.state_dict()
    whole.step()
    resumed = build_training(config(*settings))
    resumed.load_state_dict(state)
    resumed.step()
    for key, value in flat(whole.policy_weights()).items():
        assert np.array_equal(value, flat(resumed.policy_weights())[key]), key
    whole.close()
    resumed.close()


def test_update_does_not_depend_on_how_the_rollout_is_divided(config):
    """Values and densities of a VLA are computed one minibatch after another."""
    training = build_training(config("policy.train=expert"))
    collector = build_collector(collector_settings(training._config, training._rollouts, num_rollouts=0), {})
    collector.load(training.policy_weights(), version=0)
    rollout = {
        n: torch.from_numpy(v) for n, v in collector.collect().items() if not n.startswith(("episode", "wor"))
    }
    collector.close()
    s = {
        n.removeprefix("observation/"): v[:, :-1].flatten(0, 1) for n, v in rollout.items() if "observation/" in n
    }
    a, found = rollout["action"].flatten(0, 1), []
    for batch_size in (8, 3):
        algorithm = build_training(config("policy.train=expert", f"algorithm.batch_size={batch_size}"))._algorithm
        found.append(algorithm._evaluate_rollout(rollout, s, a)[0])
    for name in ("log_prob_old", "advantage", "returns"):
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name), rtol=1e-4, atol=1e-4)


@pytest.mark.extended
def test_other_process_collects_the_same_rollout(config):
    built = config("policy.train=expert", "policy.cache_vision=true", "algorithm.asynchronous=true")
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


@pytest.mark.extended
@pytest.mark.parametrize(("family", "train"), [("pi0", "expert"), ("pi05", "lora"), ("smolvla", "expert")])
def test_two_ranks_equal_one(tmp_path, family, train):
    """The ranks are processes. Rank 0 collects and sends the rollout; the last minibatch has a row for one rank only."""
    folder = write_small_vla(family, tmp_path / family, horizon=3, stats=(10, 7))
    path, found = tmp_path / "ppo.yaml", []
    path.write_text(PPO_RUN)
    policy = (
        f"policy={{type: valued_{family}, checkpoint: {folder}, stats: {folder}/{STATS}, state: [ee_pose, goal], "
        f"images: {{{SMALL_VLAS[family].camera}: front}}, device: cpu, num_flow_steps: 2, value_hidden: [8], "
        f"train: {train}, cache_vision: true}}"
    )
    more = ("run.env_steps=32", "run.eval_episodes=1", "run.untrained_episodes=0", "algorithm.batch_size=7")
    for ranks in (1, 2):
        run = RunFolder.create(
            tmp_path / str(ranks), load([path], [policy, *CHANGES, *more, f"learner.ranks={ranks}"])
        )
        InlineRun(run).run()
        state, _ = load_checkpoint(run.path / "checkpoints" / "last")
        found.append({name: v for name, v in state.items() if name.startswith("algorithm/policy/")})
        found[-1]["num_updates"] = state["algorithm/num_updates"]
        assert found[-1]["num_updates"] > 0
    assert found[0].keys() == found[1].keys()
    assert any("/critic/" in name for name in found[0])
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=2e-3, atol=2e-5, err_msg=name)
