"""EmbodiChain's JSON training config loads as a recipe, with one line for each of its settings."""

import copy
import json
import warnings

import pytest

from dovetail.config.load import load
from dovetail.core.errors import ConfigError, ConfigNote, ConfigWarning

ALGORITHM = {
    "name": "ppo",
    "cfg": {
        "learning_rate": 0.0001,
        "n_epochs": 7,
        "batch_size": 96,
        "gamma": 0.98,
        "gae_lambda": 0.9,
        "clip_coef": 0.3,
        "ent_coef": 0.02,
        "vf_coef": 0.6,
        "max_grad_norm": 0.7,
    },
}
NETWORK = {"type": "mlp", "hidden_sizes": [256, 128], "activation": "relu"}
FIRST_FORMAT = {  # as in the tutorial
    "runtime": {
        "exp_name": "push",
        "seed": 42,
        "cuda": False,
        "headless": True,
        "iterations": 10,
        "rollout_steps": 1024,
        "eval_freq": 3,
        "save_freq": 200,
        "use_wandb": True,
        "wandb_project_name": "cubes",
    },
    "env": {
        "id": "PushCubeRL",
        "cfg": {
            "num_envs": 4,
            "obs_mode": "state",
            "episode_length": 100,
            "action_scale": 0.1,
            "success_threshold": 0.1,
        },
    },
    "policy": {
        "name": "actor_critic",
        "cfg": {},
        "actor": NETWORK,
        "critic": {**NETWORK, "hidden_sizes": [64]},
    },
    "algorithm": ALGORITHM,
}
VLA_FORMAT = {  # as in the example for VLA models
    "trainer": {
        "exp_name": "vla",
        "gym_config": "configs/agents/rl/push_cube/gym_config.json",
        "seed": 3,
        "device": "cuda:0",
        "headless": True,
        "gpu_id": 0,
        "iterations": 5,
        "buffer_size": 128,
        "buffer_type": "vla",
        "enable_eval": True,
        "num_eval_envs": 8,
        "num_eval_episodes": 3,
        "eval_freq": 100,
        "save_freq": 100,
        "use_wandb": False,
        "events": {"eval": {"record_camera": {"func": "record_camera_data_async"}}},
    },
    "policy": {
        "name": "vla",
        "action_dim": 7,
        "vla_config": {
            "model_path": "checkpoints/pretrained.pth",
            "model_class": "vla_models.gpt.GPTVLAModel",
            "model_config": {"vision_encoder": "resnet50", "freeze_vision_encoder": False},
        },
    },
    "algorithm": {"name": "ppo", "cfg": {"learning_rate": 1e-5, "rollout_time_first": False}},
}
GYM_CONFIG = {"id": "PushCubeRL", "env": {"num_envs": 32, "extensions": {"episode_length": 50}}}


