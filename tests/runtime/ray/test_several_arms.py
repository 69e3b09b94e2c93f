"""Runs with several arms on a real Ray: equal arms, and different arms with a shared policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY

# two equal arms, and one with fewer joints and another task
THREE = """
runtime: ray
task: {type: peg_insertion, time_limit_s: 2.0}
robot: {type: sim, arm: panda}
operator: {type: scripted, watched_share: 1.0, stuck_after_steps: 2}
policy:
  type: shared
  policy: {type: gaussian_mlp, hidden: [32, 32], inputs: [joint_pos, ee_error, task_state]}
algorithm: {type: rlpd, batch_size: 32, hidden: [32, 32], num_steps: 3}
learner: {utd: 1, warmup_updates: 20, bc_updates: 20}
run: {demos: 2, env_steps: 200, eval_episodes: 2, untrained_episodes: 1, video_episodes: 2}
cluster:
  robot_timeout_s: 300
  max_steps_ahead: 60
  robots:
    left: {}
    right: {}
    small: {robot: {arm: x5}, task: {type: push_cube, time_limit_s: 6.0}}
"""


def dovetail(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500)


def ran(config: str, cwd: Path, *overrides: str) -> tuple[RunFolder, dict[str, Any], list[EpisodeInfo]]:
    (cwd / "arms.yaml").write_text(config)
    done = dovetail("run", "arms.yaml", *overrides, "--name", "r", "--quiet", cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    folder = RunFolder.open(cwd / "runs/r")
    log = EpisodeLog(folder.episodes)
    report = json.loads((folder.path / "report.json").read_text())
    return folder, report, [log.manifest(episode_id) for episode_id in log.ids()]


def of(infos: list[EpisodeInfo], robot: str, purpose: Purpose) -> list[EpisodeInfo]:
    return [info for info in infos if info.robot.name == robot and info.purpose is purpose]


@pytest.mark.extended
def test_two_equal_arms_are_counted_separately_and_together(tmp_path: Path) -> None:
    folder, report, infos = ran(
        TOY, tmp_path, "runtime=ray", "cluster.num_robots=2", "cluster.robot_timeout_s=300"
    )
    arms = report["robots"]
    assert set(arms) == {"robot-0", "robot-1"}
    for name, figures in arms.items():
        own = of(infos, name, Purpose.ONLINE)
        assert own, f"{name} never acted online"
        assert figures["episodes"] == len(own)
        assert figures["env_steps"] == sum(info.num_steps for info in own)
        assert figures["robot_minutes"] == pytest.approx(figures["env_steps"] / 10.0 / 60.0, rel=0.2)
    for what in ("episodes", "env_steps", "interventions", "demos"):
        assert sum(figures[what] for figures in arms.values()) == report[what]
    evaluation = folder.read_json("evaluations/after.json")
    assert evaluation is not None
    assert evaluation["episodes"] == 4  # both arms are one group
    for what in ("episodes", "successes"):
        assert sum(facts[what] for facts in evaluation["robots"].values()) == evaluation[what]
    assert len([info for info in infos if info.purpose is Purpose.DEMO]) <= 3 * 3 + 10
    labels = LabelStore(folder.labels)
    trained = sum(info.num_steps for info in infos if info.purpose is Purpose.ONLINE and labels.current(info.id))
    assert report["updates"] >= 20 + trained  # updates for the steps of all arms
    assert not (folder.replay / "robot-0").exists()  # both arms share one replay
    assert {event["robot"] for event in folder.events("episode")} == set(arms)


@pytest.mark.extended
def test_different_arms_share_a_policy_with_a_replay_each(tmp_path: Path) -> None:
    folder, report, infos = ran(THREE, tmp_path)
    embodiments = folder.config.model_dump(mode="json")["policy"]["embodiments"]
    assert set(embodiments) == {"franka_panda", "arx_x5"}  # left and right have the same embodiment
    assert {path.name for path in folder.replay.iterdir()} == {"franka_panda", "arx_x5"}
    assert report["task"] == "peg_insertion + push_cube"
    for name in ("left", "right", "small"):
        assert of(infos, name, Purpose.ONLINE), f"{name} never acted online"
    shown = {name: len(of(infos, name, Purpose.DEMO)) for name in ("left", "right", "small")}
    assert shown["left"] + shown["right"] >= 2
    assert shown["small"] >= 2
    evaluation = folder.read_json("evaluations/after.json")
    assert evaluation is not None and evaluation["episodes"] == 4  # two per group
    assert evaluation["robots"]["small"]["episodes"] == 2
    assert report["robots"]["small"]["success_after"]["episodes"] == 2
    weights = DiskWeightStore(folder.weights).latest()
    assert weights is not None
    mean = weights.components["normalizer"]["mean/joint_pos"]
    assert mean.shape == (2, 7)
    rows = list(embodiments)
    assert np.count_nonzero(mean[rows.index("franka_panda")]) == 7
    assert np.count_nonzero(mean[rows.index("arx_x5")]) == 6  # its statistics; zero in the padding
    done = dovetail(
        "run", "--resume", "r", "--quiet", cwd=tmp_path
    )  # the resume opens the replays and finds nothing to do
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(EpisodeLog(folder.episodes).ids()) == len(infos)
    assert report["video_missing"] is None  # both scenes
    last = folder.checkpoints / "last"
    done = dovetail(
        "eval", str(last), "--episodes", "1", "--quiet", cwd=tmp_path
    )  # each arm loads the networks of both embodiments
    assert done.returncode == 0, done.stderr[-2000:]
    assert [event["robot"] for event in folder.events("eval")] == ["left", "small"]


@pytest.mark.extended
def test_different_arms_without_a_shared_policy_are_refused(tmp_path: Path) -> None:
    (tmp_path / "arms.yaml").write_text(THREE)
    done = dovetail("run", "arms.yaml", "policy=gaussian_mlp", "--name", "r", cwd=tmp_path)
    assert done.returncode == 2
    assert "'left' and 'small' differ" in done.stderr
    assert "policy.type=shared" in done.stderr
    assert not (tmp_path / "runs/r").exists()
