"""A tiny run from start to report: episodes, interruption, resume, evaluation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core.types import ActContext, Episode
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles import robot
from dovetail.weights.store import DiskWeightStore
from support.command_line import Cli


def test_report_has_the_results(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    for name in ("success_before", "success_after", "untrained"):
        assert set(report[name]) == {"rate", "low", "high", "episodes"}
    assert report["success_after"]["episodes"] == 2
    assert report["env_steps"] >= 30
    assert report["robot_minutes"] == pytest.approx(report["env_steps"] / 10 / 60)
    assert report["updates"] == 20 + report["env_steps"]
    assert report["wall_s"] > 0
    assert report["seed"] == 0
    assert isinstance(report["interventions"], int)
    assert (finished / "learning_curve.png").exists()


@pytest.mark.extended
def test_resume_of_a_finished_run_prints_the_report(cli: Cli, finished: Path) -> None:
    """It records no more episodes."""
    before = len(os.listdir(finished / "episodes"))
    result = cli("run", "--resume", "done")
    assert result.code == 0
    for message in ("untrained", "behavior cloning", "after online learning", "robot minutes", "95 %", "of 2"):
        assert message in result.out
    for path in ("report.json", "learning_curve.png"):
        assert f"{finished / path}\n" in result.out
    assert "dovetail episodes ls runs/done" in result.out
    assert len(os.listdir(finished / "episodes")) == before


@pytest.mark.extended
def test_finished_run_continues_with_a_larger_budget(cli: Cli, finished: Path) -> None:
    first = json.loads((finished / "report.json").read_text())
    config = (finished / "config.yaml").read_bytes()
    result = cli(
        "run", "--resume", "done", f"run.env_steps={first['env_steps'] + 20}", "run.eval_episodes=3", "--quiet"
    )
    assert result.code == 0, result.err
    report = json.loads((finished / "report.json").read_text())
    assert report["env_steps"] >= first["env_steps"] + 20
    assert report["success_after"]["episodes"] == 3
    assert report["updates"] > first["updates"]
    assert (finished / "config.yaml").read_bytes() == config  # the identity of the run stays
    reopened = RunFolder.open(finished)
    assert reopened.config.run.eval_episodes == 3
    assert [event["settings"] for event in reopened.events("settings changed")] == [
        {"run.env_steps": first["env_steps"] + 20, "run.eval_episodes": 3}
    ]
    assert cli("episodes", "verify", "done").code == 0


def test_default_name_is_recipe_and_time(cli: Cli, toy: str) -> None:
    for _ in range(2):  # within a second, too
        assert cli("collect", toy, "--demos", "1", "--quiet").code == 0
    names = sorted(os.listdir("runs"))
    assert len(names) == 2
    assert all(re.fullmatch(r"toy-\d{8}-\d{6}(-2)?", name) for name in names)


@pytest.mark.extended
def test_run_learns_from_collected_demonstrations(cli: Cli, toy: str) -> None:
    assert cli("collect", toy, "--demos", "3", "--name", "shown", "--seed", "4").code == 0
    log = EpisodeLog("runs/shown/episodes")
    collected = log.ids()
    assert [log.manifest(i).purpose for i in collected] == ["demo"] * len(collected)
    assert RunFolder.open(Path("runs/shown")).config.run.seed == 4
    assert cli("run", "--resume", "shown", "--quiet").code == 0
    assert json.loads(Path("runs/shown/report.json").read_text())["demos"] == 3
    assert [i for i in log.ids() if log.manifest(i).purpose == "demo"] == collected


@pytest.mark.extended
def test_interrupted_run_can_be_resumed(cli: Cli, toy: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail.cli", "run", toy, "run.env_steps=400", "--name", "cut"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("learning online"):
            process.send_signal(signal.SIGINT)
            break
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, "".join(lines) + rest
    assert "stopped; continue with: dovetail run --resume cut\n" in rest
    assert "results so far: runs/cut/report.json, runs/cut/learning_curve.png\n" in rest
    stopped = json.loads(Path("runs/cut/report.json").read_text())
    assert "success_after: not evaluated yet" in stopped["missing"]
    assert stopped["video_missing"] == "it is rendered when the run has ended"
    assert Path("runs/cut/learning_curve.png").exists()
    assert Path("runs/cut/checkpoints/last/manifest.json").exists()
    kept = EpisodeLog("runs/cut/episodes").ids()
    result = cli("run", "--resume", "cut")
    assert result.code == 0
    assert json.loads(Path("runs/cut/report.json").read_text())["env_steps"] >= 400
    assert EpisodeLog("runs/cut/episodes").ids()[: len(kept)] == kept


@pytest.mark.extended
@pytest.mark.parametrize("target", ["version", "file", "checkpoint"])
def test_eval_uses_the_named_weights(
    cli: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    played: list[Episode] = []
    original = robot.evaluation_episodes

    def spy(*arguments: Any, **others: Any) -> Iterator[Episode]:
        for episode in original(*arguments, **others):
            played.append(episode)
            yield episode

    monkeypatch.setattr(robot, "evaluation_episodes", spy)
    oldest, *_, newest = DiskWeightStore(finished / "weights").versions()
    named, arguments = {
        "version": (oldest, ["done", "--version", str(oldest)]),
        "file": (oldest, [str(finished / f"weights/v{oldest:08d}.json")]),
        "checkpoint": (newest, [str(finished / "checkpoints/last")]),  # saved after the last publication
    }[target]
    files = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    result = cli("eval", *arguments, "--episodes", "1", "--seed", "3")
    assert result.code == 0, result.err
    assert "of 1" in result.out
    proposed = played[0].column("proposed")
    np.testing.assert_allclose(_actions(finished, played[0], named), proposed, atol=1e-5)
    other = newest if named == oldest else oldest
    assert not np.allclose(_actions(finished, played[0], other), proposed, rtol=0, atol=5e-5)
    changed = {
        path.name for path in finished.rglob("*") if path.is_file() and files.get(path) != path.read_bytes()
    }
    assert changed == {"events.jsonl"}
    event = json.loads((finished / "events.jsonl").read_text().splitlines()[-1])
    assert (event["event"], event["episodes"], event["seed"]) == ("eval", 1, 3)


def _actions(run: Path, episode: Episode, version: int) -> Any:
    """The actions of a policy with these weights for the recorded observations."""
    station = build_assembly(RunFolder.open(run).config)
    policy = station.policy()
    policy.load(DiskWeightStore(run / "weights").load(version))
    seen = {key: episode.column(f"observation/{key}") for key in policy.spec.observation}
    return policy.act(seen, ActContext(deterministic=True)).actions[:, 0]


def test_episodes(cli: Cli, finished: Path, tmp_path: Path) -> None:
    log = EpisodeLog(finished / "episodes")
    ids = log.ids()
    listed = cli("episodes", "ls", "done").out
    assert all(episode_id in listed for episode_id in ids)
    assert f"{len(ids)} of {len(ids)} episodes" in listed
    demos = [i for i in ids if log.manifest(i).purpose == "demo"]
    listed = cli("episodes", "ls", "runs/done", "--purpose", "demo", "--outcome", "success").out
    assert sum(episode_id in listed for episode_id in ids) == len(demos)
    for name, episode_id in (("first", ids[0]), ("last", ids[-1]), (ids[1][:25], ids[1]), (ids[2][-12:], ids[2])):
        shown = cli("episodes", "show", "done", name).out
        assert episode_id in shown
        assert "reward/success" in shown
        assert "peg_insertion: " in shown
    out = tmp_path / "films" / "one.mp4"
    assert cli("episodes", "video", "done", demos[0], "--size", "32", "--out", str(out)).code == 0
    assert out.read_bytes()[4:8] == b"ftyp"


def test_a_damaged_episode_does_not_hide_the_others(cli: Cli, finished: Path) -> None:
    ids = EpisodeLog(finished / "episodes").ids()
    (finished / "episodes" / ids[0] / "manifest.json").write_text("{}")
    result = cli("episodes", "ls", "done")
    assert "damaged" in result.out
    assert ids[-1] in result.out


@pytest.mark.extended
def test_eval_with_other_settings(cli: Cli, finished: Path) -> None:
    result = cli("eval", "done", "actor.layout=processes", "--episodes", "1")
    assert result.code == 0, result.err
    event = json.loads((finished / "events.jsonl").read_text().splitlines()[-1])
    assert event["settings"] == ["actor.layout=processes"]
    refused = cli("eval", "done", "actor.type=rtc", "--episodes", "1")
    assert refused.code == 2
    assert "gives single actions" in refused.line


@pytest.mark.extended
def test_train_learns_from_demonstrations(cli: Cli, toy: str) -> None:
    result = cli("train", toy, "algorithm={type: imitation, batch_size: 16}", "--name", "cloned")
    assert result.code == 0, result.err
    folder = Path("runs/cloned")
    found = json.loads((folder / "report.json").read_text("utf-8"))
    assert found["env_steps"] == 0
    assert found["success_after"]["episodes"] == 2
    assert found["verdict"].endswith(" % after training")
    assert "after training" in result.out
    assert "online" not in result.out
    assert "robot minutes" not in result.out
    assert (folder / "checkpoints" / "last" / "manifest.json").exists()
    assert cli("eval", "cloned", "--episodes", "1").code == 0


def test_train_without_evaluation_records_no_episodes(cli: Cli, toy: str) -> None:
    assert cli("collect", toy, "--name", "shown").code == 0
    num_episodes = len(list(Path("runs/shown/episodes").glob("2*")))
    result = cli("train", "--resume", "shown", "--no-eval")
    assert result.code == 0, result.err
    assert "dovetail eval" in result.out
    assert len(list(Path("runs/shown/episodes").glob("2*"))) == num_episodes
    assert list(Path("runs/shown/weights").glob("v*.json"))


@pytest.mark.extended
def test_run_continues_a_trained_run_online(cli: Cli, toy: str) -> None:
    """The evaluation after `train` is not the final evaluation of the run."""
    assert cli("train", toy, "--name", "goes-on").code == 0
    trained = json.loads(Path("runs/goes-on/report.json").read_text("utf-8"))
    result = cli("run", "--resume", "goes-on")
    assert result.code == 0, result.err
    found = json.loads(Path("runs/goes-on/report.json").read_text("utf-8"))
    assert trained["env_steps"] == 0 < found["env_steps"]
    assert found["success_after"]["episodes"] == 2
    assert json.loads(Path("runs/goes-on/evaluations/trained.json").read_text("utf-8"))["offline"]


def test_on_policy_algorithms_cannot_train_offline(cli: Cli, toy: str) -> None:
    ppo = ("policy={type: actor_critic, hidden: [8]}", "algorithm={type: ppo, normalize: false}", "operator=none")
    assert "learns only from its own rollouts" in cli("train", toy, *ppo).line
