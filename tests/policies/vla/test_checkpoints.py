"""Folders of LeRobot, transformers and openpi: loaded exactly, or refused in one line that names the problem."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.families.pi0 import PI0
from support.pi0_folders import (
    PALIGEMMA,
    edit_json,
    lerobot_config,
    write_json,
    write_lerobot,
    write_old_lerobot,
    write_openpi,
    write_transformers,
)
from support.tiny_pi0 import reference_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    return {
        "lerobot": write_lerobot(root / "lerobot"),
        "lerobot base": write_lerobot(root / "base", prefix=""),
        "old lerobot": write_old_lerobot(root / "old"),
        "openpi": write_openpi(root / "openpi"),
        "transformers": write_transformers(root / "transformers"),
        "sharded": write_transformers(root / "sharded", max_shard_size="40KB"),
    }


@pytest.fixture
def folder(originals, tmp_path):
    """A LeRobot folder to damage."""
    return shutil.copytree(originals["lerobot"], tmp_path / "copy")


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def load(folder):
    return open_checkpoint(folder).load(device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("layout", ["lerobot", "lerobot base", "old lerobot", "openpi", "transformers", "sharded"])
def test_every_layout_gives_the_published_weights(originals, layout):
    if layout == "sharded":
        assert len(list(originals[layout].glob("model-*.safetensors"))) > 2
    network = load(originals[layout])
    assert network.sizes.vision == PALIGEMMA.vision and network.sizes.expert == PALIGEMMA.expert
    expected = reference_model(PALIGEMMA).state_dict()
    ours = dict(network.named_parameters())
    first = "model.vlm.language_model.layers.1.self_attn."
    joined = torch.cat([expected[f"{first}{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(ours["text_layers.1.qkv.weight"], joined)
    assert torch.equal(ours["embedding.weight"], expected["model.vlm.language_model.embed_tokens.weight"])
    for parameter in ours.values():  # nothing is left as memory happened to be
        assert parameter.isfinite().all()
    again = load(originals["lerobot"])
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, ours[name]), name


def test_statistics_come_from_processors_old_weights_or_assets(originals):
    for layout, epsilon in (("lerobot", 1e-8), ("old lerobot", 1e-8), ("openpi", 1e-6)):
        checkpoint = open_checkpoint(originals[layout])
        assert checkpoint.state.size == 9 and checkpoint.action.size == 6
        np.testing.assert_allclose(checkpoint.state.scale[0], 0.5 + epsilon, rtol=1e-7)
        np.testing.assert_allclose(checkpoint.action.shift[-1], 0.003, rtol=1e-6)
    assert open_checkpoint(originals["transformers"]).state is None  # never LIBERO's defaults


def test_missing_keys_are_refused_by_name_and_never_left_random(folder):
    key = "model.paligemma_with_expert.gemma_expert.model.layers.1.mlp.up_proj.weight"
    edit_weights(folder, lambda weights: weights.pop(key))
    with pytest.raises(CheckpointError, match=f"lacks {key}"):
        load(folder)


def test_unexpected_keys_are_refused_by_name(folder):
    edit_weights(folder, lambda weights: weights.update({"model.lora_A.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"unexpected model\.lora_A\.weight"):
        load(folder)


def test_wrong_shapes_are_refused_with_both_shapes(folder):
    edit_weights(folder, lambda weights: weights.update({"model.state_proj.weight": torch.zeros(24, 30)}))
    with pytest.raises(CheckpointError, match=r"model\.state_proj\.weight \[24, 30\] should be \[24, 32\]"):
        load(folder)


def test_weights_that_are_not_finite_are_refused(folder):
    edit_weights(folder, lambda weights: weights["model.state_proj.bias"].fill_(torch.nan))
    with pytest.raises(CheckpointError, match=r"state_proj\.bias' holds numbers that are not finite"):
        load(folder)


def test_truncated_shard_is_refused_by_its_name(originals, tmp_path):
    folder = shutil.copytree(originals["sharded"], tmp_path / "copy")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=f"{shard.name} is damaged or truncated"):
        open_checkpoint(folder)
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"lacks {shard.name}"):
        open_checkpoint(folder)


def test_index_that_leads_out_of_the_folder_is_refused(originals, tmp_path):
    folder = shutil.copytree(originals["sharded"], tmp_path / "copy")
    index = folder / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map=dict.fromkeys(names, "../other.safetensors"))
    with pytest.raises(CheckpointError, match="not a plain name"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "smolvla"}, "holds a 'smolvla' model of LeRobot"),
        ({"model_type": "llama"}, "holds a 'llama' model of transformers"),
        ({"hidden_size": 3}, "of no known format"),
    ],
)
def test_folder_of_another_family_is_refused(folder, config, message):
    write_json(folder / "config.json", config)
    with pytest.raises(UsageError, match=message):
        open_checkpoint(folder, PI0)


def test_openpi_folder_is_told_by_its_weights(originals, tmp_path):
    folder = shutil.copytree(originals["openpi"], tmp_path / "copy")
    edit_weights(folder, lambda weights: weights.pop("action_time_mlp_in.weight"))
    with pytest.raises(UsageError, match="weights of no known model"):
        open_checkpoint(folder, PI0)


def test_pickles_and_jax_checkpoints_are_not_read(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"pytorch_model\.bin may be a pickle"):
        open_checkpoint(folder)
    (tmp_path / "jax" / "params").mkdir(parents=True)
    with pytest.raises(UsageError, match="JAX checkpoint"):
        open_checkpoint(tmp_path / "jax")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"registry_name": "crop_processor", "config": {}}, "step 'crop_processor', which is unknown"),
        ({"class": "os.system", "config": {}}, "class 'os.system', which would import code"),
    ],
)
def test_unknown_processor_steps_and_classes_are_refused(folder, step, message):
    path = folder / "policy_preprocessor.json"
    edit_json(path, steps=[*json.loads(path.read_text())["steps"], step])
    with pytest.raises(UsageError, match=message):
        open_checkpoint(folder)


def test_folder_without_statistics_has_none_and_a_missing_file_is_refused(folder):
    state = folder / "policy_preprocessor_step_5_normalizer_processor.safetensors"
    save_file({"unrelated": torch.zeros(1)}, state)
    assert open_checkpoint(folder).state is None
    state.unlink()
    with pytest.raises(CheckpointError, match=f"lacks {state.name}"):
        open_checkpoint(folder)


def test_statistics_of_other_sizes_than_the_config_are_refused(folder):
    changed = lerobot_config()["input_features"] | {"observation.state": {"type": "STATE", "shape": [7]}}
    edit_json(folder / "config.json", input_features=changed)
    with pytest.raises(CheckpointError, match=r"have 9 values, but config\.json has 7"):
        open_checkpoint(folder)


def test_several_assets_need_a_choice(tmp_path):
    folder = write_openpi(tmp_path / "two", assets=("droid", "franka"))
    assert open_checkpoint(folder).state is None
    assert open_checkpoint(folder).assets == ("assets/droid/norm_stats.json", "assets/franka/norm_stats.json")
    chosen = open_checkpoint(folder, stats=folder / "assets/droid/norm_stats.json")
    assert chosen.state.size == 9


def test_incomplete_config_is_refused(folder):
    config = lerobot_config()
    del config["chunk_size"]
    write_json(folder / "config.json", config)
    with pytest.raises(CheckpointError, match=r"config\.json is incomplete .*chunk_size"):
        open_checkpoint(folder)
