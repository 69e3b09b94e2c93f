"""A run folder that version 0.6 wrote, interrupted after two online episodes: every command still works on it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "run-0.6.tar.gz"
NUM_EPISODES = 8
OLDER = re.compile(r"warning: config of \S+ was written by an older version: \d+ settings renamed(, \d+ removed)?")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run-0.6"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "dovetail.cli", *map(str, arguments)]


def dovetail(*arguments: str | Path) -> str:
    """Run the command line in a new process; its output."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(notes) <= 1 and all(OLDER.fullmatch(note) for note in notes), done.stderr
    return done.stdout


def test_episodes_can_be_listed_verified_and_exported(run: Path) -> None:
    assert f"{NUM_EPISODES} of {NUM_EPISODES} episodes" in dovetail("episodes", "ls", run)
    assert f"{NUM_EPISODES} episodes, none damaged" in dovetail("episodes", "verify", run)
    assert "5 episodes exported" in dovetail("episodes", "export", run)
    assert json.loads((run / "lerobot" / "meta" / "info.json").read_text())["total_episodes"] == 5


@pytest.mark.extended
def test_weights_can_be_evaluated(run: Path) -> None:
    assert "weights version 5" in dovetail("eval", run, "-n", "1")
    assert "checkpoint" in dovetail("eval", run / "checkpoints" / "last", "-n", "1", "actor.max_bad_chunks=4")


@pytest.mark.extended
def test_policy_can_be_served(run: Path) -> None:
    with subprocess.Popen(command("serve", run, "--port", "0"), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = next((line for line in server.stdout if line.startswith("ready on ")), "")
        server.send_signal(signal.SIGINT)
        assert ready and server.wait(60) == 0


@pytest.mark.extended
def test_an_interrupted_run_can_be_resumed(run: Path) -> None:
    stored = (run / "config.yaml").read_text()
    dovetail("run", "--resume", run, "--quiet")
    assert (run / "config.yaml").read_text() == stored
    report = json.loads((run / "report.json").read_text())
    assert report["config_hash"] == "a0c99ace64a0" and report["env_steps"] >= 400
    assert len(list((run / "episodes").glob("2026*"))) > NUM_EPISODES
