"""Images, prompts, statistics and axes for pi0, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dovetail.core.errors import CheckpointError, SpecMismatch, UsageError
from dovetail.core.images import resize_with_pad
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.policies.checkpoints.axes import ActionAxes, StateAxes, match_cameras
from dovetail.policies.checkpoints.normalization import Normalization
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.images import prepare_images
from dovetail.policies.vla.prompts import PromptTokenizer
from support.pi0_folders import write_tokenizer

CPU = torch.device("cpu")
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "joint_pos": ArraySpec(shape=(3,), names=("j1", "j2", "j3")),
        "joint_vel": ArraySpec(shape=(3,), names=("j1", "j2", "j3")),
        "gripper": ArraySpec(shape=(1,), names=("opening",)),
        "front": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(4,), names=("j1", "j2", "j3", "grip"), low=(-9.0,) * 4, high=(9.0,) * 4),
    action_kind="joint_target",
    control_hz=10.0,
)


# ---- images


def test_wide_white_image_is_centered_and_its_borders_are_minus_one():
    white = np.full((1, 48, 64, 3), 255, np.uint8)
    for with_pil in (False, True):
        image = prepare_images(white, size=28, with_pil=with_pil, device=CPU)  # 64 to 28, 48 to 21
        assert image.shape == (1, 3, 28, 28)
        rows = image[0, 0, :, 14]
        assert torch.equal(rows, torch.cat((-torch.ones(3), torch.ones(21), -torch.ones(4))))


def test_image_of_the_right_size_is_only_scaled():
    frame = np.arange(28 * 28 * 3, dtype=np.uint32).astype(np.uint8).reshape(1, 28, 28, 3)
    for with_pil in (False, True):
        image = prepare_images(frame, size=28, with_pil=with_pil, device=CPU)
        expected = torch.from_numpy(frame).permute(0, 3, 1, 2).float() / 255 * 2 - 1
        assert torch.equal(image, expected)


def test_resizing_is_bilinear_and_not_bicubic():
    step = np.zeros((1, 4, 4, 3), np.uint8)
    step[:, :, 2:] = 255
    image = prepare_images(step, size=8, with_pil=False, device=CPU)[0, 0, 0]
    # centers at (x + 0.5) / 2 - 0.5: weights 1/4 and 3/4 beside the step; bicubic would overshoot
    np.testing.assert_allclose((image + 1) / 2, [0, 0, 0, 0.25, 0.75, 1, 1, 1], atol=1e-6)


def test_pil_resizing_equals_openpis_client_bit_for_bit():
    frame = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    ours = resize_with_pad(frame, size=28)
    image = Image.fromarray(frame)  # openpi: ratio, int() of both sides, bilinear, paste at int((size - side) / 2)
    ratio = max(53 / 28, 37 / 28)
    width, height = int(53 / ratio), int(37 / ratio)
    padded = Image.new("RGB", (28, 28), 0)
    padded.paste(
        image.resize((width, height), resample=Image.BILINEAR), (int((28 - width) / 2), int((28 - height) / 2))
    )
    assert np.array_equal(ours, np.asarray(padded))


# ---- prompts


@pytest.fixture
def tokenizer_folder(tmp_path):
    write_tokenizer(tmp_path)
    return tmp_path


def tokenizer(folder, *, num_tokens=8, vocabulary=64):
    return PromptTokenizer(folder, num_tokens=num_tokens, vocabulary=vocabulary, bos="<bos>", origin="paligemma")


def encode(folder, task, *, cleans=False, **settings):
    return tokenizer(folder, **settings).encode(PI0.prompt(task, np.zeros(3), cleans))


def test_prompt_is_bos_text_newline_padded_right(tokenizer_folder):
    tokens, mask = encode(tokenizer_folder, "push cube")
    assert tokens.tolist() == [2, 6, 5, 8, 4, 0, 0, 0]
    assert mask.tolist() == [True] * 5 + [False] * 3


def test_tokens_of_a_prompt_are_computed_once(tokenizer_folder):
    known = tokenizer(tokenizer_folder)
    first = known.encode("push cube\n")
    assert known.encode("push cube\n") is first
    assert known.encode("push the cube\n") is not first
    assert (known.encode.cache_info().misses, known.encode.cache_info().hits) == (2, 1)


def test_prompt_with_a_newline_gets_no_second_one(tokenizer_folder):
    assert encode(tokenizer_folder, "push\n")[0].tolist() == [2, 6, 4, 0, 0, 0, 0, 0]


def test_long_prompt_is_cut_and_openpi_cleans_it(tokenizer_folder):
    tokens, mask = encode(tokenizer_folder, "push the cube", num_tokens=4)
    assert tokens.tolist() == [2, 6, 5, 7] and mask.all()
    assert encode(tokenizer_folder, " push_the\n", cleans=True)[0].tolist() == [2, 6, 5, 7, 4, 0, 0, 0]
    assert 11 in encode(tokenizer_folder, "push_the")[0]  # LeRobot keeps `_`


def test_missing_damaged_or_foreign_tokenizer_is_refused(tmp_path, tokenizer_folder):
    with pytest.raises(UsageError, match=r"no tokenizer: .*set policy\.tokenizer"):
        tokenizer(tmp_path / "nothing")
    with pytest.raises(UsageError, match="not the tokenizer of this model"):
        tokenizer(tokenizer_folder, vocabulary=5)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is no tokenizer"):
        tokenizer(tmp_path)


# ---- statistics


def test_lerobot_adds_its_epsilon_only_when_it_normalizes():
    found = Normalization.lerobot("MEAN_STD", {"mean": np.array([1.0]), "std": np.array([0.0])}, name="x")
    np.testing.assert_allclose(found.apply(np.array([1.0 + 3e-8])), [3.0], rtol=1e-5)
    np.testing.assert_allclose(found.scale, [1e-8])
    np.testing.assert_allclose(found.revert(np.array([5.0])), [1.0])


def test_openpi_adds_its_epsilon_in_both_directions():
    found = Normalization.openpi("MEAN_STD", {"mean": np.array([1.0]), "std": np.array([2.0])}, name="x")
    np.testing.assert_allclose(found.scale, [2.000001], rtol=1e-7)
    np.testing.assert_allclose(found.revert(found.apply(np.array([4.5]))), [4.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "low", "high"),
    [("MIN_MAX", "min", "max"), ("QUANTILES", "q01", "q99"), ("QUANTILE10", "q10", "q90")],
)
def test_ranges_go_to_minus_one_and_one_also_empty_ones(mode, low, high):
    found = Normalization.lerobot(mode, {low: np.array([2.0, 3.0]), high: np.array([6.0, 3.0])}, name="x")
    np.testing.assert_allclose(found.apply(np.array([[2.0, 3.0], [6.0, 3.0]]))[:, 0], [-1.0, 1.0])
    np.testing.assert_allclose(found.scale[1], 0.5e-8)
    np.testing.assert_allclose(found.revert(np.array([0.5, 0.0])), [5.0, 3.0])


def test_unknown_mode_and_missing_or_invalid_statistics_are_refused():
    with pytest.raises(CheckpointError, match="normalization 'LOG', which is unknown"):
        Normalization.lerobot("LOG", {}, name="x")
    with pytest.raises(CheckpointError, match="has no 'std'"):
        Normalization.lerobot("MEAN_STD", {"mean": np.zeros(2)}, name="x")
    with pytest.raises(CheckpointError, match="contradict"):
        Normalization.lerobot("MIN_MAX", {"min": np.ones(2), "max": np.zeros(2)}, name="x")


# ---- axes


def test_state_axes_are_matched_by_name_and_ambiguous_ones_by_their_key():
    axes = StateAxes.of(ROBOT, ("joint_pos", "gripper"), ("opening", "j2", "j1", "j3"), size=4)
    values = {"joint_pos": np.array([[1.0, 2.0, 3.0]]), "gripper": np.array([[9.0]])}
    assert axes.read(values).tolist() == [[9.0, 2.0, 1.0, 3.0]]
    with pytest.raises(SpecMismatch, match="'j1', which is the name of several axes"):
        StateAxes.of(ROBOT, (), ("j1",), size=1)
    assert StateAxes.of(ROBOT, (), ("joint_vel.j1",), size=1).order.tolist() == [3]


def test_relative_actions_are_added_to_the_state_and_reordered():
    axes = ActionAxes.of(ROBOT, ("grip", "j1", "j2", "j3"), size=4, relative=("j1", "j2", "j3"))
    state = np.array([[50.0, 1.0, 2.0, 3.0]], np.float32)  # in the checkpoint's order
    actions = np.array([[[7.0, 0.1, 0.2, 0.3]]], np.float32)
    found = axes.to_robot(actions, state)
    np.testing.assert_allclose(found, [[[1.1, 2.2, 3.3, 7.0]]])
    np.testing.assert_allclose(axes.to_checkpoint(found, state), actions, atol=1e-6)


def test_each_mismatch_with_the_robot_is_one_line_that_says_what_to_set():
    with pytest.raises(
        SpecMismatch, match=r"statistics of 14 state axes, but robot 'arm' gives 7 .*policy\.state"
    ):
        StateAxes.of(ROBOT, (), (), size=14)
    with pytest.raises(SpecMismatch, match=r"policy\.state names 'joint_poss'.*Did you mean 'joint_pos'"):
        StateAxes.of(ROBOT, ("joint_poss",), (), size=3)
    with pytest.raises(SpecMismatch, match="statistics of 7 action axes, but robot 'arm' has 4"):
        ActionAxes.of(ROBOT, (), size=7, relative=())
    with pytest.raises(SpecMismatch, match="'base_1_rgb', which the checkpoint does not have"):
        match_cameras(ROBOT, {"base_1_rgb": "front"}, cameras=("base_0_rgb",))
    with pytest.raises(SpecMismatch, match=r"robot 'arm' has no such camera.*'front'"):
        match_cameras(ROBOT, {"base_0_rgb": "fornt"}, cameras=("base_0_rgb",))
