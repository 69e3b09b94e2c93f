"""PPO logs no episode before its first evaluation. A failed run keeps its checkpoints all the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import Tensor

from dovetail.learn.algorithms.ppo import PPO
from dovetail.learn.checkpoint import checkpoint_facts
from dovetail.learn.finite import SkippedUpdate
from support import TESTS
from support.command_line import Cli

PPO_RUN = """
task: {type: "support.dense_reach:DenseReach", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
policy: {type: actor_critic, inputs: [ee_pose, goal], hidden: [32, 32], value_hidden: [32, 32]}
algorithm: {type: ppo, num_envs: 4, rollout_steps: 16, lr: 0.001, batch_size: 64, num_epochs: 2, gamma: 0.95}
learner: {max_bad_updates: 3}
run: {demos: 0, env_steps: 640, eval_episodes: 2, untrained_episodes: 0, video_episodes: 0, checkpoint_every_s: 0.0001}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    (tmp_path / "ppo.yaml").write_text(PPO_RUN)
    return "ppo.yaml"


@pytest.mark.extended
def test_failed_updates_keep_the_checkpoints(cli: Cli, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    update, count = PPO.update, iter(range(10**9))

    def breaks(self: PPO, rollout: Mapping[str, Tensor]) -> Mapping[str, float]:
        if next(count) >= 3:
            raise SkippedUpdate("the policy's loss is nan")
        return update(self, rollout)

    monkeypatch.setattr(PPO, "update", breaks)
    result = cli("run", config, "--name", "r", "--quiet")
    assert "learner.max_bad_updates is 3" in result.line
    assert not Path("runs/r/episodes").exists()
    assert checkpoint_facts(Path("runs/r/checkpoints/last"))["env_steps"] >= 3 * 64
    monkeypatch.setattr(PPO, "update", update)
    assert cli("run", "--resume", "r", "--quiet").code == 0


@pytest.mark.extended
def test_a_killed_collector_keeps_the_checkpoints(cli: Cli, config: str) -> None:
    broken = (
        "task.type=support.dense_reach:Broken",
        "task.how=kill",
        "task.after=40",
        "algorithm.asynchronous=true",
    )
    result = cli("run", config, *broken, "--name", "r", "--quiet")
    assert "the collector has died: killed by SIGKILL" in result.line
    assert checkpoint_facts(Path("runs/r/checkpoints/last"))["env_steps"] == 2 * 64


def test_a_refusal_leaves_nothing_behind(cli: Cli, config: str) -> None:
    assert cli("train", config, "--name", "r", "--quiet").code == 2  # PPO cannot learn offline
    assert not Path("runs/r").exists()
