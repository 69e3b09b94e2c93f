"""`deploy` and `distill` move an arm: signals stop it there as in `dovetail run`, and the keys of the terminal reach it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.api import deployment, distillation
from dovetail.cli._judging_keys import JudgingKeys
from dovetail.cli.main import main
from dovetail.config.load import load
from dovetail.core.errors import Interrupted, UsageError
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
