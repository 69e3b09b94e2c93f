"""One size of images in a run: the policy that acts, the replay and the learner."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from dovetail.config.load import _hash, load, load_saved, save
from dovetail.core.abilities import ConfiguresImageSize
from dovetail.core.errors import UsageError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import View
from dovetail.learn.batches import batch_arrays
from dovetail.robot_host.process_settings import ProcessSettings
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.fleet import Fleet
from dovetail.runs.assembly.policy_rate import policy_robot
from dovetail.runs.assembly.seen_images import check_base_images, image_scaling, image_size
from dovetail.runs.experience import Experience, image_codec
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from support.toy_run import TOY

CAMERAS = ["head", "left_wrist", "right_wrist"]
THREE_CAMERAS = {
    "robot": {"type": "dovetail.testing.fakes:FakeBimanual", "image_size": [320, 240]},
    "policy": {
        "type": "gaussian_mlp",
        "hidden": [8],
        "inputs": ["joint_pos", "goal", *CAMERAS],
        "history": {"joint_pos": 50, **dict.fromkeys(CAMERAS, 4)},
        "encoder": {"features": 4, "shared": True},
    },
    "algorithm": {"type": "imitation", "batch_size": 4},
    "learner": {"utd": 1, "warmup_updates": 1, "bc_updates": 2},
    "run": {"demos": 2, "env_steps": 0, "eval_episodes": 1, "untrained_episodes": 0, "video_episodes": 0},
}
PI0 = {"policy": {"type": "pi0", "checkpoint": "nowhere", "images": {"top": "head"}}}

LEROBOT = {"type": "pi0"}
OPENPI = {"action_dim": 32, "action_horizon": 50, "paligemma_variant": "gemma_2b"}


def make_config(tmp_path, *changes):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    return load([path, *changes])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], 128),
        ([{"replay": {"image_size": 96}}], 96),
        ([{"replay": {"image_size": "full"}}], None),
        ([PI0], 224),
        ([PI0, {"replay": {"image_size": 160}}], 160),
    ],
)
def test_size_is_the_replays_or_what_the_policy_prefers(tmp_path, changes, expected):
    config = make_config(tmp_path, *changes)
    assert image_size(config) == expected
    with_camera = ArraySpec(shape=(480, 640, 3), dtype="uint8")
    robot = replace(build_assembly(make_config(tmp_path)).robot.spec, observation={"front": with_camera})
    height = None if expected is None else expected * 3 // 4
    seen = policy_robot(config, robot).observation["front"].shape
    assert seen == ((480, 640, 3) if expected is None else (height, expected, 3))


@pytest.mark.parametrize(
    ("files", "policy", "replay", "expected"),
    [
        ({"folder": LEROBOT}, {}, {}, "interpolated"),
        ({"folder": OPENPI}, {}, {}, "averaged"),
        ({"folder": OPENPI}, {}, {"image_scaling": "interpolated"}, "interpolated"),
        ({"folder": LEROBOT}, {}, {"image_size": 96}, "interpolated"),
        ({"folder": OPENPI, "lora": LEROBOT}, {"adapter": "lora"}, {}, "interpolated"),
        ({"folder": OPENPI, "lora": None}, {"adapter": "lora"}, {}, "averaged"),
        ({}, {"checkpoint": None, "new": {}}, {}, "averaged"),
    ],
)
def test_larger_images_are_scaled_as_the_checkpoint_was_trained(
    tmp_path, monkeypatch, files, policy, replay, expected
):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "config.json").write_text(json.dumps(content))
    changes = {"policy": {**PI0["policy"], "checkpoint": "folder", **policy}, "replay": replay}
    config = make_config(tmp_path, changes)
    assert image_scaling(config) == expected
    assert image_scaling(make_config(tmp_path)) == "averaged", "other policies"
    camera = ArraySpec(shape=(480, 640, 3), dtype="uint8")
    assembly = build_assembly(make_config(tmp_path, {"replay": replay}))
    robot = replace(assembly.robot.spec, observation={"front": camera})
    assert policy_robot(config, robot).observation["front"].scaling == expected


def test_policy_with_a_base_looks_at_what_its_base_was_trained_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps(LEROBOT))
    base = {"type": "smolvla", "checkpoint": "folder", "images": {"top": "head"}}
    config = make_config(tmp_path, {"policy": {"type": "residual", "base": base}})
    assert (image_size(config), image_scaling(config)) == (512, "interpolated")


def test_base_of_a_run_with_other_images_is_refused_with_the_settings_that_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_base").mkdir()
    save(
        make_config(tmp_path, {"replay": {"image_size": 200, "image_scaling": "interpolated"}}),
        tmp_path / "of_base",
    )
    residual = {"policy": {"type": "residual", "base": {"run": "of_base"}}}
    config = make_config(tmp_path, residual)
    robot = build_assembly(make_config(tmp_path, THREE_CAMERAS)).robot.spec
    with pytest.raises(UsageError) as refusal:
        check_base_images(config, robot)
    assert "trained with images 'head' of uint8[150, 200, 3] (interpolated)" in str(refusal.value)
    wanted = str(refusal.value).partition("Set ")[2].replace(" and ", " ").split()
    assert wanted == ["replay.image_size=200", "replay.image_scaling=interpolated"]
    fitting = load([tmp_path / "toy.yaml", residual], wanted)
    check_base_images(fitting, robot)
    small = replace(robot, observation={"head": ArraySpec(shape=(96, 128, 3), dtype="uint8")})
    check_base_images(config, small)  # nothing is scaled
    shutil.rmtree(tmp_path / "of_base")
    check_base_images(config, robot)


def test_replay_scales_as_the_acting_policy(tmp_path):
    assembly = build_assembly(make_config(tmp_path, THREE_CAMERAS, {"replay": {"image_scaling": "interpolated"}}))
    try:
        assert assembly.policy().spec.observation["head"].scaling == "interpolated"
        replay = Fleet(assembly=assembly, robots={"robot": assembly.robot.spec}).replay(
            tmp_path / "replay", assembly.trainable()
        )
        replay.open()
        replay.skip("another", assembly.robot.spec, num_steps=1)
        replay.close()
        stored = json.loads((tmp_path / "replay" / "layout.json").read_text())["robot"]["observation"]
        assert stored["head"]["scaling"] == "interpolated" and stored["head"]["shape"] == [96, 128, 3]
    finally:
        assembly.close()


def test_acting_policy_learner_and_replay_agree(tmp_path):
    assembly = build_assembly(make_config(tmp_path, THREE_CAMERAS))
    try:
        fleet = Fleet(assembly=assembly, robots={"robot": assembly.robot.spec})
        policy = fleet.trainable()
        shape = (96, 128, 3)
        assert assembly.robot.spec.observation["head"].shape == (240, 320, 3)
        assert assembly.policy().spec.observation["head"].shape == shape
        assert policy.spec.observation["head"].shape == shape
        batch = batch_arrays(fleet.algorithm(policy).sample_request, fleet.robot(policy))
        assert batch["observation/head"].shape == (4, 4, *shape)
        assert batch["observation/joint_pos"].shape == (4, 50, 24)
        settings = ProcessSettings(
            config=assembly.config,
            spec=assembly.robot.spec,
            policy=policy.spec,
            arm=None,
            real_time=False,
            consecutive=None,
            components=None,
            run_id=None,
            weights=None,
            spool=Path("spool"),
            temp_folder=Path(),
        )
        assert settings.of("inference")["robot"]["observation"]["head"]["shape"] == list(shape)
        assert settings.of("guard")["spec"]["observation"]["head"]["shape"] == [240, 320, 3]
    finally:
        assembly.close()


@pytest.mark.extended
def test_run_with_three_cameras_learns_from_small_images_and_logs_large_ones(tmp_path):
    config = make_config(tmp_path, THREE_CAMERAS)
    folder = RunFolder.create(tmp_path / "run", config)
    InlineRun(folder).run()
    layout = json.loads((folder.replay / "layout.json").read_text())
    assert layout["robot"]["observation"]["left_wrist"]["shape"] == [96, 128, 3]

    assembly = build_assembly(config)
    fleet = Fleet(assembly=assembly, robots={"robot": assembly.robot.spec})
    policy = fleet.trainable()
    request = fleet.algorithm(policy).sample_request

    def draw(path):
        experience = Experience(
            RunFolder.open(folder.path),
            labelers=assembly.labeler_chain(),
            replay=fleet.replay(path, policy),
            cameras=tuple(CAMERAS),
            codec=image_codec(config.images),
        )
        try:
            experience.recover()
            assert experience.log.load(experience.log.ids()[0]).column("observation/head").shape[1:] == (
                240,
                320,
                3,
            )
            into = batch_arrays(request, fleet.robot(policy))
            experience.replay.sample(into, view=View(), rng=np.random.default_rng(0), window=request.window)
        finally:
            experience.close()
        return into

    try:
        live = draw(folder.replay)
        shutil.rmtree(folder.replay)
        rebuilt = draw(folder.replay)
    finally:
        assembly.close()
    assert live["observation/head"].any()
    assert all(np.array_equal(live[name], rebuilt[name]) for name in live)


def test_run_folder_from_before_the_setting_keeps_full_images(tmp_path):
    config = make_config(tmp_path)
    path = save(config, tmp_path)
    lines = path.read_text().splitlines()
    kept = [line for line in lines if line.strip() != "image_size: auto"]
    assert len(kept) == len(lines) - 1
    old = "\n".join(kept) + "\n"
    path.write_text(_with_hash_of(old))
    loaded = load_saved(tmp_path, trusted=True).config
    assert isinstance(loaded.replay.config, ConfiguresImageSize)
    assert loaded.replay.config.image_size == "full" and image_size(loaded) is None
    assert isinstance(config.replay.config, ConfiguresImageSize) and config.replay.config.image_size == "auto"


def _with_hash_of(text):
    """The saved config with the hash of its content, as an older version wrote it."""
    return re.sub(r"# hash: \w+", f"# hash: {_hash(yaml.safe_load(text))}", text)
