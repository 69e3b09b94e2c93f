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
from dovetail.core.specs import ArraySpec
from dovetail.core.types import View
from dovetail.learn.batches import batch_arrays
from dovetail.robot_host.process_settings import ProcessSettings
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.fleet import Fleet
from dovetail.runs.assembly.policy_rate import policy_robot
from dovetail.runs.assembly.seen_images import image_size
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
