"""An evaluation can be stopped from any terminal, and one without a STOP is refused on a real robot."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dovetail.api.evaluation import evaluate
from dovetail.api.launch import train
from dovetail.core.errors import UsageError
from dovetail.live.run_stop import NotRunning, RunStop
from dovetail.testing.live import read_journal
from support.toy_run import TOY
from support.waiting import wait_until

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a simulated arm with weights, to be evaluated on a fake arm on the real clock."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "toy.yaml").write_text(TOY)
    return train(
        folder / "toy.yaml",
        ("run.demos=1", "learner.bc_updates=1", "learner.warmup_updates=1"),
        evaluate=False,
        name="toy",
        runs_dir=folder,
    ).path


def settings(journal: Path) -> list[str]:
    return [
        f'robot={{type: "dovetail.testing.live:LiveArm", control_hz: 10.0, journal: "{journal}"}}',
        "actor.layout=processes",
        "task.tolerance=1.0e-9",
    ]


def test_evaluation_is_stopped_and_released_from_outside(trained, tmp_path):
    journal, ended = tmp_path / "journal", threading.Event()
    lines: list[str] = []
    thread = threading.Thread(
        target=lambda: evaluate(
            trained, settings(journal), num_episodes=1000, should_stop=ended.is_set, announce=lines.append
        )
    )
    thread.start()
    try:
        wait_until(lambda: sum(note.moves for note in read_journal(journal)) > 3, timeout_s=60.0)
        assert f"dovetail stop {trained}" in lines[0]
        with RunStop.attach(trained) as stop:
            place = stop.press("dovetail stop")
            stopped_ns = wait_until(lambda: stop.confirmed_ns("robot", after=place))
            wait_until(lambda: any("dovetail stop" in line and line.startswith("stopped") for line in lines))
            assert not any(note.moves for note in read_journal(journal) if note.time_ns > stopped_ns)
            stop.acknowledge()
            wait_until(lambda: any(note.moves for note in read_journal(journal) if note.time_ns > stopped_ns))
    finally:
        ended.set()
        thread.join(30.0)
    with pytest.raises(NotRunning):
        RunStop.attach(trained)


def test_real_robot_is_not_evaluated_in_the_folder_of_an_active_run(trained, tmp_path):
    with RunStop.create(trained), pytest.raises(UsageError, match="`dovetail stop` could not stop the arm"):
        evaluate(trained, settings(tmp_path / "journal"), num_episodes=1)
    assert read_journal(tmp_path / "journal") == []
