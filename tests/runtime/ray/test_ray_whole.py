"""A whole run on a real Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.weights.store import DiskWeightStore
from support import TESTS
from support.reporting_policy import read_reports
from support.toy_run import TOY


def dovetail(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_whole_run_and_its_resume(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TOY)
    done = dovetail("run", "toy.yaml", "runtime=ray", "--name", "r", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    run = tmp_path / "runs" / "r"
    report = json.loads((run / "report.json").read_text())
    assert report["success_after"]["episodes"] == 4
    after = report["evaluations"]["after"]
    assert after["return"]["count"] == 4 and after["per_minute_with_resets"] == after["per_minute"]
    log, labels = EpisodeLog(run / "episodes"), LabelStore(run / "labels")
    infos = [log.manifest(episode_id) for episode_id in log.ids()]
    online = [info for info in infos if info.purpose is Purpose.ONLINE]
    assert sum(info.num_steps for info in online) >= 120
    assert sum(info.purpose is Purpose.DEMO for info in infos) >= 3
    assert sum(info.purpose is Purpose.EVAL for info in infos) == 10
    for info in infos:
        assert (labels.current(info.id) is None) == (info.purpose is Purpose.EVAL)
        log.verify(info.id)
    used = {version for info in online for version in info.policy_versions} - {0}
    assert len(used) > 1  # newer weights came during the run
    assert max(used) <= max(DiskWeightStore(run / "weights").versions())
    assert list((run / "robots/robot-0/spool").glob("*")) == []  # every episode was delivered
    updates = report["updates"]
    assert updates >= 20 + 120  # warmup plus one per step
    again = dovetail("run", "--resume", "r", "--quiet", cwd=tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    assert json.loads((run / "report.json").read_text())["updates"] == updates
    assert len(log.ids()) == len(infos)


@pytest.mark.extended
def test_arm_on_ray_computes_where_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    report = tmp_path / "report"
    policy = f"policy: {{type: 'support.reporting_policy:ReportingPolicy', report: {report}, device: auto, num_threads: 2}}"
    (tmp_path / "toy.yaml").write_text(TOY.replace("policy: {type: gaussian_mlp, hidden: [32, 32]}", policy))
    arguments = ("runtime=ray", "run.demos=1", "run.env_steps=1", "--name", "r", "--quiet")
    done = dovetail("run", "toy.yaml", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    expected = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert {(each["moved_to"], each["num_threads"]) for each in read_reports(report)} == {(expected, 2)}
    again = dovetail("run", "toy.yaml", "policy.device=cuda:99", *arguments[:-3], "--name", "s", cwd=tmp_path)
    assert again.returncode == 2 and "policy.device is 'cuda:99'" in again.stderr
    assert not (tmp_path / "runs" / "s").exists()
