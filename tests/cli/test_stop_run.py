"""`dovetail stop`, `dovetail acknowledge` and signals, with a whole run in other processes."""

from __future__ import annotations

import time

import pytest

from support.stop_world import stop_world

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with stop_world(tmp_path_factory.mktemp("stop"), arms=("robot",)) as run:
        run.start_moving()
        yield run


def test_stop_and_acknowledge_from_another_terminal(run):
    done = run.press()
    assert done.returncode == 0, done.stderr
    assert "robot has stopped, after " in done.stdout
    run.check_stopped()
    done = run.press("robot")  # again, while it is stopped
    assert (done.returncode, "robot has stopped" in done.stdout) == (0, True), done.stderr
    released = run.command("acknowledge", str(run.path))
    assert "released from the emergency stop (dovetail stop)" in released.stdout
    run.wait_until_moving(time.monotonic_ns())


def test_device_of_the_arm_is_named_as_the_source(run):
    run.run.give("pad-robot")
    run.wait_for_press("pad of robot")
    run.check_stopped()
    run.release()


def test_stop_of_a_misspelled_arm_stops_all_arms(run):
    done = run.press("robt")
    assert done.returncode == 0, done.stderr
    assert "has no arm 'robt' (it has robot): stopping all arms" in done.stdout
    run.check_stopped()
    run.release()


def test_unknown_arms_and_runs_are_one_line(run):
    done = run.command("acknowledge", str(run.path), "robt")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "has no arm 'robt'. It has robot" in done.stderr
    done = run.command("stop", "nothing", "--runs-dir", str(run.path.parent))
    assert (done.returncode, "no run named 'nothing'" in done.stderr, "Active: r" in done.stderr) == (
        2,
        True,
        True,
    )
