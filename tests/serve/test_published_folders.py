"""`dovetail serve FOLDER`: published weights are served without a run, with a config or alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.api.policy import following_policy, published_policy
from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext
from dovetail.policies.openpi.keys import KeyMap, key_map
from dovetail.policies.openpi.policy import OpenpiConfig, OpenpiPolicy
from dovetail.policies.published import describe
from dovetail.runs.folder import RunFolder
from dovetail.serve.openpi_server import OpenpiServer
from support.lerobot_folder import write_folder
from support.pi0_folders import NUM_ACTIONS, NUM_STATE, write_lerobot, write_openpi, write_transformers
from support.policy_servers import inputs, serve_process
from support.recorded_vla import write_openpi_pi05
from support.smolvla_folders import write_smolvla

STILL = ActContext(deterministic=True)
FOLDERS = {
    "pi0": write_lerobot,
    "pi0 of openpi": write_openpi,
    "pi05 of openpi": write_openpi_pi05,
    "smolvla": write_smolvla,
    "act": lambda folder: write_folder(folder, "act_images"),
    "diffusion": lambda folder: write_folder(folder, "diffusion_environment"),
}


def served_policy(folder: Path, **options: Any) -> Any:
    found = describe(folder, **options)
    section = PluginSection.parse("policy", found.section)
    return found, published_policy(section, found.robot, log=lambda line: None)


@pytest.mark.parametrize("kind", FOLDERS)
def test_published_folder_acts_alone_and_with_its_own_keys(kind, tmp_path):
    folder = FOLDERS[kind](tmp_path / "model")
    found, policy = served_policy(folder)
    assert policy.spec.name == kind.split()[0]
    OpenpiServer(policy, token=b"a-token-for-tests-long-enough", keys=key_map(found.keys)).close()  # they cover it
    seen = inputs(policy.spec)
    if policy.spec.prompted:
        seen["prompt"] = encode_prompt("push the cube")[None]
    chunk = policy.act(seen, STILL)
    assert chunk.actions.shape == (1, policy.spec.horizon, *found.robot.action.shape)
    assert np.isfinite(chunk.actions).all() and np.abs(chunk.actions).max() < 1e5


def test_alone_it_acts_as_with_a_config(tmp_path):
    folder = write_lerobot(tmp_path / "pi0")
    found, policy = served_policy(folder)
    assert policy.spec.observation["state"].shape == (NUM_STATE,) and found.robot.action.shape == (NUM_ACTIONS,)
    (tmp_path / "run.yaml").write_text(
        "task: push_cube\nrobot: {type: sim, arm: panda, images: [front], image_size: [64, 64]}\nalgorithm: imitation\n"
        "policy: {type: pi0, checkpoint: nothing, images: {base_0_rgb: front}, state: [ee_error, gripper]}\n"
    )
    config = load([tmp_path / "run.yaml"], [f"policy.checkpoint={folder}"])
    assert config.policy.config.checkpoint == str(folder)


def test_openpi_keys_name_the_folders_cameras_and_parts_of_its_state(tmp_path):
    with pytest.raises(SpecMismatch, match=r"--keys droid give a state of 8 values, but .* has 9"):
        describe(write_lerobot(tmp_path / "pi0"), keys="droid")
    keys = KeyMap.from_mapping({"like": "lerobot", "images": {"cam": "base_0_rgb"}})
    found = describe(tmp_path / "pi0", keys=keys)
    assert found.keys.images == {"cam": "base_0_rgb"} and found.keys.prompt == "task"
    assert found.keys.state == {"observation.state": ("state",)}
    assert found.section["images"] == {"base_0_rgb": "base_0_rgb"}  # the other cameras are masked
    act = describe(write_folder(tmp_path / "act", "act_images"), keys="lerobot")
    assert all(key.startswith("observation.images.") for key in act.keys.images) and act.keys.prompt is None


@pytest.mark.parametrize(("write", "scaling"), [(write_lerobot, "interpolated"), (write_openpi, "averaged")])
def test_larger_images_of_a_client_are_scaled_as_in_training(write, scaling, tmp_path):
    _, policy = served_policy(write(tmp_path / "pi0"))
    assert {spec.scaling for spec in policy.spec.observation.values() if spec.is_image} == {scaling}


def test_folder_without_statistics_and_other_cameras_are_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="has no statistics of one robot"):
        describe(write_transformers(tmp_path / "pi0"))
    keys = KeyMap.from_mapping({"images": {"left": "unknown"}, "state": {"state": ["state"]}})
    with pytest.raises(SpecMismatch, match="of which the keys name none"):
        describe(write_lerobot(tmp_path / "other"), keys=keys)


def test_run_with_published_weights_is_served_before_it_publishes(tmp_path):
    folder = write_lerobot(tmp_path / "pi0")
    (tmp_path / "run.yaml").write_text(
        'task: "dovetail.testing.fakes:FakeTask"\n'
        'robot: {type: "dovetail.testing.fakes:FakeArm", image_size: [64, 64]}\nalgorithm: imitation\n'
        f"policy: {{type: pi0, checkpoint: {folder}, images: {{base_0_rgb: front}}, state: [ee_pose, gripper, gripper]}}\n"
    )
    log: list[str] = []
    run = RunFolder.create(tmp_path / "runs" / "first", load([tmp_path / "run.yaml"]))
    with pytest.raises(SpecMismatch):  # the robot has 7 axes and the folder 6: the folder was read, not a snapshot
        following_policy(find_weights(run.path), log=log.append)


@pytest.mark.extended
def test_command_serves_a_folder_to_openpis_protocol_and_ends_with_a_signal(tmp_path):
    folder = write_lerobot(tmp_path / "pi0")
    with serve_process("pi0", "--protocol", "openpi", "--port", "0", folder=tmp_path) as (process, address):
        found, local = served_policy(folder)
        keys = {**found.keys.model_dump(), "image_size": local.spec.observation["base_0_rgb"].shape[0]}
        config = OpenpiConfig(
            address=address,
            keys=keys,
            horizon=local.spec.horizon,
            api_key_file=str(tmp_path / "runs" / "serve.token"),
        )
        remote = OpenpiPolicy(config, robot=found.robot)
        seen = {**inputs(local.spec), "prompt": encode_prompt("push the cube")[None]}
        expected = local.act(seen, STILL).actions
        assert np.allclose(remote.act(seen, STILL).actions, expected, atol=1e-5)
        os.kill(process.pid, signal.SIGTERM)  # a client is connected
        assert process.wait(10) == 0
