"""Recipes of robots on a real clock run against their emulators, with a budget too small to learn."""

import json

import pytest

from dovetail.emulators.emulator import EmulatorProcess
from support.ros2_robots import free_domain

TINY = (
    "run.demos=1",
    "run.env_steps=10",
    "run.eval_episodes=1",
    "run.untrained_episodes=0",
    "run.video_episodes=0",
    "learner.bc_updates=5",
    "learner.utd=0.02",
    "task.time_limit_s=10.0",
)


@pytest.mark.extended
def test_igris_b_runs_from_demonstrations_to_report(cli, tmp_path):
    domain_id = free_domain()
    with EmulatorProcess("igris_b", f"domain_id={domain_id}"):
        result = cli(
            "run", "igris-b", *TINY, f"robot.dds.domain_id={domain_id}", "runtime=inline",
            "--runs-dir", str(tmp_path), "--name", "a", "--quiet",
        )  # fmt: skip
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["demos"] == 1
    assert report["success_after"]["episodes"] == 1
