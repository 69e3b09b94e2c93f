"""The task `table` on emulated robots: home, a request, a demonstration by a person, in separate processes.

`test_remote_run.py` does the same over our own protocol, and `test_so101_learns.py` with LeRobot.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from dovetail.cli.main import main
from dovetail.emulators.emulator import EmulatorProcess, robot_computer_priority
from support import TESTS
from support.ros2_robots import free_domain, igris_settings

ARMS = {"left_arm": [-0.3, -0.5, 0.0, 2.0, 0.1, 0.0], "right_arm": [0.4, 0.5, 0.0, -2.0, 0.0, 0.1]}
POSITION = [0.45, 0.1, 0.3]


@contextlib.contextmanager
def franka() -> Iterator[dict[str, Any]]:
    """Cartesian steps: home is a position."""
    with EmulatorProcess("franka", "port=0", prefix=robot_computer_priority()) as emulator:
        address = emulator.lines[0].removeprefix("http://")
        robot = {"type": "franka", "address": address, "gripper": "hil_serl_franka", "timeout_s": 2.0}
        yield {"robot": robot, "policy": {"inputs": ["ee_pose", "force", "torque"]}, "home": {"arm": POSITION}}


@contextlib.contextmanager
def ros2() -> Iterator[dict[str, Any]]:
    """Two arms and two hands: home is joint angles."""
    domain_id = free_domain()
    with EmulatorProcess("igris_b", f"domain_id={domain_id}", "pose=start", prefix=robot_computer_priority()):
        robot = {"type": "ros2", **igris_settings(domain_id)}
        yield {"robot": robot, "policy": {"inputs": ["joint_pos"]}, "home": ARMS}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("driver", "key", "home"),
    [(franka, "ee_pose", POSITION), (ros2, "joint_pos", [*ARMS["left_arm"], *ARMS["right_arm"]])],
)
def test_each_demonstration_begins_at_home_and_a_person_judges_it(
    driver: Any, key: str, home: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(TESTS), str(TESTS.parent / "src"))))
    with driver() as settings:
        task = {
            "type": "table",
            "prompt": "move",
            "ask": "begin",
            "home": {"parts": settings["home"], "speed": 0.5},
        }
        config = {
            "robot": settings["robot"],
            "task": task,
            "operator": {"type": "support.demonstrating_person:Person"},
            "actor": {"type": "sequential", "layout": "processes"},
            "policy": {"type": "gaussian_mlp", **settings["policy"]},
            "algorithm": "imitation",
        }
        Path("table.yaml").write_text(yaml.safe_dump(config))
        assert main(["collect", "table.yaml", "--demos", "2", "--name", "demos", "--quiet"]) == 0
    folders = [path.parent for path in Path("runs/demos/episodes").glob("*/manifest.json")]
    outcomes = [json.loads((folder / "manifest.json").read_text())["outcome"] for folder in folders]
    assert outcomes == ["success", "success"]
    for folder in folders:
        seen = np.array(pq.read_table(folder / "steps.parquet")[f"observation/{key}"].to_pylist())
        np.testing.assert_allclose(seen[0][: len(home)], home, atol=0.04)
        assert seen[-1][0] - seen[0][0] > 0.02  # the person moved it
