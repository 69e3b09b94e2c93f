"""Our pi0 and pi05 against LeRobot 0.6.1 itself, recorded with tiny weights: tokens, images, and actions in the robot's
units.

One camera is absent, one axis of the state has an empty range, and `lm_head` differs from `embed_tokens`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.pi05_policy import Pi05Policy
from support.recorded_vla import (
    ACTION_NAMES,
    HORIZON,
    NUM_ACTIONS,
    STATE_NAMES,
    TASKS,
    inputs,
    recorded,
    write_recorded_folder,
)

POLICIES = {"pi0": Pi0Policy, "pi05": Pi05Policy, "pi0_relative": Pi0Policy, "pi05_relative": Pi05Policy}
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "joints": ArraySpec(shape=(5,), names=STATE_NAMES),
        "front": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        "wrist": ArraySpec(shape=(40, 30, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(4,), names=ACTION_NAMES, low=(-99.0,) * 4, high=(99.0,) * 4),
    action_kind="joint_target",
    control_hz=10.0,
)
IMAGES = {"base_0_rgb": "front", "right_wrist_0_rgb": "wrist"}


@pytest.fixture(scope="module", params=POLICIES)
def case(request, tmp_path_factory):
    folder = write_recorded_folder(request.param, tmp_path_factory.mktemp("recorded") / request.param)
    policy_class = POLICIES[request.param]
    config = policy_class.Config(checkpoint=str(folder), images=IMAGES, device="cpu")
    return policy_class(config, robot=ROBOT), recorded(request.param)


def observations():
    given = inputs()
    prompts = np.stack([encode_prompt(task) for task in TASKS])
    return {
        "joints": given["state"],
        "front": given["base_0_rgb"],
        "wrist": given["right_wrist_0_rgb"],
        "prompt": prompts,
    }


def test_tokens_images_and_state_are_those_of_lerobot(case):
    policy, theirs = case
    given = inputs()
    ours = policy._inputs(observations(), given["state"], torch.from_numpy(given["noise"]))
    length = theirs["tokens"].shape[1]
    assert ours.tokens.shape[1] == length == (200 if policy.family.name == "pi05" else 48)
    assert np.array_equal(ours.tokens.numpy() * theirs["token_mask"], theirs["tokens"] * theirs["token_mask"])
    assert np.array_equal(ours.token_mask.numpy(), theirs["token_mask"])
    assert theirs["camera_mask"].tolist() == [[True, True, False]] * 2  # the absent camera comes last
    np.testing.assert_allclose(ours.images.numpy(), theirs["images"][:, :2], atol=1e-6)
    np.testing.assert_allclose(ours.state.numpy()[:, :5], theirs["normalized_state"][:, :5], rtol=1e-5, atol=1e-6)


def test_normalized_actions_of_training_are_those_of_lerobot(case):
    policy, theirs = case
    tensors = {key: torch.from_numpy(value) for key, value in observations().items()}
    given, recorded = policy.features(tensors), torch.from_numpy(inputs()["actions"])
    actions = policy.normalize_actions(recorded, tensors)
    np.testing.assert_allclose(actions.numpy(), theirs["normalized_actions"], rtol=1e-5, atol=1e-5)
    assert actions.shape[1] == HORIZON and given["images"].shape[:2] == (2, 2)
    shorter = policy.normalize_actions(recorded[:, :3], tensors)
    assert torch.equal(shorter[:, :3], actions[:, :3]) and shorter[:, 3:].isnan().all()


def test_bfloat16_stays_near_lerobots_float32(case, monkeypatch):
    policy, theirs = case
    config = policy.Config(**{**policy._config.model_dump(), "precision": "bfloat16"})
    rounded = type(policy)(config, robot=ROBOT)
    noise = torch.from_numpy(inputs()["noise"])
    monkeypatch.setattr(rounded, "_noise", lambda num_rows, context: noise)
    actions = rounded.act(observations(), ActContext()).actions
    assert np.linalg.norm(actions - theirs["actions"]) / np.linalg.norm(theirs["actions"]) < 0.03


def test_actions_are_those_of_lerobot(case, monkeypatch):
    policy, theirs = case
    noise = torch.from_numpy(inputs()["noise"])
    monkeypatch.setattr(policy, "_noise", lambda num_rows, context: noise)
    actions = policy.act(observations(), ActContext()).actions
    assert actions.shape == (2, HORIZON, NUM_ACTIONS) and theirs["actions"].std() > 0.2
    np.testing.assert_allclose(actions, theirs["actions"], rtol=1e-5, atol=1e-5)
