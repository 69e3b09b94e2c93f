"""FSDP: two gloo ranks, each with half of the weights and of the rows, learn what one process learns."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.setup import set_up
from support import TESTS, vla_rank
from support.pi0_folders import write_lerobot
from support.small_vlas import SMALL_VLAS, write_small_vla

MAX_STEP, MAX_SHARE_OFF = 1e-3 * vla_rank.NUM_UPDATES, 1e-3  # the rate is 1e-3
_NO_GRADIENT = (
    "vision/tower.layers"  # a bias of keys cancels in the softmax; Adam makes steps of its rounding errors
)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("pi0", {"train": "full"}),
        ("pi0", {"train": "full", "freeze_vision": True, "recompute_layers": True}),
        ("pi0", {"train": "lora"}),
        ("pi05", {"train": "lora"}),
        ("smolvla", {"train": "full"}),
        ("smolvla", {"train": "lora"}),
    ],
    ids=[
        "pi0, full",
        "pi0, frozen vision, recomputed",
        "pi0, lora",
        "pi05, lora",
        "smolvla, full",
        "smolvla, lora",
    ],
)
def test_two_ranks_equal_one(tmp_path, family, settings):
    folder = tmp_path / "folder"
    if family == "pi0":
        write_lerobot(folder)
    else:
        write_small_vla(family, folder, horizon=vla_rank.HORIZON, stats=(9, 6))
    out, file = tmp_path / "weights.npz", tmp_path / "settings.json"
    given = {"family": family, "folder": str(folder), "policy": settings}
    file.write_text(json.dumps({**given, "rendezvous": str(tmp_path / "meet"), "out": str(out)}))
    command = [sys.executable, "-m", "support.vla_rank", str(file)]
    ranks = [subprocess.Popen([*command, str(rank), "2"], cwd=TESTS) for rank in range(2)]
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    one = vla_rank.train(family, folder, settings)
    found = dict(np.load(out))
    assert found.pop("__local__") == sum(p.numel() for p in one._parameters) / 2
    expected = {
        f"{name}/{key}": value for name, arrays in one.policy_weights().items() for key, value in arrays.items()
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if not (key.startswith(_NO_GRADIENT) and key.endswith("qkv.bias")):
            # where a gradient is almost 0, Adam makes steps of its rounding errors, but never larger than its rate
            np.testing.assert_allclose(found[key], value, atol=MAX_STEP, err_msg=key)
            if key.endswith(".down"):  # LoRA's B starts at 0, so the gradient of its A is almost 0 everywhere
                continue
            num_off = (~np.isclose(found[key], value, rtol=1e-4, atol=1e-5)).sum()
            assert num_off <= MAX_SHARE_OFF * value.size, key


def test_compiled_layers_are_refused(tmp_path):
    folder = write_small_vla("pi0", tmp_path / "folder", stats=(9, 6))
    state = ("joint_pos", "gripper")
    policy = SMALL_VLAS["pi0"].make(folder, robot=vla_rank.arm(), state=state, compile_layers=True)
    learner = Imitation(ImitationConfig(batch_size=6), policy=policy, seed=0)
    with pytest.raises(UsageError, match=r"compiled layers\. Set policy\.compile_layers=false"):
        set_up(learner, name="imitation", size=2, shard=True)
