"""`dovetail robot show|move|spec|server-file` and `dovetail doctor` against an emulated arm."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from dovetail.api.readiness import robot_findings
from dovetail.cli.main import main
from dovetail.robot_host.arm_lock import ArmLock
from dovetail.runs.assembly.robot_access import load_robot
from support.remote_arm import connected, emulated, wait_until


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An emulated arm, and the config file of its user."""
    monkeypatch.chdir(tmp_path)
    with emulated(control_hz=20.0, cameras=["front"], token_file=str(tmp_path / "robot.token")) as emulator:
        settings = emulator.robot_settings(timeout_s=5.0, max_clock_error_s=1.0)
        Path("arm.yaml").write_text(yaml.safe_dump({"robot": {"type": "remote", **settings}}))
        yield emulator


def test_spec_writes_a_config_that_loads_and_fits_the_robot(arm, capsys) -> None:
    assert main(["robot", "spec", arm.server.address, "--token-file", "robot.token", "--out", "new.yaml"]) == 0
    config = load_robot(["new.yaml"])
    assert config.robot.config.robot_spec() == arm.robot_config().robot_spec()
    assert main(["robot", "spec", arm.server.address, "--token-file", "robot.token"]) == 0
    assert yaml.safe_load(capsys.readouterr().out.split("\n", 1)[1])["robot"]["type"] == "remote"
    assert main(["robot", "spec", "nowhere", "--token-file", "robot.token"]) == 2
    assert main(["robot", "spec", arm.server.address, "--token-file", "no.token"]) == 2
    assert "cannot read token file no.token" in capsys.readouterr().err


