"""The example of docs/vla.md is complete: it passes the conformance check, acts on a camera and a prompt, and learns."""

import importlib
import sys

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext
from support.docs_pages import ROOT, files
from support.onpolicy_runs import PPO_RUN, build_training
from support.toy_arm import ROBOT

FILES = files((ROOT / "docs" / "vla.md").read_text())


@pytest.fixture
def page(tmp_path, monkeypatch):
    for name in ("my_vla.py", "my_vla.yaml", "test_my_vla.py"):
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in ("my_vla", "test_my_vla"):
        sys.modules.pop(module, None)


def test_example_is_short():
    lines = [line for line in FILES["my_vla.py"].splitlines() if line.strip()]
    assert len(lines) <= 36


def test_example_passes_its_own_test(page):
    importlib.import_module("test_my_vla").test_my_vla()


def test_example_acts_on_images_and_prompts(page):
    section = load(["push-cube-ppo", "my_vla.yaml"], ["policy.inputs=[joint_pos, front]"]).policy
    policy = section.build(robot=ROBOT, seed=0)
    inputs = {
        "joint_pos": np.zeros((2, 3), np.float32),
        "front": np.zeros((2, 20, 16, 3), np.uint8),
        "prompt": np.stack([encode_prompt("push the cube"), encode_prompt("lift it")]),
    }
    still = ActContext(deterministic=True)
    words = policy.act(inputs, still).actions
    assert not np.array_equal(words[0], words[1])  # the prompts differ
    inputs["front"] = np.full((2, 20, 16, 3), 200, np.uint8)
    assert not np.array_equal(policy.act(inputs, still).actions, words)


def test_example_learns_by_ppo(page):
    (page / "ppo.yaml").write_text(PPO_RUN)
    config = load([page / "ppo.yaml", "my_vla.yaml"], ["policy.inputs=[ee_pose, goal]"])
    training = build_training(config)
    before = training.policy_weights()["model"]["words.weight"]
    training.step()
    assert not np.array_equal(before, training.policy_weights()["model"]["words.weight"])
    training.close()
