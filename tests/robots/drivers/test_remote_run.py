"""Demonstrations on a remote arm with control, guard and recorder processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from dovetail.cli.main import main
from support import TESTS
from support.remote_arm import emulated, is_at_rest

CONFIG = {
    "task": {"type": "table", "prompt": "move", "time_limit_s": 5, "ask": "begin"},
    "operator": {"type": "support.demonstrating_person:Person"},
    "actor": {"type": "sequential", "layout": "processes"},
    "policy": {"type": "gaussian_mlp", "inputs": ["joint_pos", "gripper"]},
    "algorithm": "imitation",
}


@pytest.mark.extended
def test_demonstrations_are_recorded_on_a_remote_arm_with_a_camera(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(TESTS), str(TESTS.parent / "src"))))
    with emulated(control_hz=10.0, cameras=["front"]) as emulator:
        robot = {"type": "remote", **emulator.robot_settings(timeout_s=2.0, max_clock_error_s=0.5)}
        Path("arm.yaml").write_text(yaml.safe_dump({**CONFIG, "robot": robot}))
        assert main(["collect", "arm.yaml", "--demos", "2", "--name", "demos", "--quiet"]) == 0
        assert len(emulator.arm.commands) > 20
        assert emulator.arm.position()[0] > 0.1  # the person moved it
        assert is_at_rest(emulator)
        assert not emulator.server.robot.is_moving
        assert not emulator.server._sessions  # every process has closed its connections
    manifests = [json.loads(path.read_text()) for path in Path("runs/demos/episodes").glob("*/manifest.json")]
    assert [one["outcome"] for one in manifests].count("success") == 2
    for path in Path("runs/demos/episodes").glob("*/manifest.json"):
        assert list(path.parent.glob("frames-front*"))
