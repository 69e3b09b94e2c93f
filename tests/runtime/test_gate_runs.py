"""Whole runs with a gate, inline and on Ray: planted candidates, a planted drop, and kills in the middle of a comparison."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.deployment import Deployment
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore
from support import TESTS
from support.planted_skill import PLANTED

GOOD_THEN_BAD = "[[0, 0.5], [5, 0.9], [20, 0.1]]"  # skill from so many updates on


def write(folder: Path, plan: str) -> Path:
    path = folder / "planted.yaml"
    path.write_text(PLANTED.format(worn=folder / "worn", plan=plan))
    return path


def decisions(folder: RunFolder) -> list[tuple[str, int | None]]:
    """Each decision, with the number of pairs that it took."""
    decided = ("deployed", "rejected", "rolled back")
    events = folder.events("deployment")
    return [(event["change"], event.get("num_pairs")) for event in events if event["change"] in decided]


def episodes(folder: RunFolder, purpose: Purpose) -> list[tuple[int, ...]]:
    """The versions that acted in each episode."""
    log = EpisodeLog(folder.episodes)
    infos = [log.manifest(episode_id) for episode_id in log.ids()]
    return [tuple(v for v in info.policy_versions if v > 0) for info in infos if info.purpose is purpose]


def test_good_candidate_is_deployed_and_bad_ones_never_act(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "r", load([write(tmp_path, GOOD_THEN_BAD)]))
    run = InlineRun(folder)
    run.run()
    changes = [change for change, _ in decisions(folder)]
    assert changes[0] == "deployed" and set(changes[1:]) == {"rejected"}
    deployed = Deployment.load(folder).deployed.version
    acted = [versions[0] for versions in episodes(folder, Purpose.ONLINE)]
    assert acted == [1] * 10 + [deployed] * (len(acted) - 10)  # deployed after every_episodes = 10
    assert DiskWeightStore(folder.weights).pinned() == deployed  # what `dovetail eval` and `serve` use
    assert next(iter(folder.events("evaluated")))["version"] == deployed
    num_pairs = sum(pairs for _, pairs in decisions(folder))
    assert len(episodes(folder, Purpose.EVAL)) == 2 * num_pairs + 2  # eval_episodes = 2
    assert run.status.updates == run.status.env_steps // 10  # utd = 0.1: pairs do not train


def test_planted_drop_rolls_back(tmp_path: Path) -> None:
    """After 20 online episodes, policies with a skill above 0.6 fail. The deployed one has 0.95, the one before it 0.5."""
    path = write(tmp_path, "[[0, 0.5], [5, 0.95]]")
    folder = RunFolder.create(tmp_path / "r", load([path], ("deploy.every_episodes=15", "run.env_steps=900")))

    def wear(status) -> None:  # type: ignore[no-untyped-def]
        if status.episodes >= 20:
            (tmp_path / "worn").write_text("0.6")

    InlineRun(folder, on_status=wear).run()
    events = list(folder.events("deployment"))
    rolled = [event for event in events if event["change"] == "rolled back"]
    assert rolled and "episodes without help succeeded, at least" in rolled[0]["reason"]
    assert Path(rolled[0]["to"]).name == "v00000001.json"
    later = [event["change"] for event in events[events.index(rolled[0]) + 1 :]]
    assert "deployed" not in later  # the candidates wear out too
    acted = [version for versions in episodes(folder, Purpose.ONLINE) for version in versions]
    assert acted == [1] * 15 + [acted[15]] * acted.count(acted[15]) + [1] * (
        len(acted) - 15 - acted.count(acted[15])
    )
    assert 5 <= acted.count(acted[15]) <= 15 and acted[-1] == 1


def test_on_policy_algorithms_have_no_gate(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "r", load(["push-cube-ppo"], ("deploy.gate=compare",)))
    with pytest.raises(UsageError, match=r"acts with its newest weights\. Set deploy=null"):
        InlineRun(folder)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dovetail.cli", "run", *arguments, "--quiet"]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        process_group=0,
    )  # fmt: skip


def kill_in_comparison(process: subprocess.Popen[str], path: Path, *, num_pairs: int) -> None:
    """Kill the run as soon as a comparison has so many pairs."""
    until_s = time.monotonic() + 240
    while time.monotonic() < until_s:
        assert process.poll() is None, process.communicate()[0]
        if (path / "deployment.json").exists():
            comparison = Deployment.load(RunFolder.open(path)).comparison
            if comparison is not None and len(comparison.pairs) >= num_pairs:
                break
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.extended
def test_kill_in_a_comparison_changes_no_decision(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD_THEN_BAD)
    whole = RunFolder.create(tmp_path / "runs" / "whole", load([path]))
    InlineRun(whole).run()
    killed = tmp_path / "runs" / "killed"
    for number, arguments in enumerate((("planted.yaml", "--name", "killed"), ("--resume", "killed"))):
        kill_in_comparison(start(*arguments, cwd=tmp_path), killed, num_pairs=3 + number)
        assert Deployment.load(RunFolder.open(killed)).comparison is not None
    done = start("--resume", "killed", cwd=tmp_path)
    assert done.wait(240) == 0, done.communicate()[0]
    folder = RunFolder.open(killed)
    assert decisions(folder) == decisions(whole)
    assert Deployment.load(folder).deployed.version == Deployment.load(whole).deployed.version


@pytest.mark.extended
def test_gate_on_ray_with_a_kill_in_a_comparison(tmp_path: Path) -> None:
    write(tmp_path, "[[0, 0.5], [1, 0.9], [60, 0.1]]")  # the arm may be ahead of the learner by several episodes
    path = tmp_path / "runs" / "r"
    run = start("planted.yaml", "runtime=ray", "run.env_steps=800", "--name", "r", cwd=tmp_path)
    kill_in_comparison(run, path, num_pairs=4)
    before = Deployment.load(RunFolder.open(path))
    assert before.comparison is not None
    done = start("--resume", "r", cwd=tmp_path)
    assert done.wait(300) == 0, done.communicate()[0]
    folder = RunFolder.open(path)
    changes = [change for change, _ in decisions(folder)]
    assert "deployed" in changes and changes[-1] == "rejected"  # the last weights have a skill of 0.1
    deployed = Deployment.load(folder).deployed.version
    online = episodes(folder, Purpose.ONLINE)
    first = [event["version"] for event in folder.events("deployment") if event["change"] == "first"]
    known = {*first, *(one.version for one in Deployment.load(folder).earlier), deployed}
    assert {version for versions in online for version in versions} <= known  # candidates never act
    assert online[-1] == (deployed,)
    numbers = [event["number"] for event in folder.events("deployment")]
    assert numbers == list(range(1, len(numbers) + 1))
