"""FSDP: two gloo ranks, each with half of the weights and of the rows, learn what one process learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.setup import set_up
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.settings import Pi0Config
from support import vla_rank
from support.pi0_folders import write_lerobot

_NO_GRADIENT = (
    "vision/tower.layers"  # a bias of keys cancels in the softmax; Adam makes steps of its rounding errors
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lerobot(tmp_path_factory.mktemp("pi0") / "lerobot")


@pytest.mark.extended
@pytest.mark.parametrize(
    "settings",
    [
        {"train": "full"},
        {"train": "full", "freeze_vision": True, "recompute_layers": True},
        {"train": "lora"},
    ],
    ids=["full", "frozen vision, recomputed", "lora"],
)
def test_two_ranks_equal_one(folder, tmp_path, settings):
    policy = {"checkpoint": str(folder), **settings}
    out = tmp_path / "weights.npz"
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"policy": policy, "rendezvous": str(tmp_path / "meet"), "out": str(out)}))
    command = [sys.executable, vla_rank.__file__, str(file)]
    environment_root = str(Path(vla_rank.__file__).parents[1])
    ranks = [subprocess.Popen([*command, str(rank), "2"], cwd=environment_root) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    one = vla_rank.train(policy)
    found = dict(np.load(out))
    assert found.pop("__local__") == sum(p.numel() for p in one._parameters) / 2
    expected = {
        f"{name}/{key}": value for name, arrays in one.policy_weights().items() for key, value in arrays.items()
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if not (key.startswith(_NO_GRADIENT) and key.endswith("qkv.bias")):
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_compiled_layers_are_refused(folder):
    given = {"images": {"base_0_rgb": "front"}, "state": ("joint_pos", "gripper"), "device": "cpu"}
    config = Pi0Config(checkpoint=str(folder), compile_layers=True, **given)
    learner = Imitation(ImitationConfig(batch_size=6), policy=Pi0Policy(config, robot=vla_rank.arm()), seed=0)
    with pytest.raises(UsageError, match=r"compiled layers\. Set policy\.compile_layers=false"):
        set_up(learner, name="imitation", size=2, shard=True)
