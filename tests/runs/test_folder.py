"""The folder of a run: incomplete lines in its events, and whether it holds work."""

import json

import pytest

from dovetail.config.load import load
from dovetail.learn.coach import Advice, Severity
from dovetail.reports.report import write_report
from dovetail.runs.advice import open_advice
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import read_rollouts
from dovetail.runtime.inline import InlineRun
from support.toy_run import TOY

ADVICE = Advice(name="no_reward", severity=Severity.WARNING, cause="none", evidence="0 of 9", command="more")
TORN = [
    '{"time": 1.0, "event": "coach", "na',
    '{"time": 1.0, "event": "practice", "env_steps": 12',
    '{"time": 1.0, "event": "checkpoint", "env_steps": 1, "updates": {"a": 1}',
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    return RunFolder.create(tmp_path / "run", load([tmp_path / "toy.yaml"]))


def write(folder, line):
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(line.encode() if isinstance(line, str) else line)


def note(folder):
    folder.event("coach", env_steps=1, **ADVICE.to_json())
    folder.event("practice", env_steps=64, robot_minutes=1.0, success=[True], length=[3])


def test_half_a_line_does_not_damage_others(folder):
    for torn in (*TORN, b"\0" * 40, b'\xff\xfe"event": "practice"}'):
        write(folder, torn)
        note(folder)
    lines = (folder.path / "events.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line)["event"] for line in lines if line.endswith(b"]}")] == ["practice"] * 5
    assert b"" not in lines[:-1]  # no more newlines than were missing
    assert len(list(folder.events("coach", "practice"))) == 10
    assert [line["env_steps"] for line in read_rollouts(folder.path)] == [64]
    assert open_advice(folder) == (ADVICE,)


@pytest.mark.parametrize("torn", TORN)
def test_line_joined_to_half_a_line_is_skipped(folder, torn):
    note(folder)
    write(folder, torn + '{"time": 2.0, "event": "checkpoint", "env_steps": 5, "updates": 7}\n')
    note(folder)
    assert list(folder.events("checkpoint")) == []
    assert len(list(folder.events("coach"))) == 2
    assert [line["env_steps"] for line in read_rollouts(folder.path)] == [64]


def test_run_with_half_a_line_resumes_and_reports(folder):
    for torn in TORN:
        write(folder, torn + '{"time": 2.0, "event": "coach"}\n')
        write(folder, torn)
        folder.event("checkpoint", env_steps=0, updates=0)
    InlineRun(RunFolder.open(folder.path)).run()
    assert write_report(folder).env_steps >= 120


def test_holds_work(folder):
    (folder.path / "logs").mkdir()
    (folder.path / "logs" / "curves").touch()
    (folder.weights / ".tmp").mkdir(parents=True)
    (folder.weights / ".lock").touch()
    folder.event("checkpoint")
    assert not folder.holds_work
    for path in (folder.checkpoints / "last", folder.weights, folder.episodes / "one"):
        path.mkdir(parents=True, exist_ok=True)
        (path / "something").touch()
        assert folder.holds_work
        (path / "something").unlink()
    assert not folder.holds_work
