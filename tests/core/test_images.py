"""Images as a policy sees them: sizes, pixels, and which specs fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from dovetail.core.errors import SpecMismatch
from dovetail.core.image_sizes import fitted_shape, is_fitted
from dovetail.core.images import resize_images, seen_inputs, seen_robot
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec, match

RNG = np.random.default_rng(0)
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "state": ArraySpec(shape=(3,)),
        "front": ArraySpec(shape=(480, 640, 3), dtype="uint8"),
        "front_depth": ArraySpec(shape=(480, 640, 1), dtype="uint16"),
        "small": ArraySpec(shape=(128, 96, 3), dtype="uint8"),
        "map": ArraySpec(shape=(480, 640, 3), dtype="float32"),
    },
    action=ArraySpec(shape=(1,), low=(-1.0,), high=(1.0,)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def size(*shape, scaling="averaged"):
    return ArraySpec(shape=shape, dtype="uint8", scaling=scaling)


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((480, 640, 3), 128, (96, 128, 3)),
        ((480, 640, 3), 224, (168, 224, 3)),
        ((720, 1280, 3), 128, (72, 128, 3)),
        ((640, 480, 1), 128, (128, 96, 1)),
        ((480, 641, 3), 128, (95, 128, 3)),
        ((128, 128, 3), 128, (128, 128, 3)),
        ((64, 48, 3), 128, (64, 48, 3)),
        ((2, 4096, 3), 128, (1, 128, 3)),
        ((480, 640, 3), None, (480, 640, 3)),
    ],
)
def test_longer_side_becomes_the_size_and_smaller_images_stay(shape, size, expected):
    assert fitted_shape(shape, size) == expected
    assert fitted_shape(expected, size) == expected, "a second time changes nothing"
    assert is_fitted(expected, shape)


def test_only_larger_images_and_depth_of_a_robot_change():
    seen = seen_robot(ROBOT, 128)
    assert seen.observation["front"] == ArraySpec(shape=(96, 128, 3), dtype="uint8")
    assert seen.observation["front_depth"] == ArraySpec(shape=(96, 128, 1), dtype="uint16")
    assert {key: seen.observation[key] for key in ("state", "small", "map")} == {
        key: ROBOT.observation[key] for key in ("state", "small", "map")
    }
    assert list(seen.observation) == list(ROBOT.observation), "the order is that of the features"
    assert seen_robot(ROBOT, None) is ROBOT and seen_robot(seen, 128) is seen
    assert seen.hash() != ROBOT.hash()


def test_color_is_what_pil_gives():
    frame = RNG.integers(0, 256, (48, 64, 3), np.uint8)
    expected = np.asarray(Image.fromarray(frame).resize((16, 12), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resize_images(frame, size(12, 16, 3)), expected)
    for channels in (1, 2, 4):  # each by itself: no premultiplied alpha
        some = RNG.integers(0, 256, (48, 64, channels), np.uint8)
        small = resize_images(some, size(12, 16, channels))
        for channel in range(channels):
            gray = Image.fromarray(some[..., channel]).resize((16, 12), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(small[..., channel], np.asarray(gray))


@pytest.mark.parametrize(
    ("height", "width", "small"), [(48, 64, (12, 16)), (37, 53, (22, 32)), (53, 37, (32, 22))]
)
def test_interpolated_color_is_what_torch_gives_rounded(height, width, small):
    frame = RNG.integers(0, 256, (height, width, 3), np.uint8)
    found = resize_images(frame, size(*small, 3, scaling="interpolated"))
    floats = torch.from_numpy(frame).permute(2, 0, 1)[None].float()
    expected = functional.interpolate(floats, size=small, mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
    assert found.dtype == np.uint8 and found.shape == (*small, 3)
    assert np.abs(found - expected.numpy()).max() <= 0.5001
    averaged = resize_images(frame, size(*small, 3)).astype(int)
    assert np.abs(averaged - expected.numpy()).mean() > 5.0, "another way"


def test_scaling_is_of_larger_color_images_and_survives_json():
    seen = seen_robot(ROBOT, 128, "interpolated")
    chosen = {key: spec.scaling for key, spec in seen.observation.items()}
    assert chosen == {**dict.fromkeys(chosen, "averaged"), "front": "interpolated"}
    assert RobotSpec.from_json(seen.to_json()) == seen and seen.hash() != seen_robot(ROBOT, 128).hash()
    broken = {**seen.observation["front"].to_json(), "scaling": "sharpened"}
    with pytest.raises(SpecMismatch, match="unknown scaling"):
        ArraySpec.from_json(broken)


def test_depth_takes_single_pixels_and_never_mixes_them():
    depth = RNG.integers(0, 65536, (48, 64, 1), np.uint16)
    small = resize_images(depth, size(12, 16, 1))
    np.testing.assert_array_equal(small, depth[2::4, 2::4])
    assert small.dtype == np.uint16


def test_leading_axes_stay_and_repeated_frames_are_equal():
    frames = RNG.integers(0, 256, (2, 3, 20, 40, 3), np.uint8)
    frames[1, 0] = frames[0, 2]
    small = resize_images(frames, size(10, 20, 3))
    assert small.shape == (2, 3, 10, 20, 3)
    for row in range(2):
        for tick in range(3):
            np.testing.assert_array_equal(small[row, tick], resize_images(frames[row, tick], size(10, 20, 3)))
    assert resize_images(frames, size(20, 40, 3)) is frames, "nothing to do"
    assert resize_images(frames[:0], size(10, 20, 3)).shape == (0, 3, 10, 20, 3)


def policy(**observation):
    return PolicySpec(name="p", observation=observation, action=ROBOT.action, action_kind="ee_delta")


def test_policy_with_a_smaller_image_fits_the_robot():
    match(ROBOT, policy=policy(front=ArraySpec(shape=(96, 128, 3), dtype="uint8")))
    match(ROBOT, policy=policy(front_depth=ArraySpec(shape=(96, 128, 1), dtype="uint16")))
    for key, spec in {
        "front": ArraySpec(shape=(128, 128, 3), dtype="uint8"),  # another aspect ratio
        "small": ArraySpec(shape=(256, 192, 3), dtype="uint8"),  # larger
        "front_depth": ArraySpec(shape=(96, 128, 3), dtype="uint16"),
        "map": ArraySpec(shape=(96, 128, 3), dtype="float32"),  # no image
    }.items():
        with pytest.raises(SpecMismatch, match=f"observation '{key}'"):
            match(ROBOT, policy=policy(**{key: spec}))


def test_inputs_are_scaled_only_to_images_that_fit():
    spec = policy(front=ArraySpec(shape=(96, 128, 3), dtype="uint8"), state=ROBOT.observation["state"])
    frames = RNG.integers(0, 256, (1, 480, 640, 3), np.uint8)
    given = {"front": frames, "state": np.zeros((1, 3), np.float32)}
    seen = seen_inputs(given, spec)
    np.testing.assert_array_equal(seen["front"], resize_images(frames, size(96, 128, 3)))
    assert seen["state"] is given["state"] and given["front"] is frames
    square = {"front": frames[:, :, :480]}
    assert seen_inputs(square, spec)["front"].shape == (1, 480, 480, 3), "left to the policy's own check"
    assert seen_inputs({"front": frames.astype(np.float32)}, spec)["front"].shape == (1, 480, 640, 3)


def test_hash_of_a_robot_with_small_cameras_is_unchanged():
    small = replace(ROBOT, observation={"small": ROBOT.observation["small"]})
    assert seen_robot(small, 128).hash() == small.hash()
