"""Cameras by name and prompts by row, from the settings of policy `pi0` to its chunk, against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.settings import Pi0Config
from support.pi0_folders import NUM_ACTIONS, NUM_STATE, PALIGEMMA, statistics, write_lerobot
from support.tiny_pi0 import reference_model

SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")  # of the checkpoint, in its order
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "state": ArraySpec(shape=(NUM_STATE,)),
        **{name: ArraySpec(shape=(28, 28, 3), dtype="uint8") for name in ("wrist", "front", "side")},
    },
    action=ArraySpec(shape=(NUM_ACTIONS,), low=(-9.0,) * NUM_ACTIONS, high=(9.0,) * NUM_ACTIONS),
    action_kind="joint_target",
    control_hz=10.0,
)
TOKENS = {"push the cube": [2, 6, 5, 7, 5, 8], "push a": [2, 6, 5, 12, 4, 0]}  # the last is padded
SEED = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lerobot(tmp_path_factory.mktemp("pi0") / "lerobot")


@pytest.fixture(scope="module")
def reference():
    return reference_model(PALIGEMMA)


def observations(prompts=("push the cube",)):
    rng = np.random.default_rng(0)
    num = len(prompts)
    return {
        "state": rng.normal(size=(num, NUM_STATE)).astype(np.float32),
        **{name: rng.integers(0, 256, (num, 28, 28, 3), dtype=np.uint8) for name in ("wrist", "front", "side")},
        "prompt": np.stack([encode_prompt(prompt) for prompt in prompts]),
    }


def act(folder, images, seen):
    config = Pi0Config(checkpoint=str(folder), images=images, state=("state",), device="cpu")
    return Pi0Policy(config, robot=ROBOT).act(seen, ActContext(seed=SEED)).actions


def expected(reference, by_slot, seen, prompts):
    """The reference with all three slots: an absent camera is a random picture with mask False."""
    num = len(prompts)
    pictures = torch.stack(
        [
            torch.from_numpy(seen[by_slot[slot]]).permute(0, 3, 1, 2).float() / 255 * 2 - 1
            if slot in by_slot
            else torch.rand(num, 3, 28, 28)
            for slot in SLOTS
        ],
        dim=1,
    )
    stats = statistics()
    state = (torch.from_numpy(seen["state"]) - stats["observation.state"]["mean"]) / (
        stats["observation.state"]["std"] + 1e-8
    )
    tokens = torch.tensor([TOKENS[prompt] for prompt in prompts])
    image_tokens = torch.full((num, len(by_slot) * PALIGEMMA.vision.num_patches), PALIGEMMA.vocabulary)
    actions = reference.sample_actions(
        state=torch.nn.functional.pad(state, (0, 32 - NUM_STATE)),
        input_ids=torch.cat((image_tokens, tokens), dim=1),
        pixel_values=pictures,
        noise=torch.randn(num, PALIGEMMA.horizon, 32, generator=torch.Generator().manual_seed(SEED)),
        attention_mask=torch.cat((torch.ones_like(image_tokens), (tokens > 0).long()), dim=1),
        pixel_attention_mask=torch.tensor([[slot in by_slot for slot in SLOTS]] * num),
    )
    return (actions[..., :NUM_ACTIONS] * stats["action"]["std"] + stats["action"]["mean"]).numpy()


@pytest.mark.parametrize(
    "images",
    [
        {"base_0_rgb": "front"},
        {"left_wrist_0_rgb": "wrist"},
        {"base_0_rgb": "front", "right_wrist_0_rgb": "wrist"},  # the one in the middle is absent
        {"right_wrist_0_rgb": "wrist", "base_0_rgb": "front"},  # the order of the settings does not count
        {"observation.images.left_wrist_0_rgb": "side", "base_0_rgb": "wrist", "right_wrist_0_rgb": "front"},
        {"base_0_rgb": "front", "left_wrist_0_rgb": "front"},  # one camera in two places
    ],
)
def test_each_camera_goes_to_its_place_and_absent_ones_are_masked(folder, reference, images):
    seen = observations()
    by_slot = {slot.removeprefix("observation.images."): camera for slot, camera in images.items()}
    found = act(folder, images, seen)
    np.testing.assert_allclose(found, expected(reference, by_slot, seen, ["push the cube"]), atol=1e-6)
    others = [name for name in ("wrist", "front", "side") if name not in by_slot.values()]
    for name in others:
        seen = {**seen, name: np.zeros_like(seen[name])}
    np.testing.assert_array_equal(act(folder, images, seen), found)  # cameras that are not named change nothing


def test_exchanged_cameras_give_another_chunk(folder):
    seen = observations()
    one = act(folder, {"base_0_rgb": "front", "left_wrist_0_rgb": "wrist"}, seen)
    other = act(folder, {"base_0_rgb": "wrist", "left_wrist_0_rgb": "front"}, seen)
    assert np.abs(one - other).max() > 1e-5


def test_every_row_has_its_own_prompt(folder, reference):
    prompts = ("push the cube", "push a")
    seen = observations(prompts)
    images = {"base_0_rgb": "front"}
    found = act(folder, images, seen)
    np.testing.assert_allclose(found, expected(reference, images, seen, prompts), atol=1e-6)
    same = {**seen, "prompt": seen["prompt"][[0, 0]]}
    assert np.abs(act(folder, images, same)[1] - found[1]).max() > 1e-5
