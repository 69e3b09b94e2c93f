"""LeRobot's folders with SmolVLA: loaded exactly, or refused in one line that names the problem."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.checkpoints.lerobot_writer import write_lerobot as write_lerobot_folder
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.families.smolvla import SMOLVLA
from support.pi0_folders import edit_json, write_lerobot
from support.smolvla_folders import published_weights, write_old_smolvla, write_smolvla

CPU = torch.device("cpu")
TEXT = "model.vlm_with_expert.vlm.model.text_model."
EXPERT = "model.vlm_with_expert.lm_expert."


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_smolvla(tmp_path_factory.mktemp("smolvla") / "folder")


@pytest.fixture
def folder(original, tmp_path):
    """A folder to damage."""
    return shutil.copytree(original, tmp_path / "copy")


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def load(folder):
    return open_checkpoint(folder, SMOLVLA).load(device=CPU, dtype=torch.float32)


def test_folder_of_the_real_package_gives_every_weight(original):
    ours, theirs = dict(load(original).named_parameters()), published_weights()
    joined = torch.cat([theirs[f"{EXPERT}layers.2.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(ours["expert_layers.2.qkv.weight"], joined)
    assert torch.equal(ours["expert_layers.1.k.weight"], theirs[f"{EXPERT}layers.1.self_attn.k_proj.weight"])
    assert torch.equal(ours["embedding.weight"], theirs[f"{TEXT}embed_tokens.weight"])
    unused = {f"{TEXT}norm.weight", "model.vlm_with_expert.vlm.lm_head.weight"}
    assert sum(p.numel() for p in ours.values()) == sum(v.numel() for k, v in theirs.items() if k not in unused)


def test_sizes_cameras_and_modes_follow_from_the_folder(original):
    checkpoint = open_checkpoint(original)  # without a family, the folder decides
    sizes = checkpoint.sizes
    assert checkpoint.family is SMOLVLA and checkpoint.cameras == ("top", "wrist")
    assert (sizes.horizon, sizes.num_prompt_tokens, sizes.num_flow_steps, sizes.image_size) == (5, 8, 10, 64)
    assert (sizes.text.num_layers, sizes.text.num_heads, sizes.text.num_kv_heads) == (4, 4, 2)
    assert (sizes.vision.join, sizes.vision.num_tokens, sizes.self_attention_every) == (2, 4, 2)
    assert checkpoint.max_absent_cameras == 0


def test_statistics_come_from_processors_or_old_weights(original, tmp_path):
    for checkpoint in (open_checkpoint(original), open_checkpoint(write_old_smolvla(tmp_path / "old"))):
        np.testing.assert_allclose(checkpoint.state.scale[0], 0.5 + 1e-8, rtol=1e-7)
        np.testing.assert_allclose(checkpoint.action.shift[-1], 0.003, rtol=1e-6)
        np.testing.assert_allclose(checkpoint.action.back_scale[-1], 0.02, rtol=1e-6)


def test_statistics_of_several_robots_inside_the_weights_are_not_guessed(tmp_path):
    """The first base folders had them under names such as normalize_inputs.so100-red_buffer_observation_state."""
    folder = write_old_smolvla(tmp_path / "old")

    def rename(weights):
        for key in [key for key in weights if ".buffer_" in key]:
            weights[key.replace(".buffer_", ".so100-red_buffer_")] = weights.pop(key)

    edit_weights(folder, rename)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.state is None and checkpoint.action is None


def test_cameras_without_images_in_their_name_are_found_by_their_type(folder):
    config = json.loads((folder / "config.json").read_text())
    camera, state = {"type": "VISUAL", "shape": [3, 256, 256]}, config["input_features"]["observation.state"]
    features = {"observation.image2": camera, "observation.state": state, "observation.image": camera}
    edit_json(folder / "config.json", input_features=features)
    assert open_checkpoint(folder).cameras == ("image2", "image")


def test_written_folder_has_the_same_weights_statistics_and_settings(folder, tmp_path):
    edit_json(folder / "config.json", empty_cameras=1, self_attn_every_n_layers=2)
    before = open_checkpoint(folder)
    write_lerobot_folder(tmp_path / "new", before, changed={"state_in.bias": torch.full((48,), 7.0)})
    after = open_checkpoint(tmp_path / "new", SMOLVLA)
    assert after.sizes == before.sizes and after.cameras == before.cameras and after.max_absent_cameras == 1
    assert np.array_equal(after.state.scale, before.state.scale) and np.array_equal(
        after.action.shift, before.action.shift
    )
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "new").iterdir()}
    old, new = load_file(folder / "model.safetensors"), load_file(tmp_path / "new" / "model.safetensors")
    assert old.keys() == new.keys()  # also the head, which acting does not use
    for key, value in new.items():
        expected = torch.full((48,), 7.0) if key == "model.state_proj.bias" else old[key]
        assert torch.equal(value, expected), key


# ---- refusals


def test_folders_of_another_family_are_refused_in_both_directions(original, tmp_path):
    with pytest.raises(UsageError, match=r"holds a 'smolvla' model of LeRobot, but policy 'pi0' reads pi0 only"):
        open_checkpoint(original, PI0)
    pi0 = write_lerobot(tmp_path / "pi0")
    with pytest.raises(
        UsageError, match=r"holds a 'pi0' model of LeRobot, but policy 'smolvla' reads smolvla only"
    ):
        open_checkpoint(pi0, SMOLVLA)
    edit_json(pi0 / "config.json", type="smolvla")
    with pytest.raises(UsageError, match=r"holds pi0 \(its weights say so\)"):
        open_checkpoint(pi0, SMOLVLA)


@pytest.mark.parametrize(
    "key", ["model.state_proj.weight", f"{EXPERT}layers.1.self_attn.k_proj.weight", f"{TEXT}embed_tokens.weight"]
)
def test_missing_keys_are_refused_by_name_and_never_left_random(folder, key):
    edit_weights(folder, lambda weights: weights.pop(key))
    with pytest.raises(CheckpointError, match=f"lacks {key}.*complete smolvla needs"):
        load(folder)


def test_unexpected_keys_are_refused_by_name(folder):
    edit_weights(folder, lambda weights: weights.update({f"{EXPERT}layers.1.lora_A.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"unexpected .*lora_A\.weight"):
        load(folder)


def test_wrong_shapes_are_refused_with_both_shapes(folder):
    edit_weights(folder, lambda weights: weights.update({"model.state_proj.weight": torch.zeros(48, 30)}))
    with pytest.raises(CheckpointError, match=r"model\.state_proj\.weight \[48, 30\] should be \[48, 32\]"):
        load(folder)


def test_layers_that_attend_in_another_order_have_other_shapes(folder):
    """Weights of cross-attention do not fit layers of self-attention."""
    edit_json(folder / "config.json", self_attn_every_n_layers=1)
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.k_proj\.weight \[128, 128\]"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adapt_to_pi_aloha": True}, "adapt_to_pi_aloha=true, which is unknown"),
        ({"add_image_special_tokens": True}, "add_image_special_tokens=true, which is unknown"),
        ({"resize_imgs_with_padding": [512, 512]}, r"resizes images to \[512, 512\].*weights take 64 x 64"),
        ({"resize_imgs_with_padding": None}, "resizes images to None"),
        ({"num_vlm_layers": 16}, "has 4 text layers, but config.json has num_vlm_layers=16"),
        ({"chunk_size": "many"}, "incomplete or contradicts itself"),
    ],
)
def test_settings_that_are_unknown_or_contradict_the_weights_are_refused(folder, change, message):
    edit_json(folder / "config.json", **change)
    with pytest.raises((UsageError, CheckpointError), match=message):
        open_checkpoint(folder, SMOLVLA)


@pytest.mark.parametrize("has_processors", [True, False])
def test_images_that_are_normalized_are_refused(folder, has_processors):
    path = folder / "policy_preprocessor.json"
    steps = json.loads(path.read_text())["steps"]
    for step in steps:
        if step["registry_name"] == "normalizer_processor":
            step["config"]["norm_map"]["VISUAL"] = "MEAN_STD"
    edit_json(path, steps=steps)
    if not has_processors:
        edit_json(folder / "config.json", normalization_mapping={"VISUAL": "MEAN_STD"})
        path.unlink()
    with pytest.raises(UsageError, match="normalizes images by MEAN_STD, which smolvla does not"):
        open_checkpoint(folder, SMOLVLA)


def test_expert_with_fewer_layers_is_refused(folder):
    edit_weights(
        folder, lambda weights: [weights.pop(key) for key in list(weights) if key.startswith(f"{EXPERT}layers.3.")]
    )
    with pytest.raises(CheckpointError, match="text model and action expert differ in num_layers: 4 and 3"):
        open_checkpoint(folder, SMOLVLA)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            {"registry_name": "pi0_new_line_processor", "config": {}},
            "step 'pi0_new_line_processor', which is unknown",
        ),
        ({"class": "os.system", "config": {}}, "class 'os.system', which would import code"),
    ],
)
def test_steps_of_other_families_and_classes_are_refused(folder, step, message):
    path = folder / "policy_preprocessor.json"
    edit_json(path, steps=[*json.loads(path.read_text())["steps"], step])
    with pytest.raises(UsageError, match=message):
        open_checkpoint(folder, SMOLVLA)
