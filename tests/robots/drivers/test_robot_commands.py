"""`dovetail doctor`, `robot show` and `robot move` with each driver and its emulator: the first two command nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dovetail.api.readiness import robot_findings
from dovetail.cli.main import main
from dovetail.emulators.franka.emulator import FrankaEmulator, FrankaEmulatorConfig
from dovetail.emulators.igris_b.emulator import IgrisBEmulator, IgrisBEmulatorConfig
from dovetail.robots.drivers.lerobot.settings import SO_JOINTS
from dovetail.runs.assembly.robot_access import load_robot
from support.lerobot_arm import CAMERA, follower_config
from support.ros2_robots import free_domain, igris_settings
from support.waiting import wait_until

DRIVERS = ["franka", "ros2", "lerobot"]


@dataclass(frozen=True, kw_only=True)
class Rig:
    """An emulated robot, and what it was told."""

    robot: dict[str, Any]  # its section
    name: str
    num_commands: Callable[[], int]
    positions: Callable[[], Any]
    part: str
    axis: str
    index: int  # of this axis in the positions
    by: float
    tolerance: float


@contextmanager
def franka_rig() -> Iterator[Rig]:
    with FrankaEmulator(FrankaEmulatorConfig(port=0)) as emulator:
        yield Rig(
            robot={"type": "franka", "address": emulator.address, "gripper": "hil_serl_franka"},
            name="franka",
            num_commands=lambda: sum(
                count for path, count in emulator.endpoints.num_calls.items() if not path.startswith("/get")
            ),
            positions=lambda: np.array(emulator.arm.state()["pose"][:3]),
            part="arm",
            axis="2",
            index=1,
            by=0.03,
            tolerance=0.006,
        )


@contextmanager
def ros2_rig() -> Iterator[Rig]:
    domain_id = free_domain()
    with IgrisBEmulator(IgrisBEmulatorConfig(domain_id=domain_id, pose="start")) as emulator:
        yield Rig(
            robot={"type": "ros2", **igris_settings(domain_id)},
            name="igris_b",
            num_commands=lambda: emulator.num_commands,
            positions=lambda: np.roll(emulator.body.arms, 6),  # left first
            part="right_arm",
            axis="1",
            index=6,
            by=0.1,
            tolerance=0.02,
        )


@pytest.fixture
def rig(request, arm, monkeypatch, tmp_path) -> Iterator[Rig]:
    monkeypatch.chdir(tmp_path)
    if request.param == "lerobot":
        config = follower_config(arm, control_hz=20.0, config={"cameras": {"front": CAMERA}})
        arm.set_state()
        yield Rig(
            robot={"type": "lerobot", **config.model_dump()},
            name="so101_follower",
            num_commands=lambda: len(arm.events()) - len(arm.events("connect", "disconnect")),
            positions=lambda: np.radians([arm.positions[joint] for joint in SO_JOINTS]),
            part="arm",
            axis="elbow_flex",
            index=2,
            by=0.1,
            tolerance=0.005,
        )
    else:
        with {"franka": franka_rig, "ros2": ros2_rig}[request.param]() as found:
            yield found


def write(rig: Rig, **others: Any) -> str:
    Path("arm.yaml").write_text(yaml.safe_dump({"robot": rig.robot, **others}))
    return "arm.yaml"


@pytest.mark.parametrize("rig", DRIVERS, indirect=True)
def test_show_and_doctor_command_nothing(rig, capsys) -> None:
    start = rig.positions()
    assert main(["robot", "show", write(rig), "--once"]) == 0
    assert f"robot '{rig.name}'" in capsys.readouterr().out
    (first, *_) = robot_findings(load_robot(["arm.yaml"]))
    assert "observations per second" in first.detail, first.line
    assert rig.num_commands() == 0
    np.testing.assert_allclose(rig.positions(), start, atol=2e-3)


@pytest.mark.parametrize("rig", DRIVERS, indirect=True)
def test_move_moves_one_axis_in_small_steps(rig, capsys) -> None:
    wanted = rig.positions()
    wanted[rig.index] += rig.by
    options = ["--part", rig.part, "--axis", rig.axis, "--by", str(rig.by), "--yes"]
    assert main(["robot", "move", write(rig), *options]) == 0
    assert f"{rig.by:+g}" in capsys.readouterr().out
    assert rig.num_commands() > 5
    wait_until(lambda: np.allclose(rig.positions(), wanted, atol=rig.tolerance), timeout_s=3.0)


@pytest.mark.parametrize("rig", ["franka"], indirect=True)
def test_move_ends_at_the_workspace(rig) -> None:
    start = rig.positions()
    box = {"low": [0.2, -0.3, 0.05], "high": [0.7, float(start[1]) + 0.01, 0.6]}
    options = ["--part", "arm", "--axis", "2", "--by", "0.05", "--yes"]
    assert main(["robot", "move", write(rig, safety={"workspace": box}), *options]) == 0
    assert 0.003 < rig.positions()[1] - start[1] < 0.015


@pytest.mark.extended
@pytest.mark.parametrize("rig", ["lerobot"], indirect=True)
def test_doctor_of_a_whole_config_with_images_commands_nothing(rig, capsys) -> None:
    run = {
        "task": {"type": "table", "prompt": "move", "time_limit_s": 5},
        "operator": {"type": "support.demonstrating_person:Person"},
        "actor": {"type": "sequential", "layout": "processes"},
        "policy": {"type": "gaussian_mlp", "inputs": ["joint_pos", "gripper"]},
        "algorithm": "imitation",
    }
    assert main(["doctor", write(rig, **run)]) == 0, capsys.readouterr().out
    assert rig.num_commands() == 0