def imported(tmp_path, data, overrides=(), sources=()):
    """The config, the notes and the warnings."""
    path = tmp_path / "train_config.json"
    path.write_text(json.dumps(data, indent=2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = load([*sources, path], overrides)
    notes = [str(one.message) for one in caught if one.category is ConfigNote]
    unused = [str(one.message) for one in caught if one.category is ConfigWarning]
    return config, notes, unused


def test_actor_critic_config_becomes_our_settings(tmp_path):
    config, notes, unused = imported(tmp_path, FIRST_FORMAT)
    assert config.task.type == "push_cube"
    assert config.task.config.reward == "dense"
    assert config.task.config.time_limit_s == 10.0  # 100 steps at 10 Hz
    assert config.task.config.tolerance_m == 0.015  # 0.1 m would be most of our push
    policy = config.policy.config
    assert (config.policy.type, policy.hidden, policy.value_hidden) == ("actor_critic", (256, 128), (64,))
    assert policy.initial_std == 1.0
    ppo = config.algorithm.config
    assert (ppo.lr, ppo.num_epochs, ppo.batch_size, ppo.gamma, ppo.gae_lambda) == (0.0001, 7, 96, 0.98, 0.9)
    assert (ppo.clip_ratio, ppo.entropy_coef, ppo.value_coef, ppo.max_grad_norm) == (0.3, 0.02, 0.6, 0.7)
    assert (ppo.num_envs, ppo.rollout_steps, ppo.asynchronous, ppo.normalize) == (4, 1024, False, False)
    assert (config.run.seed, config.run.demos, config.device) == (42, 0, "cpu")
    assert config.run.env_steps == 10 * 1024 * 4
    assert config.run.eval_every_steps == 3 * 4096  # after rollouts whose steps are a multiple of 3
    assert config.run.checkpoint_every_updates == 25  # the first multiple of 200 among those of 4096 is 25 * 4096
    assert config.run.wandb == "cubes"
    assert "train_config.json: algorithm.cfg.clip_coef -> algorithm.clip_ratio=0.3" in notes
    assert "train_config.json: runtime.iterations -> run.env_steps=40960" in notes
    left = [line.removeprefix("train_config.json: not used: ").partition("=")[0] for line in unused]
    assert left == [
        "runtime.exp_name",
        "runtime.headless",
        "runtime.wandb_project_name",
        "env.obs_mode",
        "env.action_scale",
        "env.success_threshold",
    ]
    assert {name: one.activation for name, one in policy.components.items()} == {"actor": "relu", "critic": "relu"}


def test_every_setting_of_theirs_is_named_once(tmp_path):
    _, notes, unused = imported(tmp_path, FIRST_FORMAT)
    theirs = [f"runtime.{key}" for key in FIRST_FORMAT["runtime"]]
    theirs += [f"algorithm.cfg.{key}" for key in ALGORITHM["cfg"]]
    theirs += [f"env.{key}" for key in FIRST_FORMAT["env"]["cfg"] if key != "num_envs"]
    for key in theirs:
        lines = [line for line in (*notes, *unused) if f": {key}" in line]
        assert len(lines) == 1, (key, lines)


def test_vla_config_becomes_policy_vla(tmp_path):
    (tmp_path / "gym_config.json").write_text(json.dumps(GYM_CONFIG))
    config, _, unused = imported(tmp_path, VLA_FORMAT)
    assert config.policy.type == "vla"
    plain = config.policy.to_plain()
    assert plain["model_class"] == "vla_models.gpt:GPTVLAModel"
    assert plain["model_config"] == {"vision_encoder": "resnet50", "freeze_vision_encoder": False}
    assert plain["checkpoint"] == "checkpoints/pretrained.pth"
    ppo = config.algorithm.config
    assert (ppo.asynchronous, ppo.num_envs, ppo.rollout_steps, ppo.batch_size) == (True, 32, 128, 64)
    assert (config.device, config.run.seed) == ("cuda:0", 3)
    assert config.run.env_steps == 5 * 128 * 32
    assert config.run.eval_every_steps == 102400  # the least common multiple of 100 and 4096
    assert config.run.scheduled_eval_episodes == 24
    assert config.task.config.time_limit_s == 5.0
    assert config.run.wandb is None
    assert any("policy.action_dim=7: the robot decides it" in line for line in unused)
    assert any("trainer.events: the report has a video" in line for line in unused)


def test_evaluations_stay_off(tmp_path):
    data = copy.deepcopy(FIRST_FORMAT)
    data["runtime"]["enable_eval"] = False
    config, _, unused = imported(tmp_path, data)
    assert config.run.eval_every_steps is None
    assert any("runtime.eval_freq=3: enable_eval is false" in line for line in unused)


def test_overrides_and_recipes_merge_with_it(tmp_path):
    data = copy.deepcopy(FIRST_FORMAT)
    data["env"]["id"] = "CartPoleRL"
    config, _, unused = imported(tmp_path, data, ["run.seed=5"], sources=["push-cube"])
    assert (config.task.type, config.run.seed) == ("push_cube", 5)
    assert any("env.id=CartPoleRL: name a recipe before this file" in line for line in unused)
    config, _, _ = imported(tmp_path, data, ["robot={type: gym, id: Pendulum-v1}"])
    assert config.robot.type == "gym"
    with pytest.raises(ConfigError, match="robot"):
        imported(tmp_path, data)


def changed(path, value):
    data = copy.deepcopy(FIRST_FORMAT)
    *above, last = path.split(".")
    place = data
    for part in above:
        place = place.setdefault(part, {})
    place[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("algorithm.name", "grpo", "algorithm 'grpo' is not available here, only 'ppo'"),
        ("algorithm.cfg.clip_ceof", 0.1, "'algorithm.cfg.clip_ceof' is not known.*Did you mean 'clip_coef'"),
        ("policy.name", "actor_only", "policy 'actor_only' is not available here"),
        ("policy.cfg", {"beta": 1}, r"'policy\.cfg' is not known"),
        ("policy.actor.type", "transformer", "policy.actor should be an mlp"),
        ("policy.name", "vla", "policy.vla_config.model_class is missing"),
        ("runtime.buffer_type", "ring", "buffer_type should be 'standard' or 'vla', got 'ring'"),
        ("runtime.distributed", True, "PPO runs in one learner here"),
        ("env.cfg", {}, r"number of environments is unknown.*Set runtime\.num_envs"),
        ("curriculum", {}, "unknown section 'curriculum'"),
        ("runtime.iterations", "many", "a setting of this EmbodiChain config has a wrong type"),
        ("algorithm.cfg.gamma", "high", "'algorithm.gamma' should be a number"),
    ],
)
def test_what_would_change_the_meaning_is_refused(tmp_path, path, value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        imported(tmp_path, changed(path, value))
    assert "\n" not in str(caught.value)
    assert "train_config.json" in str(caught.value)


def test_config_of_ours_in_json_is_not_taken_for_theirs(tmp_path):
    ours = {"base": "push-cube-ppo", "algorithm": {"type": "ppo", "lr": 0.01}, "runtime": "inline"}
    config, notes, unused = imported(tmp_path, ours)
    assert config.algorithm.config.lr == 0.01
    assert not notes
    assert not unused
