"""Policy `smolvla` with the folder of the real LeRobot: chunks equal its own, real-time chunking, episodes in simulation."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dovetail.config.schema import RunConfig
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.vla.settings import SmolVLAConfig
from dovetail.policies.vla.smolvla_policy import SmolVLAPolicy
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.roles.robot import evaluation_episodes
from support.hashed_numbers import hashed, hashed_frames
from support.pi0_folders import edit_json
from support.smolvla_folders import RECORDED, write_old_smolvla, write_smolvla

IMAGES = {"top": "front", "observation.images.wrist": "hand"}
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "joints": ArraySpec(shape=(9,)),
        "front": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        "hand": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(6,), low=(-9.0,) * 6, high=(9.0,) * 6),
    action_kind="joint_target",
    control_hz=10.0,
)
LONG = "push the cube to the mark now and then again"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_smolvla(tmp_path_factory.mktemp("smolvla") / "folder")


@pytest.fixture(scope="module")
def recorded():
    return load_file(RECORDED / "recorded.safetensors")


def make_policy(folder, **settings):
    config = SmolVLAConfig(checkpoint=str(folder), **{"images": IMAGES, "device": "cpu", **settings})
    return SmolVLAPolicy(config, robot=ROBOT)


def make_observations(*prompts):
    return {
        "joints": hashed("state", (2, 9)),
        "front": hashed_frames("top", (2, 48, 64, 3)),
        "hand": hashed_frames("wrist", (2, 48, 64, 3)),
        "prompt": np.stack([encode_prompt(prompt) for prompt in prompts or ("push the cube", "push")]),
    }


def use_recorded_noise(policy):
    policy._noise = lambda num_rows, context: 2.0 * torch.from_numpy(hashed("noise", (2, 5, 32)))
    return policy


@pytest.mark.parametrize("age", ["new", "old"])
def test_actions_equal_lerobots_from_pixels_and_text_to_the_robots_units(folder, recorded, tmp_path, age):
    if age == "old":
        folder = write_old_smolvla(tmp_path / "old")
    policy = use_recorded_noise(make_policy(folder))
    actions = policy.act(make_observations(), ActContext(seed=0)).actions
    expected = recorded["longest.actions"].numpy()
    np.testing.assert_allclose(actions, expected, atol=1e-7, rtol=1e-5)
    assert expected.std() > 0.01


def test_actions_equal_lerobots_with_an_empty_camera_and_a_prompt_that_is_cut_on_the_left(
    folder, recorded, tmp_path
):
    copy = shutil.copytree(folder, tmp_path / "copy")
    edit_json(copy / "config.json", empty_cameras=1, pad_language_to="max_length")
    policy = use_recorded_noise(make_policy(copy, images={"wrist": "hand"}))
    actions = policy.act(make_observations("push the cube", LONG), ActContext(seed=0)).actions
    np.testing.assert_allclose(actions, recorded["max_length.actions"].numpy(), atol=1e-7, rtol=1e-5)


def test_tokens_equal_lerobots_and_a_tokenizer_file_cannot_pad_or_cut(folder, recorded, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    padding = {"strategy": {"Fixed": 20}, "direction": "Left", "pad_to_multiple_of": None}
    edit_json(
        copy / "tokenizer.json",
        truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        padding={**padding, "pad_id": 2, "pad_type_id": 0, "pad_token": "<|im_end|>"},
    )
    for path in (folder, copy):
        encode = make_policy(path)._tokenizer.encode
        for row, text in enumerate(("push the cube\n", f"{LONG}\n")):
            tokens, mask = encode(text)
            expected, valid = (recorded[f"max_length.{name}"][row].numpy() for name in ("tokens", "token_mask"))
            assert np.array_equal(mask, valid) and np.array_equal(tokens[mask], expected[valid])


def test_prompt_without_a_newline_gets_one(folder):
    policy = make_policy(folder)
    a, b, c = (
        policy.act(make_observations(text, text), ActContext(seed=0)).actions
        for text in ("push", "push\n", "push to")
    )
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_guided_chunk_continues_the_committed_actions_in_the_robots_units(folder):
    policy, observations = make_policy(folder), make_observations()
    free = policy.act(observations, ActContext(seed=1)).actions
    other = policy.act(observations, ActContext(seed=2)).actions
    prefix = other.copy()
    prefix[:, 3:] = np.nan  # unknown
    guided = policy.act(observations, ActContext(seed=1, prefix=prefix, delay=2, horizon=2)).actions
    before, after = (np.abs(chunk - other)[:, :2].mean() for chunk in (free, guided))
    assert np.isfinite(guided).all() and after < 0.3 * before


@pytest.mark.parametrize("mode", ["sequential", "rtc"])
def test_it_acts_in_closed_loop_on_a_simulated_task(folder, tmp_path, mode):
    copy = shutil.copytree(folder, tmp_path / "copy")
    edit_json(copy / "config.json", empty_cameras=1)
    policy = {
        "type": "smolvla",
        "checkpoint": str(copy),
        "images": {"top": "front"},
        "state": ["joint_pos", "gripper"],
        "device": "cpu",
    }
    config = RunConfig.model_validate(
        {
            "task": {"type": "push_cube", "time_limit_s": 1.2},
            "robot": {"type": "sim", "images": ["front"], "image_size": [64, 48]},
            "policy": policy,
            "algorithm": {"type": "rlpd"},
            "actor": {
                "type": mode,
                "execution_horizon": 3,
                "simulated_delay_ticks": 0 if mode == "sequential" else 1,
            },
        }
    )
    assembly = build_assembly(config)
    try:
        (episode,) = evaluation_episodes(assembly, None, num_episodes=1, config_hash="")
    finally:
        assembly.close()
    executed = episode.column("executed")
    assert len(executed) == round(1.2 * assembly.robot.spec.control_hz)
    assert len(np.unique(episode.column("chunk_id"))) >= 4  # several chunks, one after the other
    assert np.ptp(executed, axis=0).max() > 1e-3  # it moved


# ---- refusals


def test_more_absent_cameras_than_it_was_trained_with_are_refused_by_name(folder):
    with pytest.raises(SpecMismatch, match=r"policy\.images lacks wrist, but .* at most 0 absent cameras"):
        _ = make_policy(folder, images={"top": "front"}).spec


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"topp": "front", "wrist": "hand"}, r"'topp', which the checkpoint does not have\. Did you mean 'top'"),
        ({"top": "frond", "wrist": "hand"}, r"'frond', but robot 'arm' has no such camera\. Did you mean 'front'"),
    ],
)
def test_unknown_cameras_are_refused(folder, images, message):
    with pytest.raises(SpecMismatch, match=message):
        _ = make_policy(folder, images=images).spec


def test_missing_and_foreign_tokenizers_are_refused_with_the_models_name(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no tokenizer: .*SmolVLM2-500M-Video-Instruct'.*policy\.tokenizer"):
        make_policy(copy).warmup()
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"] |= {f"word{i}": 100 + i for i in range(50)}
    (copy / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="not the tokenizer of this model: it needs at most 40 tokens"):
        make_policy(copy).warmup()


def test_folder_without_statistics_and_statistics_of_another_robot_are_refused(folder, tmp_path):
    base = shutil.copytree(folder, tmp_path / "base")
    for path in base.glob("policy_*"):
        path.unlink()
    with pytest.raises(SpecMismatch, match=r"has no statistics of states and actions.*policy\.stats"):
        _ = make_policy(base).spec
    stats = {
        "observation.state": {"mean": [0.0] * 7, "std": [1.0] * 7},
        "action": {"mean": [0.0] * 6, "std": [1.0] * 6},
    }
    (base / "stats.json").write_text(json.dumps(stats))
    with pytest.raises(SpecMismatch, match="statistics of 7 state axes, but robot 'arm' gives 9"):
        _ = make_policy(base, stats=str(base / "stats.json")).spec
