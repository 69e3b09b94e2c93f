"""The one file for a robot's computer: it needs Python 3.8 and numpy, and serves a plain class."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dovetail.robots.drivers.remote.connection import spec_of
from dovetail.robots.drivers.remote.driver import RemoteRobot
from dovetail.robots.drivers.remote.robot_side.handshake import read_token
from dovetail.robots.drivers.remote.server_file import PACKAGE, server_file
from dovetail.robots.drivers.remote.settings import RemoteRobotConfig

ARM = """
import sys

class Arm:
    spec = {
        "name": "plain_arm",
        "control_hz": 10,
        "observation": {"joint_pos": {"shape": [2]}},
        "action": [{"name": "arm", "kind": "joint_target", "unit": "rad", "axes": 2, "low": -1.0, "high": 1.0,
                    "max_speed": 1.0, "measured": "joint_pos"}],
    }

    def __init__(self):
        self.joints = [0.25, -0.5]

    def observe(self):
        return {"joint_pos": self.joints}

    def send(self, action):
        self.joints = [float(x) for x in action]

    def stop(self):
        sys.stderr.write("STOP\\n")
        sys.stderr.write("loaded " + " ".join(sorted({name.partition(".")[0] for name in sys.modules})) + "\\n")
"""


@pytest.fixture
def computer(tmp_path: Path) -> Path:
    """A folder as on a robot's computer: our file, and a file of its owner."""
    (tmp_path / "dovetail_robot.pyz").write_bytes(server_file())
    (tmp_path / "plain_arm.py").write_text(ARM)
    return tmp_path


def _start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    path = str(Path(np.__file__).parents[1])  # numpy's folder, which has other packages too
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-S", *arguments, "plain_arm:Arm", "--port", "0"]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"robot 'plain_arm' at (\S+)", line):
            return found[1]
    raise AssertionError("".join(lines))


@pytest.mark.parametrize("how", [["dovetail_robot.pyz"], ["-m", "dovetail_robot"]])
def test_file_serves_a_plain_class_with_numpy_alone(computer: Path, how: list[str]) -> None:
    if how[0] == "-m":
        with zipfile.ZipFile(computer / "dovetail_robot.pyz") as archive:
            archive.extractall(computer)
    process = _start(computer, *how)
    try:
        address = _address(process)
        token_file = computer / "robot.token"
        spec = spec_of(address, read_token(token_file), timeout_s=10.0)
        config = {
            **spec,
            "address": address,
            "token_file": str(token_file),
            "timeout_s": 5.0,
            "max_clock_error_s": 1.0,
        }
        robot = RemoteRobot(RemoteRobotConfig.from_mapping(config))
        assert robot.observe().values["joint_pos"].tolist() == [0.25, -0.5]
        assert robot.send(np.array([0.5, 0.0], np.float32)).tolist() == [0.5, 0.0]
        assert robot.observe().values["joint_pos"].tolist() == [0.5, 0.0]
        robot.close()
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "STOP" in rest  # at the latest when it ends
    loaded = re.findall(r"^loaded (.*)$", rest, re.MULTILINE)[-1].split()
    assert "numpy" in loaded and PACKAGE in loaded
    assert not {"dovetail", "torch", "ray", "pydantic", "mujoco"} & set(loaded)


def test_sources_are_python_38_and_import_only_the_standard_library_and_numpy(computer: Path) -> None:
    with zipfile.ZipFile(computer / "dovetail_robot.pyz") as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {"__main__.py", f"{PACKAGE}/server.py", f"{PACKAGE}/wire.py"} <= set(sources)
    allowed = {*sys.stdlib_module_names, "numpy", PACKAGE}
    for name, text in sources.items():
        tree = ast.parse(text, name, feature_version=(3, 8))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= allowed, name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").partition(".")[0] in allowed, name


def test_wrong_arguments_end_with_one_line(computer: Path) -> None:
    def fails(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "dovetail_robot.pyz", *arguments],
            cwd=computer,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "MODULE:CLASS" in fails("plain_arm")
    assert "cannot load plain_arm:Leg" in fails("plain_arm:Leg")
    (computer / "robot.token").write_text("short")
    (computer / "robot.token").chmod(0o600)
    assert "has 5 characters" in fails("plain_arm:Arm", "--port", "0")
    (computer / "broken.py").write_text(ARM.replace('"low": -1.0', '"low": 2.0'))
    (computer / "robot.token").unlink()
    assert "low below high" in fails("broken:Arm", "--port", "0")
