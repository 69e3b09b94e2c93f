"""The example of docs/vla.md is complete: it passes the conformance check, acts on a camera and a prompt, and learns."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.prompts import encode_prompt
from dovetail.core.types import ActContext
from support.docs_pages import ROOT, files
from support.onpolicy_runs import PPO_RUN, build_training
from support.toy_arm import ROBOT

PAGE = (ROOT / "docs" / "vla.md").read_text()
FILES = files(PAGE)


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


@pytest.mark.extended
def test_first_steps_run_as_they_are_written(tmp_path):
    (block,) = re.findall(r"<!-- test: first steps -->\n```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    pip, *lines = block.splitlines()
    assert pip.startswith("pip install") and len(lines) == 6
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dovetail").symlink_to(Path(sys.executable).with_name("dovetail"))
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "RANDOM weights" in done.stdout and "error per axis" in done.stdout and "of 2" in done.stdout
    assert not re.search("error:|warning", done.stderr, re.IGNORECASE)
    assert (tmp_path / "runs/vla-try/open_loop/push_data/errors.json").is_file()
