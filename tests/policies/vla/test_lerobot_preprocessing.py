"""Images and normalization against what LeRobot's own functions computed (scripts/record-smolvla)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dovetail.core.image_sizes import SCALINGS
from dovetail.core.images import resize_images, seen_robot
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.policies.checkpoints.normalization import Normalization
from dovetail.policies.vla.images import prepare_images, prepare_images_in_corner
from support.hashed_numbers import hashed_frames
from support.smolvla_folders import RECORDED

CPU = torch.device("cpu")
FRAMES = [(37, 53), (53, 37), (12, 10)]  # wide, high, and one that becomes larger


@pytest.fixture(scope="module")
def recorded():
    return load_file(RECORDED / "preprocessing.safetensors")


@pytest.mark.parametrize(("height", "width"), FRAMES)
def test_smolvla_images_equal_lerobots_with_borders_on_the_left_and_on_top(recorded, height, width):
    frames = hashed_frames("resized", (1, height, width, 3))
    ours = prepare_images_in_corner(frames, size=32, with_pil=False, device=CPU)
    torch.testing.assert_close(ours, recorded[f"smolvla.{height}x{width}"] * 2.0 - 1.0, atol=1e-6, rtol=0.0)
    is_border = (ours == -1.0).all(dim=1)[0]
    if width > height:
        assert is_border[0].all() and not is_border[-1].any()
    else:
        assert is_border[:, 0].all() and not is_border[:, -1].any()


@pytest.mark.parametrize(("height", "width"), FRAMES)
def test_pi0_images_equal_lerobots_except_the_color_of_borders(recorded, height, width):
    """The recorded release, 0.4.4, pads with -1 before 2x - 1, so its borders are -3. Later ones and openpi give -1."""
    frames = hashed_frames("resized", (1, height, width, 3))
    ours = prepare_images(frames, size=32, with_pil=False, device=CPU)
    theirs = recorded[f"pi0.{height}x{width}"] * 2.0 - 1.0
    is_border = (theirs == -3.0).all(dim=1, keepdim=True).expand_as(ours)
    assert is_border.any() and (ours[is_border] == -1.0).all()
    torch.testing.assert_close(ours[~is_border], theirs[~is_border], atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(("family", "prepare"), [("smolvla", prepare_images_in_corner), ("pi0", prepare_images)])
@pytest.mark.parametrize(("height", "width"), FRAMES[:2])
def test_images_that_actor_and_replay_scaled_equal_lerobots_up_to_rounding(
    recorded, family, prepare, height, width
):
    camera = {"front": ArraySpec(shape=(height, width, 3), dtype="uint8")}
    robot = RobotSpec(
        name="arm",
        embodiment="arm",
        observation=camera,
        action=ArraySpec(shape=(1,)),
        action_kind="any",
        control_hz=10.0,
    )
    frames = hashed_frames("resized", (1, height, width, 3))
    theirs = recorded[f"{family}.{height}x{width}"] * 2.0 - 1.0
    errors = {}
    for scaling in SCALINGS:
        small = resize_images(frames, seen_robot(robot, 32, scaling).observation["front"])
        ours = prepare(small, size=32, with_pil=False, device=CPU)
        errors[scaling] = (ours - theirs)[theirs >= -1.0].abs().max().item()  # see above: -3
    assert errors["interpolated"] <= 1.001 / 255  # half a level of 255, times 2
    assert errors["averaged"] > 0.3


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10"])
def test_normalization_equals_lerobots_steps_in_both_directions(recorded, mode):
    low, high = np.array([-1.0, 2.0, 0.5]), np.array([3.0, 2.5, 0.5])  # the third range is empty
    statistics = dict.fromkeys(("mean", "min", "q01", "q10"), low) | dict.fromkeys(("max", "q99", "q90"), high)
    statistics["std"] = np.array([0.5, 2.0, 0.0])
    values = np.array([[0.7, 2.2, 0.5], [-2.0, 9.0, 0.5]], np.float32)
    found = Normalization.lerobot(mode, statistics, name="x")
    applied, reverted = recorded[f"{mode}.apply"].numpy(), recorded[f"{mode}.revert"].numpy()
    assert (applied[:, 2] == (0.0 if mode == "MEAN_STD" else -1.0)).all()  # a value that never changed
    np.testing.assert_allclose(found.apply(values), applied, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.revert(values), reverted, rtol=1e-5, atol=1e-6)
