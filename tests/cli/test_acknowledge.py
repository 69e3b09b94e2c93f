"""`dovetail acknowledge` writes a note for the running run, and fails if there is none."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dovetail.cli import acknowledge as command
from dovetail.config.load import load
from dovetail.runs.acknowledgements import acknowledge, take_acknowledged
from dovetail.runs.folder import RunFolder
from support.command_line import Cli


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = load(["peg-insertion"], ["runtime=ray", "cluster.num_robots=2"])
    return RunFolder.create(tmp_path / "arms", config).path


def test_a_note_is_taken_once(run: Path) -> None:
    acknowledge(run, "left/arm")
    acknowledge(run, "left/arm")
    acknowledge(run, "right")
    assert take_acknowledged(run) == ["left/arm", "right"]
    assert take_acknowledged(run) == []


@pytest.mark.parametrize(("named", "expected"), [(["robot-1"], ["robot-1"]), ([], ["robot-0", "robot-1"])])
def test_the_run_receives_an_acknowledgement(cli: Cli, run: Path, named: list[str], expected: list[str]) -> None:
    acknowledged: list[str] = []

    def drive() -> None:
        while len(acknowledged) < len(expected):
            acknowledged.extend(take_acknowledged(run))
            time.sleep(0.01)

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    result = cli("acknowledge", str(run), *named)
    assert result.code == 0, result.err
    driver.join(5.0)
    assert sorted(acknowledged) == expected


def test_a_run_that_is_not_running_is_reported(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_TIMEOUT_S", 0.1)
    result = cli("acknowledge", str(run), "robot-0")
    assert (result.code, ": arms is not running" in result.err) == (2, True)
    assert take_acknowledged(run) == []  # deleted: it must not acknowledge a later fault


def test_unknown_robots_and_inline_runs_are_refused(cli: Cli, run: Path, tmp_path: Path) -> None:
    assert "no robot 'robot-2'. Did you mean" in cli("acknowledge", str(run), "robot-2").err
    RunFolder.create(tmp_path / "alone", load(["peg-insertion"], ["runtime=inline"]))
    assert "acknowledge its arm in its console" in cli("acknowledge", str(tmp_path / "alone")).err
