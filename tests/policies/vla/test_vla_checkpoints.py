"""Weights of a user's model: safetensors, shards, and torch's files without running code from them."""

import json
import os

import numpy as np
import pytest
import safetensors.torch
import torch

from dovetail.config.schema import PluginSection
from dovetail.core.errors import CheckpointError, StoreError, UsageError
from dovetail.policies.torch_files import read_torch_file
from dovetail.runs.assembly.policy_components import build_policy, save_components
from support.toy_arm import DETERMINISTIC, ROBOT, observations
from support.user_models import ActsAndValues


def weights(seed=7):
    torch.manual_seed(seed)
    return ActsAndValues(action_dim=2, proprio_dim=5).state_dict()


def build(checkpoint, *, copies=None, **settings):
    section = {"type": "vla", "model_class": "support.user_models:ActsAndValues", "language": False, **settings}
    parsed = PluginSection.parse("policy", {**section, "checkpoint": str(checkpoint)})
    return build_policy(parsed, robot=ROBOT, seed=0, components=copies)


def write(path, state):
    """One file or folder in the layout that its name says."""
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    elif path.name == "shards.d":
        path.mkdir()
        files = {
            "model-00001-of-00002.safetensors": list(state)[:3],
            "model-00002-of-00002.safetensors": list(state)[3:],
        }
        for file, names in files.items():
            safetensors.torch.save_file({name: state[name] for name in names}, path / file)
        index = {"weight_map": {name: file for file, names in files.items() for name in names}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    elif path.suffix == ".d":
        path.mkdir()
        safetensors.torch.save_file(state, path / "model.safetensors")
    else:
        inside = {"whole.pt": {"global_step": 5, "policy": state}}.get(path.name, state)
        torch.save(inside, path)
    return path


@pytest.mark.parametrize("name", ["m.safetensors", "folder.d", "shards.d", "m.pth", "whole.pt"])
def test_every_layout_gives_the_same_model(tmp_path, name):
    policy = build(write(tmp_path / name, weights()))
    for key, value in weights().items():
        assert np.array_equal(policy.weights()["model"][key], value.numpy()), key


@pytest.mark.parametrize("name", ["m.safetensors", "m.pth"])
def test_bfloat16_weights_are_read_exactly(tmp_path, name):
    state = {key: value.to(torch.bfloat16) for key, value in weights().items()}
    policy = build(write(tmp_path / name, state))
    for key, value in state.items():
        assert np.array_equal(policy.weights()["model"][key], value.float().numpy()), key


@pytest.mark.parametrize("name", ["m.safetensors", "shards.d", "m.pth"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("log_std"), "component 'model' lacks log_std"),
        (lambda state: state.update(head=torch.zeros(2)), "component 'model' has unexpected head"),
        (lambda state: state.update(log_std=torch.zeros(3)), r"model/log_std is \(3,\), should be \(2,\)"),
        (lambda state: state["log_std"].fill_(torch.nan), "model/log_std holds non-finite numbers"),
    ],
)
def test_weights_that_do_not_fit_exactly_are_one_line(tmp_path, name, change, message):
    state = weights()
    change(state)
    with pytest.raises(StoreError, match=f"does not fit policy 'vla': .*{message}"):
        build(write(tmp_path / name, state))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("name", ["m.pth", "m.pt"])
def test_code_in_a_torch_file_is_not_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    torch.save({"policy": weights(), "extra": Evil()}, tmp_path / name)
    with pytest.raises(StoreError, match="torch reads without running code") as caught:
        build(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_damaged_torch_file_is_one_line(tmp_path):
    (tmp_path / "m.pth").write_bytes(write(tmp_path / "whole.pth", weights()).read_bytes()[:400])
    with pytest.raises(StoreError, match="is not a file of weights"):
        read_torch_file(tmp_path / "m.pth")


def test_torch_file_with_two_models_is_refused(tmp_path):
    torch.save({"policy": weights(), "model": weights()}, tmp_path / "m.pth")
    with pytest.raises(StoreError, match="both policy and model"):
        read_torch_file(tmp_path / "m.pth")


def test_missing_shard_is_named(tmp_path):
    folder = write(tmp_path / "shards.d", weights())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks model-00002-of-00002"):
        build(folder)


def test_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"policy\.checkpoint: .*nothing\.pth does not exist"):
        build(tmp_path / "nothing.pth")


def test_run_keeps_a_copy_of_the_checkpoint(tmp_path):
    path = write(tmp_path / "m.pth", weights())
    policy = build(path)
    save_components(policy, tmp_path / "parts")
    path.unlink()
    again = build(path, copies=tmp_path / "parts")
    assert np.array_equal(
        again.act(observations(), DETERMINISTIC).actions, policy.act(observations(), DETERMINISTIC).actions
    )


def test_frozen_model_stays_in_evaluation_mode(tmp_path):
    path = write(tmp_path / "m.pth", weights())
    policy = build(path, components={"model": {"frozen": True}})
    assert not any(p.requires_grad for p in policy.components["model"].parameters())
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    policy.imitation_loss(features, torch.zeros(4, 2))
    assert not policy.components["model"].training
