"""Data-parallel ranks as Ray actors: identical to inline ranks, and restarted after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.core.streams import stream
from dovetail.core.types import Array
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.learn.learner import Learner
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.runtime.ranks import RankGroup
from dovetail.runtime.ray.cluster.connection import connected
from dovetail.runtime.ray.roles.ranks import RankLost, RayRanks
from support.toy_run import TOY

TWO = ("learner.ranks=2", "learner.bc_updates=0", "run.untrained_episodes=0", "run.eval_episodes=1")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy.yaml").write_text(TOY)
    return tmp_path / "toy.yaml"


def learned(folder: RunFolder, group: Any, *, updates: int = 8) -> dict[str, Array]:
    """The learner's state after a number of updates with the replay of the folder."""
    station = build_assembly(folder.config)
    policy = station.trainable()
    algorithm = station.algorithm(policy)
    lead = group.lead(algorithm) if isinstance(group, RayRanks) else group.lead(algorithm, folder.config)
    learner = Learner(
        algorithm=lead,
        replay=station.replay(folder.replay, keys=tuple(policy.spec.observation)),
        robot=station.robot.spec,
        rng=stream(0, "learner"),
        utd=1.0,
    )
    learner.warm_up(updates)
    return dict(learner.state_dict())


@pytest.mark.extended
def test_ray_ranks_equal_inline_ranks_and_a_killed_rank_is_reported(toy: Path, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", load([toy], [*TWO, "run.env_steps=60"]))
    InlineRun(folder).run()  # fills the replay
    robot = build_assembly(folder.config).robot.spec
    inline = RankGroup(folder.path, size=2, robot=robot, replay=folder.replay)
    try:
        wanted = learned(folder, inline)
    finally:
        inline.close()
    with connected(folder.config.cluster):
        group = RayRanks(folder, robot=robot, replayed=robot)
        try:
            group.start()
            found = learned(folder, group)
            assert found.keys() == wanted.keys()
            assert all(np.array_equal(found[key], wanted[key]) for key in wanted)
            (report,) = group.reports()
            assert report["pid"] != os.getpid() and report["doing"] == "following"
            os.kill(report["pid"], signal.SIGKILL)
            with pytest.raises(RankLost, match=r"^learning rank 1 was killed$"):
                until_it_dies(group)
        finally:
            group.close()
        greedy = load([toy], [*TWO, "cluster.learner.num_cpus=1000"])
        with pytest.raises(UsageError, match=r"learner.ranks=2 with 1000 of 'CPU' each needs 2000"):
            RayRanks(RunFolder(folder.path, greedy), robot=robot, replayed=robot).start()


def until_it_dies(group: RayRanks) -> None:
    while True:
        group.reports()


def ranks_of(folder: Path) -> list[int]:
    """Rank processes of the Ray cluster of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_rank = entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(b"ray::RankRole")
            if is_rank and f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def events(run: Path) -> list[dict[str, Any]]:
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_learner_with_killed_rank_continues_from_its_checkpoint_with_a_new_group(
    toy: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "dovetail.cli", "run", str(toy), *TWO, "runtime=ray", "run.env_steps=600"]
    temporary = Path("/tmp") / f"rk{os.getpid()}"
    temporary.mkdir()
    run = tmp_path / "runs" / "r"
    process = subprocess.Popen(
        [*command, "run.checkpoint_every_s=1", "--runs-dir", str(run.parent), "--name", "r", "--quiet"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end_s, killed = time.monotonic() + 1200, []
        while process.poll() is None and time.monotonic() < end_s:
            saved = [event for event in events(run) if event["event"] == "checkpoint" and event["env_steps"] > 50]
            if saved and not killed:
                killed = ranks_of(temporary)
                assert len(killed) == 1
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.1)
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 0, stderr
        assert killed
        assert any(event["event"] == "restarted" and event["role"] == "learner" for event in events(run))
        assert any(
            event["event"] == "lost" and "rank 1 was killed" in event.get("reason", "") for event in events(run)
        )
        state, _ = load_checkpoint(run / "checkpoints" / "last")
        updates = int(state["algorithm/num_updates"])
        assert updates >= 20 + 600  # warmup plus one per step; lost updates are repeated
        assert json.loads((run / "report.json").read_text())["updates"] == updates
        assert ranks_of(temporary) == []
    finally:
        process.kill()
        subprocess.run(["rm", "-rf", str(temporary)], check=False)
