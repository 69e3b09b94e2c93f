"""The traps of published checkpoints, and the test of each. Here, unless another file is named.

LeRobot's folders
- its own loader goes on with random weights: missing keys and other shapes are refused (also test_checkpoints)
- `model.` before every key, or not: test_checkpoints, every layout
- embeddings are stored as `lm_head`; its trainer saves an untrained `lm_head` beside the trained `embed_tokens`
- a step with `class` would import code; unknown steps: test_checkpoints
- a base folder without statistics is refused for acting, and one with statistics of another robot
- older folders keep statistics inside the weights, filled with infinity until they are known
- modes and empty ranges, epsilon in one direction only: test_preprocessing, test_recorded_lerobot
- the processors decide mode and length of the prompt, whatever the config says
- the time of training is 1 at the noise, with Beta(1.5, 1): test_training
- padding before 2x - 1, so borders are -1; bilinear, not bicubic: test_preprocessing
- absent cameras follow the present ones, whatever their place: test_recorded_lerobot
- smolvla: black on the left and on top: test_lerobot_preprocessing; absent cameras only up to `empty_cameras`:
  test_smolvla_policy; padding to the longest prompt or to 48 tokens: test_smolvla_parity; every second layer attends across:
  test_smolvla_folders
- relative actions except excluded joints: test_recorded_lerobot; axes in another order: test_axis_names
- pi05: the state is text in 256 bins, also below -1 and above 1; the task is cleaned; 200 tokens
- pi05 of LeRobot 0.4 had the state in the prompt padded to 32 values, and the folder does not say it
- times are embedded in float64, in transformers in float32: test_recorded_lerobot, test_pi0_parity

transformers' folders
- LIBERO's statistics are its defaults and are never used: test_checkpoints
- it resizes bicubically: test_preprocessing; it pads actions to the state's width: test_pi0_parity, other widths
- it does not find keys with `model.` in front: test_checkpoints, every layout
- its prompts are padded to 48 tokens with images counted, so lengths vary: ours is fixed, whatever the cameras
- it has no pi05

openpi's folders
- pi0 or pi0.5 is not said: the weights tell
- other epsilons, in both directions; quantiles for pi0.5, mean and standard deviation for pi0
- relative actions are not in the folder: they have to be told
- statistics of several robots need a choice: test_checkpoints
- JAX checkpoints and pickles are not read: test_checkpoints

Adapters: test_adapters.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.core.errors import CheckpointError, SpecMismatch, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.checkpoints.folder_files import READABLE
from dovetail.policies.lerobot.options import POLICIES
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.families import FAMILIES
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.families.pi05 import PI05
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.pi05_policy import Pi05Policy
from support.pi0_folders import edit_json, write_json, write_openpi, write_transformers
from support.recorded_vla import (
    ACTION_NAMES,
    STATE_NAMES,
    recorded,
    statistics,
    weights_of,
    write_old_pi05,
    write_openpi_pi05,
    write_recorded_folder,
)

CPU = torch.device("cpu")
LANGUAGE = "model.paligemma_with_expert.paligemma.model.language_model."
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "joints": ArraySpec(shape=(5,), names=STATE_NAMES),
        "front": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        "wrist": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(4,), names=ACTION_NAMES, low=(-99.0,) * 4, high=(99.0,) * 4),
    action_kind="joint_target",
    control_hz=10.0,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_recorded_folder("pi05", tmp_path_factory.mktemp("pi05") / "folder")


@pytest.fixture
def folder(original, tmp_path):
    """A LeRobot folder with pi05 to damage."""
    return shutil.copytree(original, tmp_path / "copy")


def policy_of(folder, policy_class=Pi05Policy, robot=ROBOT, **settings):
    settings = {"images": {"base_0_rgb": "front"}, "device": "cpu", **settings}
    return policy_class(policy_class.Config(checkpoint=str(folder), **settings), robot=robot)


def observations(num=1):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (num, 48, 64, 3), dtype=np.uint8)
    prompts = np.stack([encode_prompt("push the cube")] * num)
    return {"joints": np.zeros((num, 5), np.float32), "front": image, "wrist": image, "prompt": prompts}


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


# ---- LeRobot's folders


def test_missing_unexpected_and_misshapen_tensors_of_pi05_are_refused_by_name(folder):
    norm = "model.paligemma_with_expert.gemma_expert.model.layers.1.input_layernorm"
    dense = f"{norm}.dense.weight"
    edit_weights(folder, lambda weights: weights.update({dense: torch.zeros(71, 24)}))
    with pytest.raises(
        CheckpointError, match=r"input_layernorm\.dense\.weight \[71, 24\].* should be \[504, 24\]"
    ):
        open_checkpoint(folder).load(device=CPU, dtype=torch.float32)
    edit_weights(folder, lambda weights: weights.pop(dense))
    with pytest.raises(CheckpointError, match=f"lacks {dense}"):
        open_checkpoint(folder).load(device=CPU, dtype=torch.float32)
    edit_weights(folder, lambda weights: weights.update({dense: torch.zeros(72, 24)}))
    edit_weights(folder, lambda weights: weights.update({f"{norm}.weight": torch.zeros(24)}))
    with pytest.raises(CheckpointError, match=r"has unexpected .*input_layernorm\.weight"):
        open_checkpoint(folder).load(device=CPU, dtype=torch.float32)


def test_truncated_weights_are_refused_by_the_name_of_the_file(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or truncated"):
        open_checkpoint(folder)


def test_trained_embeddings_are_read_and_lm_head_only_without_them(folder):
    weights = weights_of("pi05")
    found = open_checkpoint(folder).load(device=CPU, dtype=torch.float32).embedding.weight
    assert np.array_equal(found, weights[f"{LANGUAGE}embed_tokens.weight"])
    edit_weights(folder, lambda weights: weights.pop(f"{LANGUAGE}embed_tokens.weight"))
    found = open_checkpoint(folder).load(device=CPU, dtype=torch.float32).embedding.weight
    assert np.array_equal(found, weights["model.paligemma_with_expert.paligemma.lm_head.weight"])


def test_base_folder_without_statistics_is_refused_for_acting_and_taken_with_a_file(folder, tmp_path):
    for path in folder.glob("policy_*.safetensors"):
        save_file({"unrelated": torch.zeros(1)}, path)
    with pytest.raises(SpecMismatch, match=r"has no statistics of states and actions.*policy\.stats"):
        _ = policy_of(folder).spec
    numbers = {key: {stat: value.tolist() for stat, value in of.items()} for key, of in statistics().items()}
    write_json(tmp_path / "stats.json", numbers)
    assert policy_of(folder, stats=str(tmp_path / "stats.json")).spec.name == "pi05"
    write_json(tmp_path / "stats.json", {"observation.state": numbers["observation.state"]})
    with pytest.raises(CheckpointError, match="has no statistics of 'action'"):
        _ = policy_of(folder, stats=str(tmp_path / "stats.json")).spec


def test_statistics_without_quantiles_are_refused_for_pi05(folder):
    for path in folder.glob("policy_*.safetensors"):
        save_file({"observation.state.mean": torch.zeros(5), "observation.state.std": torch.ones(5)}, path)
    with pytest.raises(CheckpointError, match="has no 'q01', which normalization QUANTILES needs"):
        open_checkpoint(folder)


def test_statistics_of_another_robot_are_refused(folder):
    smaller = RobotSpec(
        name="small",
        embodiment="arm",
        observation={**ROBOT.observation, "joints": ArraySpec(shape=(3,))},
        action=ROBOT.action,
        action_kind="joint_target",
        control_hz=10.0,
    )
    with pytest.raises(SpecMismatch, match="statistics of 5 state axes, but robot 'small' gives 3"):
        _ = policy_of(folder, robot=smaller).spec


def test_statistics_inside_old_weights_are_read_and_infinite_ones_are_none(tmp_path):
    old = write_old_pi05(tmp_path / "old")
    checkpoint = open_checkpoint(old)
    assert checkpoint.state.mode == "QUANTILES"
    low, high = (statistics()["action"][stat] for stat in ("q01", "q99"))
    np.testing.assert_allclose(checkpoint.action.revert(np.ones(4)), high, rtol=1e-6)
    np.testing.assert_allclose(checkpoint.action.revert(-np.ones(4)), low, rtol=1e-5)
    name = "unnormalize_outputs.buffer_action.q01"
    edit_weights(old, lambda weights: weights[name].fill_(torch.inf))
    with pytest.raises(CheckpointError, match="has no 'q01'"):
        open_checkpoint(old)


def test_unknown_processor_steps_and_steps_of_another_family_are_refused(folder):
    path = folder / "policy_preprocessor.json"
    steps = json.loads(path.read_text())["steps"]
    for name in ("crop_processor", "pi0_new_line_processor"):
        edit_json(path, steps=[*steps, {"registry_name": name, "config": {}}])
        with pytest.raises(UsageError, match=f"step '{name}', which is unknown"):
            open_checkpoint(folder)
    edit_json(path, steps=[*steps, {"class": "os.system", "config": {}}])
    with pytest.raises(UsageError, match=r"class 'os\.system', which would import code"):
        open_checkpoint(folder)


def test_processors_decide_the_mode_whatever_the_config_says(folder):
    assert {open_checkpoint(folder).state.mode, open_checkpoint(folder).action.mode} == {"QUANTILES"}
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        steps = json.loads((folder / name).read_text())["steps"]
        for step in steps:
            if "normalizer" in step["registry_name"]:
                step["config"]["norm_map"] |= {"STATE": "MIN_MAX", "ACTION": "MEAN_STD"}
        edit_json(folder / name, steps=steps)
    found = open_checkpoint(folder)
    low, high = (statistics()["observation.state"][stat] for stat in ("min", "max"))
    np.testing.assert_allclose(found.state.apply(np.stack((low, high))), [[-1.0] * 5, [1.0] * 5], atol=1e-5)
    mean, std = (statistics()["action"][stat] for stat in ("mean", "std"))
    np.testing.assert_allclose(found.action.revert(np.full(4, 2.0, np.float32)), mean + 2.0 * std, rtol=1e-6)


def test_processors_decide_the_number_of_prompt_tokens_whatever_the_config_says(folder):
    path = folder / "policy_preprocessor.json"
    steps = json.loads(path.read_text())["steps"]
    (step,) = [step for step in steps if step["registry_name"] == "tokenizer_processor"]
    step["config"]["max_length"] = 123
    edit_json(path, steps=steps)
    assert json.loads((folder / "config.json").read_text())["tokenizer_max_length"] != 123
    assert open_checkpoint(folder).sizes.num_prompt_tokens == 123
    step["config"]["max_length"] = 10**6
    edit_json(path, steps=steps)
    with pytest.raises(CheckpointError, match="num_prompt_tokens is 1000000"):
        open_checkpoint(folder)


def test_folder_of_another_family_is_refused_by_config_and_by_weights(folder, tmp_path):
    with pytest.raises(
        UsageError, match=r"a 'pi05' model of LeRobot, but policy 'pi0' reads pi0 only. Set policy\.type=pi05"
    ):
        open_checkpoint(folder, PI0)
    edit_json(folder / "config.json", type="pi0")  # a wrong config
    with pytest.raises(UsageError, match=r"holds pi05 \(its weights say so\), but policy 'pi0'"):
        open_checkpoint(folder, PI0)


def test_folder_of_a_policy_that_dovetail_reads_under_another_name_or_not_at_all(folder):
    for name, remedy in (
        ("act", "Set policy.type=act"),
        ("groot", "Dovetail reads pi0, pi05, smolvla, act and diffusion"),
    ):
        edit_json(folder / "config.json", type=name)
        for family in (None, PI05):
            with pytest.raises(UsageError, match=f"holds a '{name}' model of LeRobot.*{remedy}"):
                open_checkpoint(folder, family)
    assert set(READABLE) == {*FAMILIES, *POLICIES}


def test_every_refusal_says_what_to_do(folder, tmp_path):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n")
    with pytest.raises(CheckpointError, match=r"is only a pointer of Git LFS. Run `git lfs pull`"):
        open_checkpoint(folder)
    weights.write_bytes(content)
    edit_weights(folder, lambda found: found.update(extra=torch.zeros(1)))
    with pytest.raises(CheckpointError, match=r"has unexpected extra: pi05 has no such weights\. Use a folder"):
        open_checkpoint(folder).load(device=CPU, dtype=torch.float32)
    weights.unlink()
    with pytest.raises(UsageError, match=r"has no model\.safetensors.* Copy the folder again"):
        open_checkpoint(folder)
    with pytest.raises(UsageError, match=r"lerobot/pi05_base is not a folder.*models are not downloaded"):
        open_checkpoint(tmp_path / "lerobot/pi05_base")


def test_camera_that_does_not_exist_is_refused_on_both_sides(folder):
    with pytest.raises(SpecMismatch, match="'base_9_rgb', which the checkpoint does not have"):
        _ = policy_of(folder, images={"base_9_rgb": "front"}).spec
    with pytest.raises(SpecMismatch, match="robot 'arm' has no such camera"):
        _ = policy_of(folder, images={"base_0_rgb": "top"}).spec


def test_missing_tokenizer_is_refused_before_acting(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no tokenizer: .*paligemma-3b-pt-224.*policy\.tokenizer"):
        policy_of(folder).warmup()


def test_state_of_pi05_is_text_in_256_bins():
    # width 2 / 256: -1 is bin 0, 0 is bin 128, 0.999 and all above are bin 255, below -1 is -1
    state = np.array([-1.0, 0.0, 0.999, 7.0, -1.01, -1.0 + 2 / 256], np.float32)
    text = PI05.prompt(" lift_the\ncube ", state, False)
    assert text == "Task: lift the cube, State: 0 128 255 255 -1 1;\nAction: "


def test_state_in_the_prompt_of_pi05_is_padded_as_lerobot_0_4_did_if_told(folder):
    state = np.zeros(5, np.float32)
    assert policy_of(folder)._prompt("lift", state).count(" 128") == 5
    assert policy_of(folder, num_prompt_states=32)._prompt("lift", state).count(" 128") == 32
    with pytest.raises(SpecMismatch, match="num_prompt_states=3, but the state has 5 values"):
        policy_of(folder, num_prompt_states=3)._prompt("lift", state)


# ---- transformers' folders


def test_prompts_have_a_fixed_length_whatever_the_cameras(folder):
    for images in ({"base_0_rgb": "front"}, {"base_0_rgb": "front", "right_wrist_0_rgb": "wrist"}):
        policy = policy_of(folder, images=images)
        inputs = policy._inputs(observations(), np.zeros((1, 5), np.float32), torch.zeros(1, 5, 32))
        assert inputs.tokens.shape == (1, 200) and inputs.images.shape[1] == len(images)
    assert recorded("pi05")["tokens"].shape == (2, 200)


def test_transformers_has_no_pi05(tmp_path):
    folder = write_transformers(tmp_path / "stock")
    edit_json(folder / "config.json", model_type="pi05")
    with pytest.raises(
        UsageError, match=r"holds a 'pi05' model of transformers.* Use a folder of LeRobot or openpi"
    ):
        open_checkpoint(folder)


# ---- openpi's folders


def test_openpi_folder_is_told_by_its_weights(tmp_path):
    pi05, pi0 = write_openpi_pi05(tmp_path / "pi05"), write_openpi(tmp_path / "pi0")
    assert open_checkpoint(pi05).family is PI05 and open_checkpoint(pi0).family is PI0
    with pytest.raises(UsageError, match=r"holds pi05 .*but policy 'pi0' reads pi0 only"):
        open_checkpoint(pi05, PI0)
    with pytest.raises(UsageError, match=r"holds pi0 .*but policy 'pi05' reads pi05 only"):
        open_checkpoint(pi0, PI05)
    edit_weights(pi05, lambda weights: weights.pop("time_mlp_in.weight"))
    with pytest.raises(UsageError, match="weights of no known model"):
        open_checkpoint(pi05)


def test_openpi_widens_ranges_by_its_own_epsilon(tmp_path):
    checkpoint = open_checkpoint(write_openpi_pi05(tmp_path / "pi05"))
    low, high = (statistics()["observation.state"][stat].astype(np.float64) for stat in ("q01", "q99"))
    assert checkpoint.state.mode == "QUANTILES" and high[2] == low[2]
    np.testing.assert_allclose(checkpoint.state.scale, (high - low + 1e-6) / 2, rtol=1e-5)
    np.testing.assert_allclose(checkpoint.state.back_scale, checkpoint.state.scale)
    assert checkpoint.sizes.num_prompt_tokens == 200 and checkpoint.resizes_with_pil


def test_openpi_folder_has_absolute_actions_unless_told(tmp_path, monkeypatch):
    folder = write_openpi_pi05(tmp_path / "pi05")
    chunks = []
    for settings in ({}, {"relative_axes": ("j1", "j2")}):
        policy = policy_of(folder, **settings)
        given = {**observations(), "joints": np.full((1, 5), 0.5, np.float32)}
        chunks.append(policy.act(given, ActContext(deterministic=True)).actions)
    np.testing.assert_allclose(
        chunks[1] - chunks[0], np.broadcast_to([0.5, 0.5, 0.0, 0.0], chunks[0].shape), atol=1e-5
    )


def test_pi0_and_pi05_policies_share_everything_else(folder, tmp_path):
    pi0 = policy_of(write_recorded_folder("pi0", tmp_path / "pi0"), Pi0Policy)
    assert pi0.spec.horizon == policy_of(folder).spec.horizon == 5
    guided = policy_of(folder)
    chunk = guided.act(observations(), ActContext(seed=1)).actions
    prefix = chunk + 0.2
    nearer = guided.act(observations(), ActContext(seed=1, prefix=prefix, delay=3, horizon=1)).actions
    before, after = (np.abs(one - prefix)[:, :3].mean() for one in (chunk, nearer))
    assert after < 0.5 * before
