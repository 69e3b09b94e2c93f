"""Crafted live.json and stop.json: the console starts and finds a run all the same, and `dovetail stop` says one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dovetail.cli import entry
from dovetail.console.live_api import make_app
from dovetail.console.run_files import OpenRun
from dovetail.core.clock import boot_id
from dovetail.live.run_stop import NotRunning, RunStop
from dovetail.live.view import LiveView, NotLive
from hostile.folders import honest_run, put
from support.waiting import wait_until


def _values(**changes: Any) -> str:
    values = {"version": 1, "pid": 1, "started": 1, "boot_id": boot_id(), "descriptor": 3, "token": "x"}
    return json.dumps({**values, **changes})


TEXTS = {
    "deep": "[" * 100_000,
    "deep-object": '{"pid":' * 100_000,
    "infinite-pid": _values(pid=float("inf")),
    "nan-pid": _values(pid=float("nan")),
    "infinite-descriptor": _values(descriptor=float("-inf")),
    "long-pid": _values(pid="9" * 5000),
    "negative-pid": _values(pid=-1),
    "large": '{"pid": "' + "x" * 3_000_000,
    "no-object": "[]",
    "text": '"pid"',
    "binary": "\0\1\2",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_crafted_file_is_no_active_run(tmp_path: Path, text: str) -> None:
    put(tmp_path / "live.json", text)
    put(tmp_path / "stop.json", text)
    with pytest.raises(NotLive):
        LiveView.attach(tmp_path)
    with pytest.raises(NotRunning):
        RunStop.attach(tmp_path)


def test_pipe_as_live_file_is_no_active_run(tmp_path: Path) -> None:
    (tmp_path / "live.json").symlink_to("/dev/zero")
    with pytest.raises(NotLive):
        LiveView.attach(tmp_path)


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), ZeroDivisionError()])
def test_console_finds_the_run_after_any_error_in_a_live_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An error that no reader foresees must not end the search for the run's STOP."""
    run = OpenRun(honest_run(tmp_path))
    monkeypatch.setattr("dovetail.console.live_api._REFRESH_S", 0.02)

    def fail() -> None:
        raise error

    monkeypatch.setattr(run.arms, "refresh", fail)
    found = run.stop.find
    monkeypatch.setattr(run.stop, "find", fail)
    with TestClient(make_app(run)) as client:  # the console starts
        assert client.post("/api/stop").status_code == 409
        monkeypatch.setattr(run.stop, "find", found)
        with RunStop.create(run.files.path) as stop:
            wait_until(lambda: client.post("/api/stop").status_code == 200)
            assert stop.emergency


@pytest.mark.parametrize("text", ["deep", "infinite-pid"])
def test_dovetail_stop_with_a_crafted_file_prints_one_line(tmp_path: Path, text: str) -> None:
    run = honest_run(tmp_path)
    put(run / "stop.json", TEXTS[text])
    script = Path(sys.executable).with_name("dovetail")
    done = subprocess.run([str(script), "stop", str(run)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"error: no run is active in {run}\n"


def test_dovetail_stop_prints_any_other_error_as_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("dovetail.cli._run_stop.stop", fail)
    with pytest.raises(SystemExit) as ended:
        entry._stop(["r"])
    assert ended.value.code == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "error: STOP was not sent (RuntimeError: two lines). Press the robot's own emergency stop" in line
