"""Runs on a Gymnasium environment without success, as a user starts them: everything works on the return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dovetail.api.evaluation import evaluate
from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.checkpoint import checkpoint_facts
from dovetail.reports.report import write_report
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import read_rollouts
from dovetail.runtime.inline import InlineRun

SAC = """
robot: {type: gym, id: "support.spring_env:Spring-v0"}
policy: {type: gaussian_mlp, inputs: [state], hidden: [32, 32]}
algorithm: {type: sac, batch_size: 64, hidden: [32, 32], lr: 0.003, num_steps: 1, gamma: 0.9}
labels: [{type: outcome, dense: true}]
learner: {utd: 1, warmup_updates: 0, bc_updates: 0, start_from: scratch}
run: {demos: 0, env_steps: 400, eval_episodes: 6, untrained_episodes: 6, video_episodes: 0}
"""
PPO = """
robot: {type: gym, id: "support.spring_env:Spring-v0"}
policy: {type: actor_critic, inputs: [state], hidden: [16, 16], value_hidden: [16, 16]}
algorithm: {type: ppo, num_envs: 4, rollout_steps: 50, lr: 0.001, batch_size: 64, num_epochs: 2}
run: {demos: 0, env_steps: 400, eval_episodes: 2, untrained_episodes: 2, video_episodes: 0}
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def build(text: str, *overrides: str) -> RunFolder:
        (tmp_path / "run.yaml").write_text(text)
        folder = RunFolder.create(tmp_path / "r", load([str(tmp_path / "run.yaml")], overrides))
        InlineRun(folder).run()
        return folder

    return build


def curves_of(folder: RunFolder) -> dict[str, list[float]]:
    events = EventAccumulator(str(folder.logs), size_guidance={"scalars": 0}).Reload()
    return {tag: [point.value for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_run_without_success_reports_its_return(make: Any) -> None:
    folder = make(SAC, "run.eval_every_steps=200", "run.scheduled_eval_episodes=3")
    report = write_report(folder)
    assert report.verdict.startswith("support.spring_env:Spring-v0: return -") and "%" not in report.verdict
    assert report.success_after is None and report.after.returns.count == 6
    best = checkpoint_facts(folder.checkpoints / "best")
    scheduled = [made.returns.mean for _, _, made in report.scheduled]
    assert best["return"] == max(scheduled) and "success" not in best
    for info in map(EpisodeLog(folder.episodes).manifest, EpisodeLog(folder.episodes).ids()):
        assert info.success is None and info.reset_s == 0.0

    curves = curves_of(folder)
    assert "online/success" not in curves and "evaluation/after" not in curves
    assert curves["evaluation/after_return"] == [pytest.approx(report.after.returns.mean, rel=1e-5)]
    assert curves["evaluation/scheduled_return"] == pytest.approx(scheduled, rel=1e-5)
    # info["rewards"] and info["metrics"]: the total reward is counted once, and its parts add up to it
    parts = zip(curves["online/metric/reward/distance"], curves["online/metric/reward/effort"], strict=True)
    assert curves["online/return"] == pytest.approx([a + b for a, b in parts], rel=1e-4)
    assert curves["online/reward/env"] == pytest.approx(curves["online/return"], rel=1e-4)
    assert len(curves["online/metric/speed"]) == len(curves["online/return"])
    assert "evaluation/after_metric/speed" in curves and "recent/return" in curves

    lines = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert all("success" not in line for line in lines if line["event"] == "episode")


def test_evaluation_without_success_has_a_return_and_says_so(make: Any) -> None:
    folder = make(SAC, "run.env_steps=60", "run.untrained_episodes=0")
    made = evaluate(folder.path, num_episodes=2)
    assert made.performance.returns.count == 2 and made.performance.success is None
    with pytest.raises(UsageError, match=r"the environment has no success. Use `performance.returns`"):
        _ = made.success_rate


def test_rollouts_without_success_report_return_and_metrics(make: Any) -> None:
    folder = make(PPO)
    report = write_report(folder)
    assert "return -" in report.verdict and report.after.success is None
    curves = curves_of(folder)
    assert "online/success" not in curves
    assert len(curves["online/metric/speed"]) == len(curves["online/return"]) == 2
    parts = zip(curves["online/metric/reward/distance"], curves["online/metric/reward/effort"], strict=True)
    assert curves["online/return"] == pytest.approx([a + b for a, b in parts], rel=1e-4)
    assert all(one is None for line in read_rollouts(folder.path) for one in line["success"])


def test_rollouts_with_success_have_cycle_time_and_throughput(make: Any) -> None:
    folder = make(PPO, "robot.kwargs={tells_success: true}", "run.env_steps=800")
    curves = curves_of(folder)
    assert "online/success" in curves and "recent/per_minute" in curves
    solved = [
        length / 10.0
        for line in read_rollouts(folder.path)
        for length, success in zip(line["length"], line["success"], strict=True)
        if success
    ]
    assert solved and min(solved) <= curves["recent/cycle_time_s"][-1] <= max(solved)
    # a simulated world is reset in no robot time
    assert curves["recent/per_minute_with_resets"] == curves["recent/per_minute"]


def test_recent_return_decides_the_best_without_a_schedule(make: Any, tmp_path: Path) -> None:
    make(SAC, "run.env_steps=600", "run.checkpoint_every_s=0.001", "run.untrained_episodes=0", "learner.utd=0.1")
    best = checkpoint_facts(tmp_path / "r" / "checkpoints" / "best")
    assert best["by"] == "recent practice" and best["return"] < 0.0
    assert find_weights(str(tmp_path / "r"), version=None, best=True, runs_dir=tmp_path).checkpoint is not None
