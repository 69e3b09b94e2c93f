"""STOP from every source reaches both arms of a Ray run, also while the driver or the store is stuck."""

from __future__ import annotations

import os
import signal
import time

import httpx
import pytest

from support.console_process import end_console, start_console
from support.stop_world import stop_world
from support.waiting import wait_until

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with stop_world(tmp_path_factory.mktemp("arms"), arms=("left", "right")) as run:
        run.start_moving()
        yield run


def test_dovetail_stop_stops_all_arms_and_names_them(run):
    done = run.press()
    assert done.returncode == 0, done.stderr
    assert "left has stopped, after" in done.stdout and "right has stopped, after" in done.stdout
    run.check_stopped()
    run.release()
    assert [event["source"] for event in run.run.events("emergency stop")] == ["dovetail stop"]


def test_one_arm_is_stopped_and_released_while_the_other_moves(run):
    done = run.press("right")
    assert done.returncode == 0, done.stderr
    run.check_stopped("right")
    run.wait_until_moving(time.monotonic_ns(), "left")
    run.release("right")


def test_device_of_the_second_arm_stops_the_first(run):
    run.run.give("pad-right")
    run.wait_for_press("pad of right")
    run.check_stopped()
    run.release()


def test_stop_reaches_both_arms_while_the_driver_is_paused(run):
    os.kill(run.run.driver.pid, signal.SIGSTOP)
    try:
        done = run.press()
        assert done.returncode == 0, done.stderr
        run.check_stopped()
    finally:
        os.kill(run.run.driver.pid, signal.SIGCONT)
    run.release()


def test_stop_reaches_both_arms_while_the_store_is_stuck(run):
    store = run.run.pid("StoreRole")
    os.kill(store, signal.SIGSTOP)
    try:
        time.sleep(0.3)
        done = run.press()
        assert done.returncode == 0, done.stderr
        run.check_stopped()
    finally:
        os.kill(store, signal.SIGCONT)
    run.release()


def test_stop_in_the_console_reaches_both_arms(run):
    console = start_console(run.path)
    try:
        reply = httpx.post(f"{console.address}api/stop", headers=console.headers, timeout=30.0).json()
        assert ({one["arm"] for one in reply["confirmed"]}, reply["missing"]) == ({"left", "right"}, [])
        run.check_stopped()
        wait_until(lambda: _arm_states(console) == {("left", True), ("right", True)})
        acknowledged = {"event": "acknowledge"}
        httpx.post(f"{console.address}api/event", headers=console.headers, json=acknowledged).raise_for_status()
        run.wait_until_moving(time.monotonic_ns())
    finally:
        end_console(console)


def _arm_states(console) -> set[tuple[str, bool]]:
    state = httpx.get(f"{console.address}api/state", headers=console.headers).json()["state"]
    return {(arm["name"], arm["confirmed"]) for arm in state["stop"]["arms"]}


def test_lost_terminal_stops_both_arms_and_ends_the_run(run):
    """The last test: it ends the run."""
    os.kill(run.run.driver.pid, signal.SIGHUP)
    code, errors = run.run.wait_for_exit(within_s=60.0)
    assert code == 130, errors
    for arm in run.arms:
        assert run.notes(arm)[-1].what == "stop"
    assert not (run.path / "stop.json").exists()
