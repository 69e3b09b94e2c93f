"""STOP of arms that do not share the memory of the run: the driver relays it through Ray, also while roles are stuck."""

from __future__ import annotations

import os
import signal
import time

import pytest

from support.stop_world import stop_world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with stop_world(tmp_path_factory.mktemp("far"), arms=("left", "right")) as run:
        run.run.environment["FAR_ARMS"] = "1"
        run.start_moving()
        with run.stop() as stop:
            run.run.wait_until(
                lambda: set(stop.arms) == {"left", "right"}, within_s=10.0, what="the arms have joined"
            )
        yield run


def test_stop_and_release_are_relayed_and_confirmed(run):
    done = run.press()
    assert done.returncode == 0, done.stderr
    assert "left has stopped, after" in done.stdout and "right has stopped, after" in done.stdout
    run.check_stopped()
    run.release()


def test_one_arm_is_stopped_alone(run):
    assert run.press("right").returncode == 0
    run.check_stopped("right")
    run.wait_until_moving(time.monotonic_ns(), "left")
    run.release("right")


def test_device_of_one_arm_stops_the_other(run):
    run.run.give("pad-right")
    run.wait_for_press("pad of right")
    run.check_stopped()
    run.release()


@pytest.mark.parametrize("role", ["StoreRole", "LearnerRole"])
def test_stop_is_relayed_while_a_role_is_stuck(run, role):
    pid = run.run.pid(role)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(1.0)  # the driver now waits for the role
        done = run.press()
        assert done.returncode == 0, done.stderr
        run.check_stopped()
    finally:
        os.kill(pid, signal.SIGCONT)
    run.release()


def test_restarted_arm_is_still_stopped(run):
    assert run.press().returncode == 0
    run.check_stopped()
    killed = [pid for pid, title in run.run.alive().items() if "ray::RobotRole" in title]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    run.run.wait_until(lambda: run.run.num_restarts("left") and run.run.num_restarts("right"), what="restarts")
    time.sleep(2.0)
    for arm in run.arms:
        assert not any(note.moves for note in run.notes(arm, killed_ns)), arm
    run.release()


def test_terminated_driver_stops_both_arms(run):
    """The last test: it ends the run."""
    run.run.driver.terminate()
    code, errors = run.run.wait_for_exit(within_s=60.0)
    assert code == 130, errors
    for arm in run.arms:
        assert run.notes(arm)[-1].what == "stop"
