"""Two policies are compared on the same resets, or on a real arm in random order, and the answer is recorded."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.config.trust import mark_trusted
from dovetail.core.errors import UsageError
from dovetail.core.sequential_test import Answer
from dovetail.live.run_stop import NotRunning, RunStop
from dovetail.runs.folder import read_events
from dovetail.runs.paired_play import PairedPlayer
from dovetail.testing.live import read_journal
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY
from support.waiting import wait_until

TRAINED = {
    "good": ("run.demos=10", "learner.bc_updates=400"),
    "bad": ("run.demos=1", "learner.bc_updates=1"),
    "small": ("run.demos=1", "learner.bc_updates=1", "policy.hidden=[8]"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that learned something and two that did not, one of them with another network."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "toy.yaml").write_text(TOY)
    for name, settings in TRAINED.items():
        changes = (*settings, "learner.warmup_updates=1")
        dovetail.train(folder / "toy.yaml", changes, evaluate=False, name=name, runs_dir=folder)
    return folder


@pytest.mark.parametrize(("a", "b", "answer"), [("good", "bad", Answer.WORSE), ("bad", "good", Answer.NOT_WORSE)])
def test_policy_that_learned_nothing_is_worse(runs: Path, a: str, b: str, answer: Answer) -> None:
    result = dovetail.compare(a, b, runs_dir=runs)
    assert (result.answer, result.measure, result.same_resets) == (answer, "success", True)
    assert result.a.num_episodes == result.b.num_episodes == result.test.num_pairs < 100
    for run in (a, b):
        (*_, event) = read_events(runs / run, "compare")
        assert event["answer"] == answer.value
        assert event["a"]["rate"] == result.a.value
        assert event["b"]["weights"] == f"{runs / b}, weights version 2"


@pytest.mark.parametrize("other", ["bad", "small"])
def test_both_policies_begin_at_the_same_resets(runs: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    began: dict[int, list[np.ndarray]] = {1: [], 2: []}
    play = PairedPlayer.play

    def spy(self, contender, index):
        episode = play(self, contender, index)
        began[contender.number].append(episode.column("observation/goal")[0])
        return episode

    monkeypatch.setattr(PairedPlayer, "play", spy)
    dovetail.compare("good", other, num_episodes=5, runs_dir=runs)
    np.testing.assert_array_equal(began[1], began[2])
    assert len(np.unique(began[1], axis=0)) == 5


def test_two_versions_of_one_run_are_two_policies(runs: Path, tmp_path: Path) -> None:
    """Both are loaded into the same robot: the better one solves the task, and the other does not."""
    run = shutil.copytree(runs / "good", tmp_path / "both")
    mark_trusted(run)
    DiskWeightStore(run / "weights").publish(DiskWeightStore(runs / "bad" / "weights").latest().components)
    result = dovetail.compare(run / "weights" / "v00000002.json", run, runs_dir=runs)
    assert result.names == (f"{run}, weights version 2", f"{run}, weights version 3")
    assert result.answer is Answer.WORSE
    assert dovetail.compare(run, run / "weights" / "v00000002.json", runs_dir=runs).answer is Answer.NOT_WORSE


def test_policies_of_different_robots_are_refused(runs: Path) -> None:
    settings = ("run.demos=1", "learner.bc_updates=1", "learner.warmup_updates=1", "robot.control_hz=20")
    dovetail.train(runs / "toy.yaml", settings, evaluate=False, name="fast", runs_dir=runs)
    with pytest.raises(
        UsageError, match=r"same robot, but robot\.control_hz is 10\.0 in .*good and 20\.0 in .*fast"
    ):
        dovetail.compare("good", "fast", runs_dir=runs)
    dovetail.compare("good", "fast", ["robot.control_hz=10"], num_episodes=1, runs_dir=runs)


def test_returns_decide_where_the_task_tells_no_success(runs: Path) -> None:
    without = ['task={type: "support.unjudged_reach:UnjudgedReach", max_steps: 30}']
    result = dovetail.compare("good", "bad", without, runs_dir=runs)
    assert (result.measure, result.answer) == ("return", Answer.WORSE)
    assert result.a.success is None
    assert dovetail.compare("good", "good", without, runs_dir=runs).answer is Answer.NOT_WORSE


def test_stopped_comparison_is_not_recorded(runs: Path) -> None:
    num_events = len(list(read_events(runs / "good", "compare")))
    seen: list[int] = []
    result = dovetail.compare(
        "good",
        "good",
        runs_dir=runs,
        on_pair=lambda so_far: seen.append(len(so_far.scores)),
        should_stop=lambda: len(seen) >= 3,
    )
    assert result.stopped and len(result.scores) == 3
    assert len(list(read_events(runs / "good", "compare"))) == num_events


@pytest.mark.extended
@pytest.mark.parametrize("pressed", ["good", "bad"])
def test_stop_in_either_folder_stops_the_real_arm(runs: Path, tmp_path: Path, pressed: str) -> None:
    journal, ended, lines = tmp_path / "journal", threading.Event(), []
    settings = [
        f'robot={{type: "dovetail.testing.live:LiveArm", control_hz: 10.0, journal: "{journal}"}}',
        "actor.layout=processes",
        "task.tolerance=1.0e-9",
    ]
    results = []
    thread = threading.Thread(
        target=lambda: results.append(
            dovetail.compare(
                "good", "bad", settings, runs_dir=runs, should_stop=ended.is_set, announce=lines.append
            )
        )
    )
    thread.start()
    try:
        wait_until(lambda: sum(note.moves for note in read_journal(journal)) > 3, timeout_s=60.0)
        with RunStop.attach(runs / pressed) as stop:
            place = stop.press("dovetail stop")
            stopped_ns = wait_until(lambda: stop.confirmed_ns("robot", after=place))
            wait_until(lambda: any("dovetail stop" in line and line.startswith("stopped") for line in lines))
            assert not any(note.moves for note in read_journal(journal) if note.time_ns > stopped_ns)
            stop.acknowledge()
            wait_until(lambda: any(note.moves for note in read_journal(journal) if note.time_ns > stopped_ns))
    finally:
        ended.set()
        thread.join(60.0)
    assert results[0].stopped and not results[0].same_resets
    for run in ("good", "bad"):
        with pytest.raises(NotRunning):
            RunStop.attach(runs / run)


@pytest.mark.extended
def test_real_arm_is_open_for_one_of_two_networks_at_a_time(runs: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    settings = [
        f'robot={{type: "dovetail.testing.live:LiveArm", journal: "{journal}"}}',
        "actor.layout=processes",
        "task.tolerance=1.0e-9",
        "task.max_steps=5",
    ]
    result = dovetail.compare("good", "small", settings, num_episodes=1, runs_dir=runs)
    assert (result.test.num_pairs, result.same_resets) == (1, False)
    movers = [note.pid for note in read_journal(journal) if note.moves]
    turns = [pid for pid, before in zip(movers, [None, *movers], strict=False) if pid != before]
    assert len(turns) == len(set(turns)) == 2  # no process moves the arm after another one has


def test_real_arm_is_not_used_while_a_run_is_active(runs: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    settings = [
        f'robot={{type: "dovetail.testing.live:LiveArm", control_hz: 10.0, journal: "{journal}"}}',
        "actor.layout=processes",
    ]
    with RunStop.create(runs / "bad"), pytest.raises(UsageError, match="`dovetail stop` could not stop the arm"):
        dovetail.compare("good", "bad", settings, runs_dir=runs)
    assert read_journal(journal) == []
