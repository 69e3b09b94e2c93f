"""A simulated task that defines no `goal` has no expert. It can be learned without demonstrations and help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.robots.sim import SimRobot, SimRobotConfig
from dovetail.tasks.push_cube import PushCubeConfig
from dovetail.testing import check_task
from support.task_without_expert import Push

SETTINGS = ("push-cube", "task.type=support.task_without_expert:Push")
TINY = ("run.env_steps=60", "run.eval_episodes=2", "run.untrained_episodes=0", "run.video_episodes=0")


def test_task_without_expert_passes_the_conformance_suite() -> None:
    with pytest.warns(UserWarning, match="has no expert: its checks were skipped"):
        check_task(
            lambda: Push(PushCubeConfig(time_limit_s=1.0)), lambda task: SimRobot(SimRobotConfig(), task=task)
        )


def test_run_that_needs_the_expert_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for needs in ((), ("run.demos=0",), ("operator=none",)):
        assert main(["run", *SETTINGS, *needs]) == 2
        assert "has no expert" in (line := capfd.readouterr().err)
        assert "Set run.demos=0 and operator=none" in line
    assert not Path("runs").exists()


@pytest.mark.extended
def test_run_without_demonstrations_and_help_needs_no_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("run.demos=0", "operator=none", "task.time_limit_s=2.0", *TINY)
    assert main(["run", *SETTINGS, *settings, "--name", "alone", "--quiet"]) == 0, capfd.readouterr().err
    report = json.loads(Path("runs/alone/report.json").read_text())
    assert (report["demos"], report["success_after"]["episodes"]) == (0, 2)
