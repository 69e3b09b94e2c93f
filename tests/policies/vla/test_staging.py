"""A VLA takes new weights while it acts: what is trained is in memory twice, and nothing changes before the exchange."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from dovetail.core.abilities import StagesWeights
from dovetail.core.bfloat16 import as_float32
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.settings import LoraConfig
from dovetail.policies.vla.smolvla_policy import SmolVLAPolicy
from dovetail.robot_host.following_policy import FollowingPolicy
from support.pi0_folders import write_lerobot
from support.smolvla_folders import write_smolvla

ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={"joint_pos": ArraySpec(shape=(9,)), "front": ArraySpec(shape=(32, 32, 3), dtype="uint8")},
    action=ArraySpec(shape=(6,), low=(-9.0,) * 6, high=(9.0,) * 6),
    action_kind="joint_target",
    control_hz=10.0,
)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
WAYS = [
    pytest.param({"device": "cpu"}, id="cpu"),
    pytest.param({"device": "cuda", "execution": "graph"}, id="graph", marks=GPU),
    pytest.param({"device": "cuda", "execution": "compiled_graph"}, id="compiled-graph", marks=GPU),
]
TRAINED = {"full": {"vision", "text", "expert"}, "expert": {"expert"}, "lora": {"lora"}}


FAMILIES = {
    "pi0": (Pi0Policy, write_lerobot, {"base_0_rgb": "front"}),
    "smolvla": (SmolVLAPolicy, write_smolvla, {"top": "front", "wrist": "front"}),
}


class Folder(NamedTuple):
    family: str
    path: Path


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return Folder(request.param, FAMILIES[request.param][1](tmp_path_factory.mktemp("vla") / "lerobot"))


def make(folder, train, **settings):
    policy, _, images = FAMILIES[folder.family]
    config = policy.Config(
        checkpoint=str(folder.path),
        images=images,
        state=("joint_pos",),
        train=train,
        lora=LoraConfig(rank=2, alpha=4.0),
        **settings,
    )
    return policy(config, robot=ROBOT, seed=3)


def changed(policy, *, by):
    """Its weights, where every trained value is larger by a part of its size."""
    rng = np.random.default_rng(1)
    found = {}
    for name, arrays in policy.weights().items():
        found[name] = dict(arrays)
        if name in TRAINED[policy._config.train]:
            for key, value in arrays.items():
                plain = as_float32(value)
                noise = rng.normal(size=plain.shape).astype(np.float32)
                found[name][key] = plain + by * (np.abs(plain).mean() + 0.02) * noise
    return WeightSnapshot(version=9, components=found, hashes={})


def observations():
    rng = np.random.default_rng(0)
    return {
        "joint_pos": rng.normal(size=(1, 9)).astype(np.float32),
        "front": rng.integers(0, 256, (1, 32, 32, 3), dtype=np.uint8),
        "prompt": encode_prompt("push the cube")[None],
    }


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("settings", WAYS)
@pytest.mark.parametrize("train", TRAINED)
def test_staged_weights_act_after_the_exchange_and_not_before(folder, train, settings):
    policy, expected = make(folder, train, **settings), make(folder, train, **settings)
    assert isinstance(policy, StagesWeights)
    policy.warmup()
    inputs, context = observations(), ActContext(deterministic=True, seed=1)
    before = policy.act(inputs, context).actions
    snapshot = changed(policy, by=2.0 if train == "lora" else 0.3)
    expected.load(snapshot)  # before its first chunk, so that no graph is older than the weights
    wanted = expected.act(inputs, context).actions
    use = policy.stage(snapshot)
    assert np.array_equal(policy.act(inputs, context).actions, before)
    use()
    found = policy.act(inputs, context)
    assert found.policy_version == 9
    assert distance(before, wanted) > 0.1
    assert distance(found.actions, wanted) <= (0.0 if settings["device"] == "cpu" else 0.02)


def test_adapters_are_in_the_network_before_the_first_chunk(folder):
    """A CUDA graph that was captured without them would ignore new weights."""
    policy = make(folder, "lora", device="cpu")
    policy.warmup()
    updates = {parameter for update in policy.lora.updates.values() for parameter in update.parameters()}
    assert updates and updates <= set(policy.network.parameters())


@pytest.mark.parametrize("train", TRAINED)
def test_following_builds_a_vla_once(folder, train):
    """A whole second model would need another 7 GB."""
    built = []

    def build():
        built.append(make(folder, train, device="cpu"))
        return built[-1]

    following = FollowingPolicy(build, takes_weights=True)
    following.use(changed(built[0], by=0.3))
    assert len(built) == 1
    assert following.act(observations(), ActContext(deterministic=True)).policy_version == 9
