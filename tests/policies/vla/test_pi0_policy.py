"""Policy `pi0` with a tiny published folder: chunks, real-time chunking, and episodes on a simulated task."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from dovetail.api import evaluate
from dovetail.config.load import load
from dovetail.config.schema import RunConfig
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.settings import Pi0Config
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles.robot import evaluation_episodes
from support.pi0_folders import PALIGEMMA, statistics, write_lerobot, write_openpi, write_transformers
from support.tiny_pi0 import reference_model

IMAGES = {"base_0_rgb": "front"}
STATE = ("joint_pos", "gripper")  # 9 axes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lerobot(tmp_path_factory.mktemp("pi0") / "lerobot")


@pytest.fixture(scope="module")
def robot():
    config = run_config({"type": "gaussian_mlp"})
    return config.robot.build(task=config.task.build()).spec


def run_config(policy, **sections):
    return RunConfig.model_validate(
        {
            "task": {"type": "push_cube"},
            "robot": {"type": "sim", "images": ["front"], "image_size": [64, 48]},
            "policy": policy,
            "algorithm": {"type": "rlpd"},
            **sections,
        }
    )


def make_policy(folder, robot, **settings):
    config = Pi0Config(checkpoint=str(folder), **{"images": IMAGES, "state": STATE, "device": "cpu", **settings})
    return Pi0Policy(config, robot=robot)


def make_observations(robot, *, rows=2):
    rng = np.random.default_rng(0)
    return {
        "joint_pos": rng.normal(size=(rows, 7)).astype(np.float32),
        "gripper": rng.normal(size=(rows, 2)).astype(np.float32),
        "front": rng.integers(0, 256, (rows, 48, 64, 3), dtype=np.uint8),
        "prompt": np.stack([encode_prompt("push the cube")] * rows),
    }


def test_chunk_equals_the_reference_from_pixels_to_actions(folder, robot):
    """Everything by hand with transformers: image, tokens, state, network, statistics."""
    observations = make_observations(robot)
    chunk = make_policy(folder, robot).act(observations, ActContext(seed=3))
    images = torch.from_numpy(observations["front"]).permute(0, 3, 1, 2).float() / 255
    images = torch.nn.functional.interpolate(images, size=(21, 28), mode="bilinear")
    images = torch.nn.functional.pad(images, (0, 0, 3, 4)) * 2 - 1
    stats = statistics()["observation.state"]
    state = torch.from_numpy(np.concatenate((observations["joint_pos"], observations["gripper"]), axis=1))
    state = torch.nn.functional.pad((state - stats["mean"]) / (stats["std"] + 1e-8), (0, 23))
    tokens = torch.tensor([[2, 6, 5, 7, 5, 8]] * 2)  # <bos>push the cube, cut at 6
    image_tokens = torch.full((2, PALIGEMMA.vision.num_patches), PALIGEMMA.vocabulary)
    actions = reference_model(PALIGEMMA).sample_actions(
        state=state,
        input_ids=torch.cat((image_tokens, tokens), dim=1),
        pixel_values=images[:, None],
        noise=torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(3)),
        attention_mask=torch.ones(2, PALIGEMMA.vision.num_patches + 6, dtype=torch.long),
        pixel_attention_mask=torch.ones(2, 1, dtype=torch.bool),
    )
    stats = statistics()["action"]
    expected = (actions[..., :6] * stats["std"] + stats["mean"]).numpy()
    low, high = robot.action.bounds
    np.testing.assert_allclose(chunk.actions, np.clip(expected, low, high), atol=1e-6)
    assert np.mean((expected > low) & (expected < high)) > 0.5  # the limits did not hide the comparison


def test_deterministic_chunks_repeat_and_seeds_differ(folder, robot):
    policy, observations = make_policy(folder, robot), make_observations(robot)
    a, b = (policy.act(observations, ActContext(deterministic=True, seed=seed)).actions for seed in (1, 2))
    c, d = (policy.act(observations, ActContext(seed=seed)).actions for seed in (1, 2))
    assert np.array_equal(a, b) and not np.array_equal(c, d)


def test_guided_chunk_continues_the_committed_actions_in_the_robots_units(folder, robot):
    policy, observations = make_policy(folder, robot), make_observations(robot)
    free = policy.act(observations, ActContext(seed=1)).actions
    other = policy.act(observations, ActContext(seed=2)).actions
    prefix = other.copy()
    prefix[:, 3:] = np.nan  # unknown
    guided = policy.act(observations, ActContext(seed=1, prefix=prefix, delay=2, horizon=2)).actions
    assert np.isfinite(guided).all()
    before, after = (np.abs(chunk - other)[:, :2].mean() for chunk in (free, guided))
    assert after < 0.3 * before


@pytest.mark.parametrize("mode", ["sequential", "naive", "rtc", "soft"])
def test_it_acts_in_closed_loop_on_a_simulated_task(folder, mode):
    policy = {"type": "pi0", "checkpoint": str(folder), "images": IMAGES, "state": list(STATE), "device": "cpu"}
    actor = {"type": mode, "execution_horizon": 3, "simulated_delay_ticks": 0 if mode == "sequential" else 1}
    config = run_config(policy, actor=actor, task={"type": "push_cube", "time_limit_s": 1.2})
    assembly = build_assembly(config)
    try:
        (episode,) = evaluation_episodes(assembly, None, num_episodes=1, config_hash="")
    finally:
        assembly.close()
    executed = episode.column("executed")
    assert len(executed) == round(1.2 * assembly.robot.spec.control_hz)
    assert len(np.unique(episode.column("chunk_id"))) >= 4  # several chunks, one after the other
    assert np.ptp(executed, axis=0).max() > 1e-3  # it moved


def test_device_and_execution_that_do_not_exist_are_refused(folder, robot):
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match=r"policy\.device is 'cuda:7', but torch finds no GPUs"):
            make_policy(folder, robot, device="cuda:7").warmup()
    with pytest.raises(UsageError, match="execution=graph needs a GPU"):
        make_policy(folder, robot, execution="graph").warmup()


def test_spec_reads_no_weights_and_constructor_reads_nothing(folder, robot, monkeypatch):
    make_policy("/nowhere", robot)
    monkeypatch.setattr("dovetail.policies.vla.checkpoints.checkpoint.load_network", None)
    spec = make_policy(folder, robot).spec
    assert spec.prompted and spec.guidable and spec.horizon == 5
    assert set(spec.observation) == {"joint_pos", "gripper", "front"}


def test_folder_without_statistics_is_refused_for_acting_and_taken_with_a_file(tmp_path, robot):
    folder = write_transformers(tmp_path / "stock")
    with pytest.raises(SpecMismatch, match=r"has no statistics of states and actions.*policy\.stats"):
        _ = make_policy(folder, robot).spec
    policy = make_policy(folder, robot, stats=str(folder / "stats.json"))
    assert policy.act(make_observations(robot), ActContext(seed=0)).actions.shape == (2, 5, 6)
    two = write_openpi(tmp_path / "two", assets=("droid", "franka"))
    with pytest.raises(SpecMismatch, match=r"several robots.*assets/droid/norm_stats\.json"):
        _ = make_policy(two, robot).spec


def test_statistics_of_another_robot_are_refused(folder, robot):
    with pytest.raises(SpecMismatch, match="statistics of 9 state axes, but robot 'sim_panda' gives 7"):
        _ = make_policy(folder, robot, state=("joint_pos",)).spec


def test_missing_tokenizer_is_refused_before_acting(folder, robot, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no tokenizer.*policy\.tokenizer"):
        make_policy(copy, robot).warmup()
    make_policy(copy, robot, tokenizer=str(folder / "tokenizer.json")).warmup()


def test_weights_of_another_run_are_refused(folder, robot):
    with pytest.raises(UsageError, match="they have no statistics"):
        make_policy(folder, robot).load(WeightSnapshot(version=1, components={}, hashes={}))


def test_eval_acts_with_it_on_the_task_of_a_run_that_has_no_weights(folder, tmp_path):
    run = RunFolder.create(tmp_path / "run", load(["push-cube"], {"task.time_limit_s": 0.5}))
    policy = {"type": "pi0", "checkpoint": str(folder), "images": IMAGES, "state": list(STATE), "device": "cpu"}
    found = evaluate(run.path, {"robot.images": ["front"], "policy": policy}, num_episodes=1)
    assert found.weights == "the pi0 policy"
    assert len(found.arms[0].scores) == 1


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["sequential", "naive", "rtc", "soft"])
def test_in_processes_it_acts_as_in_one_process(folder, tmp_path, mode):
    run = RunFolder.create(tmp_path / "run", load(["push-cube"], {"task.time_limit_s": 1.2}))
    policy = {"type": "pi0", "checkpoint": str(folder), "images": IMAGES, "state": list(STATE), "device": "cpu"}
    actor = {"type": mode, "execution_horizon": 3, "simulated_delay_ticks": 0 if mode == "sequential" else 1}
    settings = {"robot.images": ["front"], "robot.image_size": [320, 240], "policy": policy}
    scores = [
        evaluate(run.path, {**settings, "actor": {**actor, "layout": layout}}, num_episodes=2).arms[0].scores
        for layout in ("one_process", "processes")
    ]
    assert scores[0] == scores[1]
    assert scores[0][0].metrics != scores[0][1].metrics  # so equal scores say something
