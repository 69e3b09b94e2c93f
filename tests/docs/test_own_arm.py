"""docs/robots/own.md as its reader does it: both classes are checked, the arm is driven by keys, recorded and trained."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from dovetail.cli.main import main
from dovetail.runs.assembly.robot_access import load_robot
from dovetail.testing import check_robot
from support.docs_pages import ROOT, files

PAGE = (ROOT / "docs" / "robots" / "own.md").read_text()
FEW = ("learner.bc_updates=5", "learner.warmup_updates=5")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The reader's folder."""
    for name, content in files(PAGE).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    for module in ("acme_sdk", "acme_arm", "test_acme"):
        sys.modules.pop(module, None)


def test_classes_of_the_page_have_under_80_lines() -> None:
    written = files(PAGE)
    assert len(written["acme_arm.py"].splitlines()) < 80
    assert len(written["robot_computer/acme_robot.py"].splitlines()) < 40
    assert "dovetail" not in written["robot_computer/acme_robot.py"].lower()


def test_class_in_process_passes_the_check_of_the_page(lab: Path) -> None:
    import importlib

    importlib.import_module("test_acme").test_acme_arm()


@pytest.mark.parametrize("call", ["joints_deg", "servo_to", "halt"])
def test_class_in_process_connects_again_after_a_failed_call(
    lab: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    import importlib

    acme_sdk, acme_arm = importlib.import_module("acme_sdk"), importlib.import_module("acme_arm")

    class Cut(acme_sdk.Arm):  # type: ignore[misc, name-defined]
        """An arm whose cable is unplugged and plugged in: the old connection never works again."""

        num_made = 0

        def __init__(self, port: str) -> None:
            super().__init__(port)
            type(self).num_made += 1
            if self.num_made == 1:
                setattr(self, call, self._fail)

        def _fail(self, *values: object) -> None:
            raise OSError("the port is gone")

    monkeypatch.setattr(acme_sdk, "Arm", Cut)
    arm = acme_arm.AcmeArm(acme_arm.AcmeConfig())
    calls = {"joints_deg": arm.observe, "servo_to": lambda: arm.send(np.zeros(7, np.float32)), "halt": arm.stop}
    with pytest.raises(OSError, match="the port is gone"):
        calls[call]()
    calls[call]()
    assert Cut.num_made == 2


def test_robot_commands_of_the_page_work_in_process(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robot", "show", "acme.yaml", "--once"]) == 0
    assert "joint3" in capsys.readouterr().out
    assert main(["robot", "move", "acme.yaml", "--part", "arm", "--axis", "3", "--by", "0.05", "--yes"]) == 0
    assert re.search(r"moved from 0\.0000 to 0\.0[45]\d\d rad", capsys.readouterr().out)


def test_server_of_the_page_serves_the_plain_class(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    computer = lab / "robot_computer"
    assert main(["robot", "server-file", "--out", str(computer / "dovetail_robot.pyz")]) == 0
    (computer / "acme_sdk.py").write_text((lab / "acme_sdk.py").read_text())
    command = [sys.executable, "dovetail_robot.pyz", "acme_robot:AcmeRobot", "--port", "0"]
    process = subprocess.Popen(command, cwd=computer, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = next(found[1] for line in process.stderr if (found := re.search(r"'acme' at (\S+)", line)))
        token = str(computer / "robot.token")
        assert main(["robot", "spec", address, "--token-file", token, "--out", "acme-robot.yaml"]) == 0
        text = Path("acme-robot.yaml").read_text()
        assert (
            text.replace(address, "192.168.1.5:7412").replace(token, "robot.token")
            == files(PAGE)["acme-robot.yaml"]
        )
        section = yaml.safe_load(text)
        section["robot"] |= {"timeout_s": 5.0, "max_clock_error_s": 1.0}  # this machine may be busy
        Path("acme-robot.yaml").write_text(yaml.safe_dump(section))
        assert main(["robot", "show", "acme-robot.yaml", "--once"]) == 0
        assert "clock offset" in capsys.readouterr().out
        config = load_robot(["acme.yaml", "acme-robot.yaml"])
        assert (config.robot.type, config.task and config.task.type) == ("remote", "table")
        robot = config.robot.build(task=None)
        check_robot(lambda: robot, num_ticks=8)
        robot.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.mark.extended
def test_demonstrations_are_recorded_and_trained_on(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the page's config, processes included, and a scripted person."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(lab), str(ROOT / "tests"), str(ROOT / "src"))))
    person = "operator={type: 'support.demonstrating_person:Person'}"
    assert main(["collect", "acme.yaml", person, *FEW, "--demos", "2", "--name", "acme", "--quiet"]) == 0
    _check_demonstrations(2)
    assert main(["train", "--resume", "acme", "--no-eval", "--quiet"]) == 0
    assert list(Path("runs/acme/weights").glob("v*.json"))


@pytest.mark.extended
def test_arm_is_driven_and_judged_by_keys(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands in a terminal. The training has no terminal, as on a server."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(lab), str(ROOT / "src"))))
    shown = _in_terminal("collect", "acme.yaml", *FEW, "--demos", "2", "--name", "acme")
    assert "2 demonstrations" in shown, shown[-3000:]
    for line in (
        "hold w or s to move a joint; 1 to 6, comma",
        "robot: success after ",
        "train --resume runs/acme --no-eval",
    ):
        assert line in shown, shown[-3000:]
    _check_demonstrations(2)
    train = [sys.executable, "-m", "dovetail.cli", "train", "--resume", "acme", "--no-eval"]
    subprocess.run(train, stdin=subprocess.DEVNULL, check=True, timeout=120)
    shown = _in_terminal("eval", "acme", "--episodes", "2")
    assert "100 %" in shown and "of 2" in shown, shown[-3000:]


def _check_demonstrations(num: int) -> None:
    episodes = list(Path("runs/acme/episodes").glob("*/manifest.json"))
    manifests = [json.loads(path.read_text()) for path in episodes]
    assert [one["outcome"] for one in manifests].count("success") == num
    assert {one["robot"]["name"] for one in manifests} == {"acme"}
    steps = [pq.read_table(path.with_name("steps.parquet")) for path in episodes]
    moved = [np.ptp(np.array(table["observation/joint_pos"].to_pylist())[:, 0]) for table in steps]
    assert max(moved) > 0.05  # the arm has really moved


def _in_terminal(*arguments: str, timeout_s: float = 120.0) -> str:
    """Run a command in a terminal whose person starts each episode, moves a joint for a while and reports success."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail.cli", *arguments], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown, keys, next_s = b"", iter(""), time.monotonic() + 1.0
    end_s = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < end_s:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                shown += os.read(ours, 4096)
            except OSError:
                break
        if time.monotonic() >= next_s:
            key = next(keys, "")
            if not key:
                keys, key = iter("1" + "w" * 12 + "y"), "t"  # joint 1
            os.write(ours, key.encode())
            next_s = time.monotonic() + 0.15
    if process.poll() is None:
        process.kill()
    process.wait()
    os.close(ours)
    return shown.decode(errors="replace")
