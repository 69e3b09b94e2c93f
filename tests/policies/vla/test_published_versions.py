"""What a version of the weights costs and keeps: only what is trained, in its own dtype, through store and files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.core.bfloat16 import BFLOAT16
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.components import NORMALIZER
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.new_model import write_new_model
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.settings import LoraConfig, Pi0Config
from dovetail.weights.store import DiskWeightStore
from support.pi0_folders import write_json, write_lerobot

CPU = torch.device("cpu")
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={"joint_pos": ArraySpec(shape=(9,)), "front": ArraySpec(shape=(32, 32, 3), dtype="uint8")},
    action=ArraySpec(shape=(6,), low=(-9.0,) * 6, high=(9.0,) * 6),
    action_kind="joint_target",
    control_hz=10.0,
)
HALVES = {torch.bfloat16: BFLOAT16, torch.float16: np.dtype("float16")}


def make(folder, **settings):
    given = {"images": {"base_0_rgb": "front"}, "state": ("joint_pos",), "device": "cpu", **settings}
    return Pi0Policy(Pi0Config(checkpoint=str(folder), **given), robot=ROBOT, seed=3)


def size_mb(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def version_mb(policy, folder, *, trained):
    """Megabytes of the trained weights, and what one more version of them adds to the store."""
    store = DiskWeightStore(folder, keep=9)
    store.publish(policy.weights())
    before = size_mb(folder)
    for name in trained:
        for parameter in policy.components[name].parameters():
            parameter.data += 1.0
    store.publish(policy.weights())
    trained_mb = sum(p.nbytes for name in trained for p in policy.components[name].parameters()) / 1e6
    return trained_mb, size_mb(folder) - before


def small_model(folder):
    """20.9 million weights, 84 MB, with statistics."""
    write_new_model(folder, PI0, size="small", horizon=5)
    numbers = {
        key: {"mean": [0.0] * size, "std": [1.0] * size} for key, size in (("observation.state", 9), ("action", 6))
    }
    write_json(folder / "stats.json", numbers)
    return folder


def test_version_of_20_mb_of_lora_costs_20_mb(tmp_path):
    folder = small_model(tmp_path / "model")
    whole_mb = (folder / "model.safetensors").stat().st_size / 1e6
    lora = LoraConfig(rank=64, alpha=64.0)
    policy = make(folder, stats=str(folder / "stats.json"), train="lora", lora=lora)
    trained_mb, added_mb = version_mb(policy, tmp_path / "weights", trained=("lora",))
    assert whole_mb > 80.0 and 15.0 < trained_mb < 25.0
    assert trained_mb < added_mb < 1.01 * trained_mb


def test_version_of_an_expert_costs_only_the_expert(tmp_path):
    policy = make(write_lerobot(tmp_path / "pi0"), train="expert")
    trained_mb, added_mb = version_mb(policy, tmp_path / "weights", trained=("expert",))
    whole_mb = sum(p.nbytes for part in policy.components.values() for p in part.parameters()) / 1e6
    assert trained_mb < 0.5 * whole_mb
    assert trained_mb < added_mb < trained_mb + 0.02  # file headers and the manifest


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_folders_are_read_to_the_bit(tmp_path, dtype):
    folder = write_lerobot(tmp_path / "pi0")
    halves = {key: value.to(dtype) for key, value in load_file(folder / "model.safetensors").items()}
    save_file(halves, folder / "model.safetensors")
    name = "model.action_in_proj.weight"
    kept, widened = (open_checkpoint(folder).load(device=CPU, dtype=of) for of in (dtype, torch.float32))
    assert kept.action_in.weight.dtype == dtype
    assert torch.equal(kept.action_in.weight, halves[name])
    assert torch.equal(widened.action_in.weight, halves[name].float())


def test_bfloat16_weights_stay_bfloat16_from_policy_through_store_to_policy(tmp_path):
    folder = write_lerobot(tmp_path / "pi0")
    policy = make(folder, precision="bfloat16")
    policy.warmup()
    published = policy.weights()
    for component in ("vision", "text", "expert"):
        assert {array.dtype for array in published[component].values()} == {BFLOAT16}, component
    store = DiskWeightStore(tmp_path / "weights")
    version = store.publish(published)
    snapshot = DiskWeightStore(tmp_path / "weights").load(version)
    for component, arrays in published.items():
        for key, array in arrays.items():
            read = snapshot.components[component][key]
            assert read.dtype == array.dtype and read.tobytes() == array.tobytes(), f"{component}/{key}"
    other = make(folder, precision="bfloat16")
    other.load(snapshot)
    seen = {
        "joint_pos": np.ones((1, 9), np.float32),
        "front": np.zeros((1, 32, 32, 3), np.uint8),
        "prompt": encode_prompt("push the cube")[None],
    }
    ours, theirs = (one.act(seen, ActContext(seed=1)).actions for one in (policy, other))
    assert np.array_equal(ours, theirs)
    assert set(published) == {"vision", "text", "expert", NORMALIZER}
