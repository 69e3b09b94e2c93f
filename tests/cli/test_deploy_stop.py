"""`deploy` and `distill` move an arm: signals stop it there as in `dovetail run`, and the keys of the terminal reach it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.api import deployment, distillation
from dovetail.cli._judging_keys import JudgingKeys
from dovetail.cli.main import main
from dovetail.config.load import load
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.sequential_test import Answer
from dovetail.runs.deployment import Deployment
from dovetail.runs.folder import RunFolder
from support.waiting import wait_until


@pytest.fixture(params=[signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGINT])
def signaled(request: pytest.FixtureRequest) -> Any:
    """A function that sends a signal and waits until `should_stop` tells it. No signal ends the test itself."""
    before = signal.signal(request.param, lambda number, frame: None)

    def send(should_stop: Any) -> None:
        assert not should_stop()
        os.kill(os.getpid(), request.param)
        wait_until(should_stop)

    yield send
    signal.signal(request.param, before)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return RunFolder.create(tmp_path / "run", load(["peg-insertion"])).path


def test_signal_ends_a_comparison(run: Path, monkeypatch: pytest.MonkeyPatch, signaled: Any, capsys: Any) -> None:
    def compare(*given: Any, should_stop: Any, on_link: Any, announce: Any, **options: Any) -> Any:
        assert isinstance(on_link, JudgingKeys)
        signaled(should_stop)
        return SimpleNamespace(stopped=True)

    monkeypatch.setattr(deployment, "compare", compare)
    monkeypatch.setattr(deployment, "_pinned", lambda candidate, runs_dir: str(candidate))
    assert main(["deploy", str(run), "second"]) == 2
    assert "nothing was deployed" in capsys.readouterr().err


def test_signal_ends_watched_episodes(run: Path, monkeypatch: pytest.MonkeyPatch, signaled: Any) -> None:
    def evaluate(*given: Any, should_stop: Any, on_link: Any, announce: Any, **options: Any) -> Any:
        assert isinstance(on_link, JudgingKeys)
        signaled(should_stop)
        return SimpleNamespace(arms=())

    monkeypatch.setattr(deployment, "evaluate", evaluate)
    assert main(["deploy", str(run), "--watch", "3"]) == 130


def test_signal_ends_the_run_of_a_distilled_policy(
    run: Path, monkeypatch: pytest.MonkeyPatch, signaled: Any, capsys: Any
) -> None:
    def train(*given: Any, should_stop: Any, **options: Any) -> Any:
        signaled(should_stop)
        raise Interrupted("stopped")

    monkeypatch.setattr(distillation, "train", train)
    monkeypatch.setattr(distillation, "_successful", lambda source: ["e1"])
    monkeypatch.setattr(distillation, "_copy", lambda source, ids, folder: {"episodes": ids})
    code = main(["distill", str(run), "--into", "peg-insertion", "--name", "new", "--runs-dir", str(run.parent)])
    assert code == 130
    assert "dovetail train --resume new" in capsys.readouterr().out


def test_stopped_comparison_keeps_the_deployed_policy(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "compare", lambda *given, **options: SimpleNamespace(stopped=True))
    monkeypatch.setattr(deployment, "_pinned", lambda candidate, runs_dir: str(candidate))
    with pytest.raises(UsageError, match="nothing was deployed"):
        deployment.deploy(run, "second")
    assert deployment.deployment_of(run).deployed.weights == str(run)


@pytest.mark.parametrize("second", [("--roll-back",), ("third",), ("third", "--approve"), ("--watch", "3")])
def test_second_deploy_process_changes_nothing_while_one_compares(
    run: Path, monkeypatch: pytest.MonkeyPatch, second: tuple[str, ...]
) -> None:
    """Without the lock, the first one would write its state over the change of the second."""
    first = Deployment.load(RunFolder.open(run))
    first.propose(str(run / "first"))
    first.approve()
    refused: list[subprocess.CompletedProcess[str]] = []

    def compare(*given: Any, **options: Any) -> Any:
        command = [sys.executable, "-m", "dovetail.cli", "deploy", str(run), *second]
        refused.append(subprocess.run(command, capture_output=True, text=True, check=False))
        return SimpleNamespace(stopped=False, scores=(), answer=Answer.NOT_WORSE)

    monkeypatch.setattr(deployment, "compare", compare)
    monkeypatch.setattr(deployment, "_pinned", lambda candidate, runs_dir: str(candidate))
    assert deployment.deploy(run, "second").deployed
    (one,) = refused
    assert one.returncode == 2 and one.stderr.count("\n") == 1, one.stderr
    assert "another process changes what is deployed in" in one.stderr and "Ctrl-C there" in one.stderr
    state = deployment.deployment_of(run)
    assert state.deployed.weights == "second" and state.candidate is None
    assert [one.weights for one in state.earlier] == [str(run), str(run / "first")]
    assert deployment.roll_back(run)  # the lock is free again
    assert deployment.deployment_of(run).deployed.weights == str(run / "first")


def test_killed_deploy_process_leaves_no_lock(run: Path) -> None:
    hold = (
        "import sys, time; from pathlib import Path; from dovetail.runs.folder import RunFolder; from "
        "dovetail.runs.deployment import deployment_lock\n"
        "with deployment_lock(RunFolder.open(Path(sys.argv[1]))): print('held', flush=True); time.sleep(60)"
    )
    state = Deployment.load(RunFolder.open(run))
    state.propose("second")
    with subprocess.Popen([sys.executable, "-c", hold, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="another process changes what is deployed"):
            deployment.approve(run)
        process.kill()
    assert deployment.approve(run)
    assert deployment.deployment_of(run).deployed.weights == "second"
