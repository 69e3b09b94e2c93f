"""Long benches in pieces: done once a commit, gone on with where they were stopped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.bench import shards
from dovetail.core.errors import FailureError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be run; the run writes a config, and a report unless it was asked to be killed."""
    seen: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        words = command[3:]
        seen.append(words)
        resumed = "--resume" in words
        folder = (
            Path(words[2])
            if resumed
            else Path(words[words.index("--runs-dir") + 1]) / words[words.index("--name") + 1]
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("")
        if "killed=true" in words:
            return SimpleNamespace(returncode=137, stderr="first\nthe last line")
        (folder / "report.json").write_text(json.dumps({"resumed": resumed}))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shards, "commit", lambda: "abc")
    return seen


def test_a_run_is_done_once_a_commit(
    tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = shards.Shards(tmp_path)
    for _ in range(2):
        assert pieces.report("peg-0", "peg-insertion", ["run.seed=0"]) == {"resumed": False}
    assert len(calls) == 1
    assert calls[0][:3] == ["run", "peg-insertion", "run.seed=0"]
    monkeypatch.setattr(shards, "commit", lambda: "def")
    shards.Shards(tmp_path).report("peg-0", "peg-insertion", ["run.seed=0"])
    assert len(calls) == 2


def test_one_that_was_stopped_goes_on(tmp_path: Path, calls: list[list[str]]) -> None:
    pieces = shards.Shards(tmp_path)
    with pytest.raises(FailureError, match=r"peg-0 failed: the last line"):
        pieces.report("peg-0", "peg-insertion", ["killed=true"])
    assert pieces.report("peg-0", "peg-insertion", ["killed=true"]) == {"resumed": True}
    assert calls[1][:3] == ["run", "--resume", str(tmp_path / "abc" / "peg-0")]