def test_show_prints_state_rates_and_pictures_and_never_moves(arm, capsys) -> None:
    assert main(["robot", "show", "arm.yaml", "--once", "--pictures", "seen"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "robot 'emulated_arm'",
        "of 20 observations per second",
        "clock offset",
        "arm_3",
        "-2.5",
        "front",
    ):
        assert text in shown
    with Image.open("seen/front.png") as picture:
        assert picture.size == (64, 48)
    assert "front.png" in Path("seen/index.html").read_text()
    assert arm.arm.commands == []
    assert arm.arm.stops_ns == []


def test_show_leaves_a_robot_alone_that_another_process_moves(arm) -> None:
    with connected(arm) as controller:
        controller.observe()
        controller.send(np.zeros(7, np.float32))
        num_stops = len(arm.arm.stops_ns)
        done = []
        thread = threading.Thread(target=lambda: done.append(main(["robot", "show", "arm.yaml", "--once"])))
        thread.start()
        while thread.is_alive():
            controller.observe()
            controller.send(np.zeros(7, np.float32))
            time.sleep(0.02)
        assert len(arm.arm.stops_ns) == num_stops


def test_show_does_not_count_the_time_to_connect(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "slow_start.py").write_text(
        "import time\nfrom dovetail.testing.live import LiveArm\n\n\n"
        "class SlowStart(LiveArm):\n"
        "    connected = False\n\n"
        "    def observe(self):\n"
        "        if not self.connected:\n"
        "            time.sleep(3.0)\n"
        "        self.connected = True\n"
        "        return super().observe()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow.yaml").write_text("robot: {type: 'slow_start:SlowStart'}\n")
    assert main(["robot", "show", str(tmp_path / "slow.yaml"), "--once"]) == 0
    at_most = re.search(r"at most ([\d.]+) ms", capsys.readouterr().out)
    assert at_most is not None and float(at_most[1]) < 2900.0


def test_show_ends_by_itself_without_a_terminal(arm) -> None:
    command = [sys.executable, "-m", "dovetail.cli", "robot", "show", "arm.yaml"]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    assert shown.count("of 20 observations per second") == 1


@pytest.mark.parametrize("command", ["show", "move"])
def test_exception_of_a_driver_is_one_line_that_names_the_robot(command, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "lost_arm.py").write_text(
        "from dovetail.testing.live import LiveArm\n\n\n"
        "class LostArm(LiveArm):\n    def observe(self):\n        raise ValueError('no answer on port 3')\n"
    )
    (tmp_path / "lost.yaml").write_text("robot: {type: 'lost_arm:LostArm'}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {"show": ["--once"], "move": ["--part", "arm", "--axis", "1", "--by", "0.01", "--yes"]}[command]
    assert main(["robot", command, "lost.yaml", *options]) == 1
    expected = "error: observe() of robot 'live_arm' failed: ValueError: no answer on port 3\n"
    assert capsys.readouterr().err == expected


def test_show_reports_a_robot_that_is_gone(arm, capsys) -> None:
    arm.server.close()
    assert main(["robot", "show", "arm.yaml", "--once"]) == 1
    assert "Is its server running?" in capsys.readouterr().err


def test_move_moves_one_axis_slowly_and_stops(arm, capsys) -> None:
    began_s = time.monotonic()
    assert main(["robot", "move", "arm.yaml", "--part", "arm", "--axis", "3", "--by", "0.05", "--yes"]) == 0
    assert time.monotonic() - began_s > 0.3  # a tenth of 1.5 rad/s
    assert "moved from 0.0000 to 0.0500 rad" in capsys.readouterr().out
    assert np.allclose(arm.arm.position(), [0, 0, 0.05, 0, 0, 0, 0], atol=2e-3)
    assert arm.arm.stops_ns
    steps = np.abs(np.diff([action[2] for _, action in arm.arm.commands]))
    assert steps.max() < 0.15 / 20 * 1.5


@pytest.mark.parametrize(
    ("options", "because"),
    [
        (["--part", "arm", "--axis", "3", "--by", "3"], "outside its limits -2.5 to 2.5 rad"),
        (["--part", "leg", "--axis", "3", "--by", "3"], "no action part 'leg'"),
        (["--part", "arm", "--axis", "7", "--by", "0.1"], "no axis '7'"),
        (["--part", "arm", "--axis", "1", "--by", "0.1", "--arm", "left"], "no arm 'left'"),
    ],
)
def test_move_refuses_in_one_line(arm, capsys, options, because) -> None:
    assert main(["robot", "move", "arm.yaml", *options, "--yes"]) == 2
    error = capsys.readouterr().err
    assert because in error
    assert error.count("\n") == 1
    assert arm.arm.commands == []


def test_move_without_a_terminal_needs_yes(arm, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    assert main(["robot", "move", "arm.yaml", "--part", "arm", "--axis", "1", "--by", "0.1"]) == 2
    assert "Add --yes" in capsys.readouterr().err
    assert arm.arm.commands == []


def test_move_is_refused_while_a_run_moves_the_arm(arm, capsys) -> None:
    lock = ArmLock(load_robot(["arm.yaml"]).robot)
    lock.acquire()
    assert main(["robot", "move", "arm.yaml", "--part", "arm", "--axis", "1", "--by", "0.1", "--yes"]) == 1
    assert "moves this 'remote' robot already" in capsys.readouterr().err
    lock.close()
    assert arm.arm.commands == []


RUN = {
    "task": {"type": "table", "prompt": "move", "time_limit_s": 5},
    "operator": {"type": "support.demonstrating_person:Person"},
    "actor": {"type": "sequential", "layout": "processes"},
    "policy": {"type": "gaussian_mlp", "inputs": ["joint_pos", "gripper"]},
    "algorithm": "imitation",
}


def test_run_is_refused_in_one_line_while_move_moves_the_arm(arm, capsys) -> None:
    command = [sys.executable, "-m", "dovetail.cli", "robot", "move", "arm.yaml", "--part", "arm", "--axis", "1"]
    process = subprocess.Popen(
        [*command, "--by", "2", "--speed", "0.02", "--yes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert wait_until(lambda: arm.arm.position()[0] > 0.0, timeout_s=60.0)
        robot = yaml.safe_load(Path("arm.yaml").read_text())["robot"]
        Path("run.yaml").write_text(yaml.safe_dump({**RUN, "robot": {**robot, "timeout_s": 4.0}}))
        capsys.readouterr()
        assert main(["collect", "run.yaml", "--demos", "1", "--name", "demos", "--quiet"]) == 1
        error = capsys.readouterr().err
        assert f"error: process {process.pid} moves this 'remote' robot already. End it first" in error
        assert error.count("\n") == 1, error
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


@pytest.mark.parametrize(("answer", "num_expected"), [(b"n\n", 0), (b"y\n", 1)])
def test_move_asks_in_a_terminal(arm, answer, num_expected) -> None:
    main_end, child_end = pty.openpty()
    command = [sys.executable, "-m", "dovetail.cli", "robot", "move", "arm.yaml", "--part", "arm", "--axis", "1"]
    process = subprocess.Popen([*command, "--by", "0.1"], stdin=child_end, stdout=child_end, stderr=child_end)
    os.close(child_end)
    shown = b""
    while b"Move?" not in shown:
        shown += os.read(main_end, 1000)
    os.write(main_end, answer)
    code = process.wait(60)
    os.close(main_end)
    assert (code == 0) == bool(num_expected)
    assert bool(arm.arm.commands) == bool(num_expected)


def test_ctrl_c_stops_the_motion(arm) -> None:
    command = [sys.executable, "-m", "dovetail.cli", "robot", "move", "arm.yaml", "--part", "arm", "--axis", "1"]
    process = subprocess.Popen(
        [*command, "--by", "2", "--speed", "0.1", "--yes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert wait_until(lambda: arm.arm.position()[0] > 0.05, timeout_s=60.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert arm.arm.position()[0] < 1.0
    assert not arm.server.robot.is_moving


def test_doctor_reports_rate_latency_and_clock_and_does_not_move(arm) -> None:
    findings = list(robot_findings(load_robot(["arm.yaml"])))
    assert [finding.name for finding in findings] == ["robot", "robot link"]
    assert "of 20 observations per second, latency" in findings[0].detail
    assert "clock offset" in findings[1].detail
    assert arm.arm.commands == []
    assert arm.arm.stops_ns == []


@pytest.mark.parametrize(("fault", "because"), [("nan", "is not finite"), ("error", "bus does not answer")])
def test_doctor_reports_a_robot_that_misbehaves(arm, fault, because) -> None:
    arm.misbehave(fault)
    findings = list(robot_findings(load_robot(["arm.yaml"])))
    assert not findings[0].ok and findings[0].needed
    assert because in findings[0].line


def test_doctor_reports_a_robot_that_is_gone_and_asks_no_simulated_one(arm) -> None:
    arm.server.close()
    (finding,) = robot_findings(load_robot(["arm.yaml"]))
    assert not finding.ok
    assert "Is its server running?" in finding.line
    assert list(robot_findings(load_robot(["push-cube"]))) == []


def test_server_file_is_written(arm, capsys) -> None:
    assert main(["robot", "server-file", "--out", "dovetail_robot.pyz"]) == 0
    assert Path("dovetail_robot.pyz").read_bytes().startswith(b"#!/usr/bin/env python3\nPK")
    assert main(["robot", "server-file", "--out", "no/where.pyz"]) == 2
