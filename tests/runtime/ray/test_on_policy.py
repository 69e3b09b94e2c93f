"""PPO on Ray: a whole run in one role that may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.roles.on_policy import OnPolicyRole, RayOnPolicyRun
from support import TESTS

PPO_RUN = """
task: {type: "support.dense_reach:DenseReach", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
policy: {type: actor_critic, inputs: [ee_pose, goal], hidden: [32, 32], value_hidden: [32, 32]}
algorithm: {type: ppo, num_envs: 4, rollout_steps: 16, lr: 0.001, batch_size: 64, num_epochs: 2, gamma: 0.95}
run: {demos: 0, env_steps: 6400, eval_episodes: 2, untrained_episodes: 1, video_episodes: 0, checkpoint_every_s: 0.5}
runtime: ray
"""


def test_several_arms_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text(PPO_RUN)
    folder = RunFolder.create(tmp_path / "run", load([tmp_path / "ppo.yaml"], ["cluster.num_robots=2"]))
    with pytest.raises(UsageError, match="ppo collects rollouts in its own simulations"):
        RayOnPolicyRun(folder)


def ended(role: OnPolicyRole) -> str | None:
    while (report := role.report())["ended"] is None and report["problem"] is None:
        time.sleep(0.02)
    assert report["problem"] is None
    return str(report["ended"])


def test_stopped_role_saves_and_another_process_continues(tmp_path: Path) -> None:
    """The role without Ray: all its state is in the folder."""
    (tmp_path / "ppo.yaml").write_text(PPO_RUN)
    path = RunFolder.create(tmp_path / "run", load([tmp_path / "ppo.yaml"], ["run.env_steps=6400"])).path
    first = OnPolicyRole("on_policy", path=path, live=False)
    first.start(None)
    while not first.report()["updates"]:
        time.sleep(0.01)
    first.stop()
    assert ended(first) == "interrupted"
    before = int(load_checkpoint(path / "checkpoints" / "last")[0]["practice/counters"][0])
    assert 0 < before < 100
    first._lock_file.close()
    second = OnPolicyRole("on_policy", path=path, live=False)
    second.start(None)
    second.start(None)  # safe to repeat
    assert ended(second) == "done"
    assert second.report()["doing"] == "evaluating: after"
    counters = load_checkpoint(path / "checkpoints" / "last")[0]["practice/counters"]
    assert (int(counters[0]), int(counters[1])) == (100, 6400)


@pytest.mark.extended
def test_two_ranks_of_the_role_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks are processes of the role. Their sums differ from one rank's by rounding only."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))))
    (tmp_path / "ppo.yaml").write_text(PPO_RUN)
    found = []
    for ranks in (1, 2):
        changes = [f"learner.ranks={ranks}", "run.env_steps=128", "algorithm.batch_size=21"]
        path = RunFolder.create(tmp_path / str(ranks), load([tmp_path / "ppo.yaml"], changes)).path
        role = OnPolicyRole("on_policy", path=path, live=False)
        role.start(None)
        assert ended(role) == "done"
        role._lock_file.close()
        state = load_checkpoint(path / "checkpoints" / "last")[0]
        found.append({name: v for name, v in state.items() if name.startswith("algorithm/policy/")})
        assert ("algorithm/ranks/num_updates" in state) == (ranks == 2)
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=2e-3, atol=2e-5, err_msg=name)


def started(tmp_path: Path, *settings: str, **more: str) -> subprocess.Popen[str]:
    (tmp_path / "ppo.yaml").write_text(PPO_RUN)
    return subprocess.Popen(
        [sys.executable, "-m", "dovetail.cli", "run", "ppo.yaml", *settings, "--name", "r", "--quiet"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))),
            **more,
        },
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_killed_ray_node_ends_the_run_with_one_line(tmp_path: Path) -> None:
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    process = started(tmp_path, RAY_ROLE_TEST=mark)
    try:
        end_s = time.monotonic() + 300
        while not any(event["event"] == "checkpoint" for event in events(tmp_path / "runs" / "r")):
            assert process.poll() is None and time.monotonic() < end_s
            time.sleep(0.05)
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = f"RAY_ROLE_TEST={mark}".encode() in (entry / "environ").read_bytes()
                if ours and b"raylet/raylet" in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert [line for line in stderr.splitlines() if line.startswith("error: Ray's node on this machine has died")]


@pytest.mark.extended
@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_role_continues_from_its_checkpoint(tmp_path: Path, asynchronous: bool) -> None:
    run = tmp_path / "runs" / "r"
    process = started(tmp_path, f"algorithm.asynchronous={str(asynchronous).lower()}")
    try:
        end_s, killed = time.monotonic() + 1200, False
        while process.poll() is None and time.monotonic() < end_s:
            if not killed and any(event["event"] == "checkpoint" for event in events(run)):
                link = json.loads((run / "live.json").read_text())  # of the role's process
                assert link["pid"] != process.pid
                os.kill(link["pid"], signal.SIGKILL)
                killed = True
            time.sleep(0.05)
        _, stderr = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    assert killed
    assert [event["role"] for event in events(run) if event["event"] == "restarted"] == ["on_policy"]
    report = json.loads((run / "report.json").read_text())
    assert report["success_after"]["episodes"] == 2
    state, _ = load_checkpoint(run / "checkpoints" / "last")
    updates, env_steps, *_ = (int(n) for n in state["practice/counters"])
    assert env_steps >= 6400 and updates == env_steps // 64  # each rollout once
    assert not (run / "live.json").exists()


def events(run: Path) -> list[dict[str, object]]:
    path = run / "events.jsonl"
    return (
        [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    )
