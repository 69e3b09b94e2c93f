"""`dovetail episodes ls`, `show` and `rm` on runs made by hand."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from dovetail.cli._terminal import console
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder
from support.command_line import Cli
from support.made_runs import label, made_episode, made_run
from support.prompt_changes import with_prompts

A, B, C = (f"20260301T12000{n}-000000000-panda-{n:012x}" for n in (1, 2, 3))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """`runs/made` in the current folder: a demonstration, a timeout with help, and a failure."""
    monkeypatch.chdir(tmp_path)
    folder = made_run(
        Path("runs/made"),
        made_episode(A, purpose=Purpose.DEMO, human=tuple(range(6)), version=0),
        made_episode(B, outcome=Outcome.TIMEOUT, human=(2, 3, 5)),
        made_episode(C, outcome=Outcome.FAILURE, version=7, images=False, started=datetime(2026, 3, 2, 9, 30)),
    )
    label(folder, A)
    label(folder, B, success=False, confidence=0.6)
    return folder


# ---- ls


def test_list(cli: Cli, run: RunFolder) -> None:
    result = cli("episodes", "ls", "made")
    header, *rows, total = result.out.splitlines()
    assert header.split() == ["#", "id", "started", "purpose", "outcome", "label", "steps", "human", "weights"]
    assert [row.split() for row in rows] == [
        ["1", A, "2026-03-01", "12:00", "demo", "success", "✓", "6", "100", "%", "-"],
        ["2", B, "2026-03-01", "12:00", "online", "timeout", "✗", "60", "%", "6", "50", "%", "3"],
        ["3", C, "2026-03-02", "09:30", "online", "failure", "-", "6", "0", "%", "7"],
    ]
    assert total == "3 of 3 episodes in runs/made"
    assert result.code == 0


def test_list_fits_a_narrow_terminal(cli: Cli, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 80)
    lines = cli("episodes", "ls", "made").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert B[-12:] in lines[2]
    assert cli("episodes", "show", "made", B[-12:]).code == 0


def test_list_with_filters(cli: Cli, run: RunFolder) -> None:
    out = cli("episodes", "ls", "made", "--label", "none", "--since", "2026-03-02").out
    assert C in out and A not in out and B not in out
    assert "1 of 3 episodes" in out
    assert cli("episodes", "ls", "made", "--task", "nothing").out == "0 of 3 episodes in runs/made\n"
    result = cli("episodes", "ls", "made", "--since", "soon")
    assert (result.code, "is not a date" in result.line) == (2, True)


def test_list_as_json(cli: Cli, run: RunFolder) -> None:
    result = cli("episodes", "ls", "made", "--json")
    first, second, third = map(json.loads, result.out.splitlines())
    assert (first["id"], first["number"], first["purpose"], first["num_human_steps"]) == (A, 1, "demo", 6)
    assert first["label"] == {
        "success": True,
        "confidence": 1.0,
        "return": 1.0,
        "labeler": "outcome",
        "version": "1",
        "priority": 0,
    }
    assert second["label"]["confidence"] == 0.6
    assert second["cameras"] == ["front", "depth"]
    assert third["label"] is None
    assert datetime.fromisoformat(third["started"]).timestamp() == datetime(2026, 3, 2, 9, 30).timestamp()


def test_list_shows_damaged_episodes_as_such(cli: Cli, run: RunFolder) -> None:
    (run.episodes / B / "manifest.json").write_text("{}")
    result = cli("episodes", "ls", "made")
    assert A in result.out and C in result.out
    assert f"damaged: runs/made/episodes/{B}/manifest.json" in result.out
    assert "`dovetail episodes verify runs/made`" in result.out
    assert "2 of 3 episodes" in result.out
    result = cli("episodes", "ls", "made", "--json")
    assert len(result.out.splitlines()) == 2
    assert result.err.startswith("damaged: ")


# ---- show


def test_show_one_episode(cli: Cli, run: RunFolder) -> None:
    label(run, B, success=True, labeler="anna", priority=10)
    label(run, B, success=False, version="2")
    out = cli("episodes", "show", "made", "2").out
    for description in (
        "peg_insertion: put the peg in",
        "3 steps in 2 takeovers",
        "front: 4 frames 16x12, ffv1, exact, ",
        "depth: 7 frames 8x6, ffv1, exact, ",
        "observation/state",
    ):
        assert description in out
    history = [line.split() for line in out.splitlines() if line.startswith(("✓", "✗"))]
    assert [row[:2] for row in history] == [["✗", "60"], ["✓", "anna"], ["✗", "outcome"]]
    assert [row[-1] for row in history] == ["0", "current", "0"]
    assert "1" in history[1] and "10" in history[1]  # its version, and its priority


def test_show_lists_the_prompts_of_an_episode(cli: Cli, run: RunFolder) -> None:
    episode = with_prompts(made_episode("20260401T000000-1-panda-0"), {2: "turn it", 4: "let go"})
    EpisodeLog(run.episodes).commit(episode)
    out = cli("episodes", "show", "made", "last").out
    lines = [line.strip() for line in out.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.endswith("peg_insertion: put the peg in"))
    assert lines[at + 1 : at + 3] == ["from step 2: turn it", "from step 4: let go"]
    newest = json.loads(cli("episodes", "ls", "made", "--json").out.splitlines()[-1])
    assert newest["prompt_changes"] == [{"step": 2, "prompt": "turn it"}, {"step": 4, "prompt": "let go"}]


def test_show_an_episode_without_labels_or_with_damaged_labels(cli: Cli, run: RunFolder) -> None:
    assert "none yet" in cli("episodes", "show", "made", "last").out
    (run.labels / "labels.jsonl").write_bytes(b"rubbish\n" * 500)
    result = cli("episodes", "show", "made", "first")
    assert result.code == 0
    assert "line 1 is damaged" in result.out and "reward/reach" in result.out


@pytest.mark.extended
@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["show"], "manifest.json"),
        (["show"], "steps.parquet"),
        (["show", "--save", "b.rrd"], "frames-front.mkv"),
        (["video"], "frames-front.mkv"),
        (["video"], "last.parquet"),
    ],
)
def test_error_for_a_damaged_episode_names_the_repair_commands(
    cli: Cli, run: RunFolder, command: list[str], file: str
) -> None:
    path = run.episodes / B / file
    path.write_bytes(path.read_bytes()[:-1])
    name, *options = command
    result = cli("episodes", name, "made", "2", *options)
    assert result.code == 1
    assert file in result.line
    assert "`dovetail episodes verify runs/made`" in result.line
    assert f"`dovetail episodes rm runs/made {B}`" in result.line
    assert cli("episodes", "verify", "runs/made").code == 1
    assert cli("episodes", "rm", "runs/made", B, "--yes").code == 0
    assert cli("episodes", "verify", "runs/made").code == 0


def test_save_for_rerun(cli: Cli, run: RunFolder) -> None:
    result = cli("episodes", "show", "made", "first", "--save", "new/first.rrd")
    assert result.code == 0
    assert "new/first.rrd: 6 steps" in result.out
    assert Path("new/first.rrd").read_bytes()[:3] == b"RRF"
    assert os.listdir("new") == ["first.rrd"]


def test_rerun_without_a_display_or_without_the_package(
    cli: Cli, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    result = cli("episodes", "show", "made", "first", "--rerun")
    assert (result.code, "needs a display" in result.line) == (2, True)
    monkeypatch.setitem(sys.modules, "rerun", None)
    result = cli("episodes", "show", "made", "first", "--save", "x.rrd")
    assert result.line == "error: Rerun is not installed: pip install dovetail[rerun]\n"
    assert not Path("x.rrd").exists()


# ---- rm


def test_remove_named_episodes(cli: Cli, run: RunFolder) -> None:
    size = sum(path.stat().st_size for path in (run.episodes / B).iterdir())
    result = cli("episodes", "rm", "made", "2", B[-12:], "--yes")
    assert result.code == 0
    assert f"1 episode removed from runs/made, {size / 1024:.1f} KiB freed" in result.out
    assert EpisodeLog(run.episodes).ids() == [A, C]
    assert not (run.episodes / B).exists()
    assert len(LabelStore(run.labels).history(B)) == 1  # labels are kept
    event = json.loads((run.path / "events.jsonl").read_text().splitlines()[-1])
    assert (event["event"], event["ids"]) == ("episodes removed", [B])


def test_remove_episodes_by_filter(cli: Cli, run: RunFolder) -> None:
    assert cli("episodes", "rm", "made", "--purpose", "online", "-y").code == 0
    assert EpisodeLog(run.episodes).ids() == [A]
    result = cli("episodes", "rm", "made", "--purpose", "online", "-y")
    assert (result.code, "nothing to delete" in result.out) == (0, True)


def test_remove_a_damaged_episode_by_name_only(cli: Cli, run: RunFolder) -> None:
    (run.episodes / B / "manifest.json").write_text("{}")
    result = cli("episodes", "rm", "made", "--source", "human", "--yes")  # it is unknown whether this one matches
    assert f"not deleted, because it is damaged: runs/made/episodes/{B}" in result.out
    assert EpisodeLog(run.episodes).ids() == [B, C]
    assert cli("episodes", "rm", "made", B, "--yes").code == 0
    assert EpisodeLog(run.episodes).ids() == [C]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "description"),
    [
        ([], "name episodes, or choose them"),
        (["--yes"], "name episodes, or choose them"),
        (["1", "--outcome", "timeout", "--yes"], "but not both"),
        (["zzz", "--yes"], "no episode 'zzz'"),
        (["1", "zzz", "--yes"], "no episode 'zzz'"),
        (["1"], "no terminal to confirm it: add --yes"),
        (["--outcome", "timeot", "--yes"], "Did you mean 'timeout'?"),
    ],
)
def test_ambiguous_removal_is_refused(
    cli: Cli, run: RunFolder, arguments: list[str], description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    result = cli("episodes", "rm", "made", *arguments)
    assert description in result.line
    assert result.code == 2
    assert EpisodeLog(run.episodes).ids() == [A, B, C]


@pytest.mark.extended
@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 130, [A, B, C]), (b"y\n", 0, [A, B])])
def test_removal_asks_for_confirmation(run: RunFolder, answer: bytes, code: int, left: list[str]) -> None:
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail.cli", "episodes", "rm", "made", "last"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(terminal, answer)
    out, _ = process.communicate(timeout=60)
    os.close(terminal)
    os.close(theirs)
    assert C in out
    assert "Delete 1 episode (" in out
    assert process.returncode == code
    assert EpisodeLog(run.episodes).ids() == left


def test_no_removal_while_another_process_holds_the_lock(cli: Cli, run: RunFolder) -> None:
    with (run.path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = cli("episodes", "rm", "made", "--outcome", "timeout", "--yes")
    assert "another process is working in" in result.line
    assert result.code == 2
    assert EpisodeLog(run.episodes).ids() == [A, B, C]
