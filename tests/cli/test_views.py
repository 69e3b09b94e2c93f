"""The progress views of a run, and small drawings in text."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from dovetail.actor.telemetry import Telemetry
from dovetail.api.names import check_name, find_run, new_name
from dovetail.cli._live import LinesView, LiveView, view_for
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import duration, interval, sparkline, split_arguments
from dovetail.core.errors import RunFolderError, UsageError
from dovetail.core.figures import EpisodeScore, Performance
from dovetail.core.stats import Rate
from dovetail.learn.coach import Advice, Severity
from dovetail.runs.status import RunStatus, ignore_status


def _evaluation(successes: int) -> Performance:
    return Performance.of([EpisodeScore(success=number < successes, duration_s=6.0) for number in range(100)])


def _status() -> RunStatus:
    status = RunStatus(
        name="first-try", episodes=4, env_steps=180, updates=720, robot_minutes=0.3, interventions=2
    )
    status.begin("learning online", 4000, done=180)
    for success, duration_s, human_share in (
        (False, 6.0, 0.5),
        (False, 6.0, 0.5),
        (True, 4.0, 0.0),
        (True, 2.0, 0.0),
    ):
        score = EpisodeScore(
            success=success,
            duration_s=duration_s,
            reset_s=1.5,
            interventions=int(human_share > 0),
            total_reward=float(success),
        )
        status.remember_score(score, human_share=human_share, has_success=True)
    status.evaluations["cloning"] = _evaluation(30)
    return status


def test_live_view_shows_progress_and_rates() -> None:
    terminal = io.StringIO()
    with LiveView(Console(file=terminal, force_terminal=True, width=100, color_system=None)) as watch:
        watch(_status())
    picture = terminal.getvalue()
    for text in (
        "first-try",
        "learning online",
        "180 / 4000",
        "50 %",
        "25 %",
        "720",
        "0.3",
        "▁▁██",
        "30 %",
        "[22, 40]",
        "cycle time 3.0 s",  # 2 and 4 s
        "successes per minute 6.7",  # 2 in 18 s
        "with resets 5.0",  # 2 in 24 s
        "interventions 2 (6.7 per minute)",
        "cycle time 6.0 s (6.0 to 6.0), 3.0 successes per minute",
    ):
        assert text in picture


def test_views_of_a_run_without_an_operator_have_no_figures_of_help() -> None:
    terminal, log = io.StringIO(), io.StringIO()
    screen = Console(file=terminal, force_terminal=True, width=100, color_system=None)
    for console, file in ((screen, terminal), (Console(file=log, width=200), log)):
        with view_for(console, quiet=False, has_operator=False) as watch:
            watch(_status())
        assert "human" not in file.getvalue()
        assert "interventions" not in file.getvalue()
        assert "last 4" in file.getvalue()


def test_live_view_shows_the_timing_of_the_control_loop() -> None:
    terminal, telemetry = io.StringIO(), Telemetry()
    telemetry.tick(late_ns=250_000, overrun=True, missed=False)
    telemetry.answer(latency_ns=42_000_000, delay=3, jump=0.07)
    telemetry.count("clipped", 2)
    telemetry.count("starved", 5)
    status = _status()
    status.telemetry = telemetry.summary()
    with LiveView(Console(file=terminal, force_terminal=True, width=160, color_system=None)) as watch:
        watch(status)
    line = (
        "late 0.25 ms, p99 0.2, overruns 1, inference 42 ms, delay 3 ticks, clipped 2, jump 7 %, out of actions 5"
    )
    assert line in terminal.getvalue()


def test_lines_view_prints_phases_and_rates_once() -> None:
    file = io.StringIO()
    status = _status()
    with LinesView(Console(file=file, width=200)) as watch:
        for _ in range(50):
            watch(status)
        status.evaluations["after"] = _evaluation(99)
        watch(status)
    assert file.getvalue().splitlines() == [
        "learning online: 180/4000, success 50 % (last 4), cycle time 3.0 s, human 25 %, 720 updates, 0.3 robot min",
        "behavior cloning: 30 % [22, 40] of 100, cycle time 6.0 s (6.0 to 6.0), 3.0 successes per minute",
        "after online learning: 99 % [95, 100] of 100, cycle time 6.0 s (6.0 to 6.0), 9.9 successes per minute",
    ]


def test_views_of_an_environment_without_success_show_the_return() -> None:
    status = RunStatus(name="pendulum", episodes=3, env_steps=600, updates=600, robot_minutes=0.5)
    status.begin("learning online", 4000, done=600)
    for total_reward in (-1200.0, -900.0, -300.0):
        score = EpisodeScore(success=None, duration_s=10.0, total_reward=total_reward)
        status.remember_score(score, human_share=0.0, has_success=False)
    made = [EpisodeScore(success=None, duration_s=10.0, total_reward=total) for total in (-270.0, -254.0)]
    status.evaluations["after"] = Performance.of(made)
    file, terminal = io.StringIO(), io.StringIO()
    with LinesView(Console(file=file, width=200)) as watch:
        watch(status)
    with LiveView(Console(file=terminal, force_terminal=True, width=100, color_system=None)) as watch:
        watch(status)
    assert file.getvalue().splitlines() == [
        "learning online: 600/4000, return -800.00 (last 3), human 0 %, 600 updates, 0.5 robot min",
        "after online learning: return -262 [-364, -160] of 2",
    ]
    for text in ("return, last 3 -800.00", "return over time", "return -262  [-364, -160] of 2"):
        assert text in terminal.getvalue()
    assert "success" not in terminal.getvalue()


def _advice(number: int) -> Advice:
    severity = Severity.WARNING if number == 1 else Severity.HINT
    return Advice(
        name=f"n{number}", severity=severity, cause=f"message {number}", evidence="", command=f"remedy {number}"
    )


def test_live_view_shows_the_first_three_pieces_of_advice() -> None:
    terminal, status = io.StringIO(), _status()
    status.advice = tuple(_advice(number) for number in range(1, 6))
    view = LiveView(Console(file=terminal, force_terminal=True, width=100, color_system=None))
    with view as watch:
        watch(status)
    picture = terminal.getvalue()
    for text in ("coach", "● message 1", "try: remedy 3", "and 2 more, see events.jsonl"):
        assert text in picture
    assert "message 4" not in picture


def test_lines_view_prints_new_and_resolved_advice() -> None:
    file, status = io.StringIO(), _status()
    with LinesView(Console(file=file, width=200)) as watch:
        for advice in ((), (_advice(1),), (_advice(1),), (_advice(1), _advice(2)), (_advice(2),)):
            status.advice = advice
            watch(status)
    assert [line for line in file.getvalue().splitlines() if line.startswith("coach")] == [
        "coach: message 1. Try: remedy 1",
        "coach: message 2. Try: remedy 2",
        "coach: resolved: message 1",
    ]


def test_quiet_has_no_view() -> None:
    with view_for(Console(file=io.StringIO()), quiet=True) as watch:
        assert watch is ignore_status


def test_drawings() -> None:
    assert sparkline([0, 1], width=10) == "▁█"
    assert sparkline([0, 0, 1, 1], width=2) == "▁█"
    assert sparkline([0.5] * 3, width=3, low=0.0, high=1.0) == "▅▅▅"
    assert sparkline([], width=3) == ""
    assert interval(Rate(successes=0, episodes=10), width=11).plain == "●━━━·······"  # Wilson: [0, 0.28]
    assert interval(Rate(successes=10, episodes=10), width=11).plain == "·······━━━●"
    assert [duration(s) for s in (5, 90, 3720)] == ["5 s", "1 min 30 s", "1 h 02 min"]


def test_names(tmp_path: Path) -> None:
    assert split_arguments(["peg", "a.b=1", "x.yaml"]) == (["peg", "x.yaml"], ["a.b=1"])
    for bad in ("..", ".hidden", "a/b", "", "-x", "a b", "x" * 101):
        with pytest.raises(UsageError):
            check_name(bad)
    first = new_name("configs/my task.yaml", tmp_path)
    assert check_name(first).startswith("my-task-")
    (tmp_path / first / "config.yaml").parent.mkdir()
    assert new_name("configs/my task.yaml", tmp_path) != first
    with pytest.raises(RunFolderError, match="not a run folder"):
        find_run(first, tmp_path)
    (tmp_path / first / "config.yaml").touch()
    assert find_run(first, tmp_path) == find_run(str(tmp_path / first), Path("elsewhere")) == tmp_path / first


def test_the_first_signal_sets_the_stop_flag(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopFlag() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
    assert signal.getsignal(signal.SIGINT) is before
    assert "Ctrl-C again" in capfd.readouterr().err
