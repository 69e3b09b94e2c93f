"""`dovetail doctor` and the start of a run check what the run needs, with the same lines."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.api import readiness
from dovetail.api.readiness import machine, rendering
from dovetail.cli.main import main
from dovetail.config.load import load

JOINTS = ("push-cube", "robot.action=joint", "safety.workspace=null")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that hides an installed package."""

    def hide(name: str) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda one, *more: None if one == name else find(one, *more)
        )

    return hide


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests render."""
    monkeypatch.setattr(rendering, "_PICTURE", "")


def wrong_lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().out.splitlines() if line.startswith("✗")]


def same_refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line with which the start of a run refuses, which is one of the doctor's."""
    assert main(["doctor", *arguments]) == 1
    listed = wrong_lines(capfd)
    assert main(["run", *arguments]) == 2
    line = capfd.readouterr().err.removeprefix("error: ").strip()
    assert any(one.endswith(line) for one in listed), (line, listed)
    assert not Path("runs").exists()
    return line


def test_device_without_its_package_is_refused_before_the_run(without: Any, capfd: Any) -> None:
    without("pyspacemouse")
    line = same_refusal(capfd, "push-cube", "operator=spacemouse")
    assert line == "operator 'spacemouse' needs pyspacemouse. Install it with: pip install pyspacemouse"


def test_device_inside_a_pedal_is_checked_too(without: Any, capfd: Any) -> None:
    without("pyspacemouse")
    line = same_refusal(capfd, "push-cube", "operator={type: pedal, operator: {type: spacemouse}}")
    assert "needs pyspacemouse" in line


def test_device_that_is_not_plugged_in_is_refused_before_the_run(
    capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.human._evdev.DEVICES", "/nowhere/event*")
    assert "operator 'gamepad'" in same_refusal(capfd, "push-cube", "operator=gamepad")


@pytest.mark.parametrize("operator", ["spacemouse", "gamepad", "keyboard", "browser"])
def test_part_that_the_robot_does_not_have_is_refused(capfd: Any, operator: str) -> None:
    line = same_refusal(capfd, *JOINTS, f"operator={{type: {operator}, part: leg}}")
    assert line.startswith(f"operator '{operator}': robot 'sim_panda' has no arm or base 'leg', only arm")


@pytest.mark.parametrize("operator", ["keyboard", "browser"])
def test_geometry_that_does_not_exist_is_refused(capfd: Any, operator: str) -> None:
    kinematics = "{file: /nowhere/arm.xml, end_effector: tcp}"
    line = same_refusal(capfd, *JOINTS, f"operator={{type: {operator}, kinematics: {kinematics}}}")
    assert line.startswith("operator.kinematics.file: there is no file /nowhere/arm.xml")


def test_leader_that_is_no_robot_is_refused(capfd: Any) -> None:
    line = same_refusal(capfd, *JOINTS, "operator={type: leader, leader: {type: smi}}")
    assert line.startswith("operator.leader: no robot named 'smi'")
    assert main(["run", *JOINTS, "operator={type: several, operators: [{type: gamepad, spede: 1}]}"]) == 2
    assert capfd.readouterr().err.startswith("error: operator.operators.0.spede: ")


def test_doctor_lists_all_problems_at_once_with_remedies(without: Any, capfd: Any) -> None:
    without("pyspacemouse")
    settings = (
        "robot.action=joint",
        "operator={type: spacemouse, part: leg}",
        "labels=[vlm]",
        "policy.inputs=[nothing]",
        "device=cuda:7",
    )
    assert main(["doctor", "push-cube", *settings, "labels.0.url=http://127.0.0.1:9/v1"]) == 1
    text = "\n".join(wrong_lines(capfd))
    for expected in ("pip install pyspacemouse", "no answer from http://127.0.0.1:9/v1", "safety.workspace=null"):
        assert expected in text
    assert (
        "operator 'spacemouse': robot 'sim_panda' has no arm or base 'leg'" in text
    )  # although the safety filter refuses the robot


def test_doctor_without_recipe_loads_neither_simulator_nor_tensordict() -> None:
    code = (
        "import sys; from dovetail.cli.main import main; main(['doctor']);"
        "print([name for name in ('mujoco', 'ray', 'tensordict', 'nicegui') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "✓ recipes" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_doctor_of_a_recipe_builds_its_algorithm_without_the_compiler() -> None:
    code = (
        "import sys; from dovetail.cli.main import main; from dovetail.api.checks import fit_problems\n"
        "from dovetail.config.load import load; code = main(['doctor', 'peg-insertion'])\n"
        "others = [fit_problems(load([name])) for name in ('push-cube-ppo', 'pick-place-sft')]\n"
        "slow = ('torch._dynamo', 'torch.distributed.fsdp', 'torch.onnx', 'sympy', 'ray', 'nicegui', 'matplotlib')\n"
        "print(code, others, [name for name in slow if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "algorithm rlpd fit each other" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 [[], []] []"


def test_low_priority_of_the_caller_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "low_priority", lambda: "idle")
    config = load(["peg-insertion"], ["actor.layout=processes"])
    finding = machine._real_time_rights(config)
    assert not finding.ok and not finding.needed
    assert "started with priority 'idle'. Start the run without chrt -i and nice" in finding.line


def test_full_disk_and_slow_gl_are_reported(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(machine, "MIN_FREE_GB", 1e9)
    monkeypatch.setattr(rendering, "_PICTURE", "import time; time.sleep(60)")
    monkeypatch.setattr(rendering, "TIMEOUT_S", 0.2)
    assert main(["doctor"]) == 1
    text = "\n".join(wrong_lines(capfd))
    assert "GB free. Free at least" in text
    assert "no image within 0 s" in text


def test_taken_console_port_is_reported(capfd: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        findings = list(readiness.service_findings(load(["push-cube"]), console_port=port))
    assert [(one.name, one.ok) for one in findings] == [("console port", False)]
    assert "--console-port" in findings[0].line


def test_person_who_labels_is_named_with_the_command(capfd: Any) -> None:
    findings = readiness.people_findings(load(["push-cube"], ["labels=[human]"]))
    assert any("dovetail console RUN" in one.line for one in findings if one.name == "labels")


def test_console_starts_only_for_an_operator_who_drives_from_it() -> None:
    assert readiness.console_is_needed(load(["push-cube"], ["operator=browser"]))
    assert readiness.console_is_needed(load(["push-cube"], ["operator={type: pedal, operator: {type: browser}}"]))
    assert not readiness.console_is_needed(load(["push-cube"]))


@pytest.mark.extended
def test_collect_with_a_browser_starts_the_console_or_says_how_to_open_it() -> None:
    for options, expected in (((), "console at "), (("--no-console",), "Open it: dovetail console by-hand")):
        process = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli", "collect", "push-cube", "operator=browser", "labels=[human]"]
            + ["run.demos=1", "--name", "by-hand", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if expected in line:
                break
        else:
            raise AssertionError("".join(lines))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        shutil.rmtree("runs")
    assert "label them on the page Label of the console: dovetail console by-hand" in "".join(
        [*lines, process.stdout.read()]
    )
