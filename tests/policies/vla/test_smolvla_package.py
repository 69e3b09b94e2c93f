"""The real `lerobot` package loads a SmolVLA folder that ours wrote, and acts as ours does.

`scripts/lerobot-env` makes its environment the first time, which takes minutes and the network; LEROBOT_ENV sets where
else one is.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.vla.checkpoints.folder import open_checkpoint
from dovetail.policies.vla.checkpoints.lerobot_writer import write_lerobot
from dovetail.policies.vla.settings import SmolVLAConfig
from dovetail.policies.vla.smolvla_policy import SmolVLAPolicy
from support import SUPPORT
from support.hashed_numbers import hashed, hashed_frames
from support.smolvla_folders import write_smolvla

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "joints": ArraySpec(shape=(9,)),
        "top": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        "wrist": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(6,), low=(-9.0,) * 6, high=(9.0,) * 6),
    action_kind="joint_target",
    control_hz=10.0,
)


def run_lerobot(*arguments):
    environment = Path(os.environ.get("LEROBOT_ENV", REPOSITORY / ".venv-lerobot"))
    subprocess.run([REPOSITORY / "scripts" / "lerobot-env", environment], check=True)
    done = subprocess.run(
        [environment / "bin" / "python", SUPPORT / "lerobot_smolvla_script.py", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def write_changed(source, folder):
    """Write a folder in which every parameter of our network differs from the source's."""
    checkpoint = open_checkpoint(source)
    network = checkpoint.load(device=torch.device("cpu"), dtype=torch.float32)
    changed = {
        name: parameter + 0.02 * torch.from_numpy(hashed(f"change of {name}", tuple(parameter.shape)))
        for name, parameter in network.named_parameters()
    }
    write_lerobot(folder, checkpoint, changed=changed)


def test_folder_that_ours_wrote_acts_the_same_in_the_real_package(tmp_path):
    folder = tmp_path / "folder"
    write_changed(write_smolvla(tmp_path / "source"), folder)
    run_lerobot("act", folder, tmp_path / "out.safetensors")
    theirs = load_file(tmp_path / "out.safetensors")["actions"].numpy()
    config = SmolVLAConfig(checkpoint=str(folder), images={"top": "top", "wrist": "wrist"}, device="cpu")
    policy = SmolVLAPolicy(config, robot=ROBOT)
    policy._noise = lambda num_rows, context: 2.0 * torch.from_numpy(hashed("noise", (2, 5, 32)))
    observations = {
        "joints": hashed("state", (2, 9)),
        "top": hashed_frames("top", (2, 48, 64, 3)),
        "wrist": hashed_frames("wrist", (2, 48, 64, 3)),
        "prompt": np.stack([encode_prompt(text) for text in ("push the cube", "push")]),
    }
    ours = policy.act(observations, ActContext(seed=0)).actions
    np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=1e-5)


def test_recording_again_gives_what_is_committed(tmp_path):
    """The recording is what the real package computes, and nobody edited it."""
    run_lerobot("record", tmp_path / "again")
    committed = SUPPORT.parent / "fixtures" / "lerobot_smolvla"
    assert {path.name for path in committed.iterdir()} <= {path.name for path in (tmp_path / "again").iterdir()}
    for name in ("recorded.safetensors", "preprocessing.safetensors"):
        again, before = load_file(tmp_path / "again" / name), load_file(committed / name)
        assert again.keys() == before.keys()
        for key, value in before.items():
            torch.testing.assert_close(again[key], value, atol=1e-5, rtol=1e-5, msg=key)
    for name in ("config.json", "policy_preprocessor.json", "shapes.json"):
        assert (tmp_path / "again" / name).read_text() == (committed / name).read_text()
