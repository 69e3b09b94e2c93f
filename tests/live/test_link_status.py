"""The status that consoles see survives any text and any value, and the arm's stop and mailbox agree."""

from __future__ import annotations

import json

import pytest

from dovetail.core.types import Event
from dovetail.human.mailbox import MailboxWriter
from dovetail.live.link import LIVE_JSON, LiveLink
from dovetail.live.run_stop import RunStop
from dovetail.live.view import LiveView
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.waiting import wait_until

ROBOT = FakeArm(FakeArmConfig()).spec


@pytest.fixture
def link(tmp_path):
    link = LiveLink(tmp_path, robot=ROBOT)
    link.open()
    yield link
    link.close()


@pytest.fixture
def view(link, tmp_path):
    (tmp_path / "config.yaml").write_text("")
    view = LiveView.attach(tmp_path)
    yield view
    view.close()


@pytest.mark.parametrize("fault", ["x" * 100_000, "ä" * 40_000, "\ud800" * 3])
def test_long_fault_is_cut_and_later_states_are_shown(link, view, fault):
    link.update(run="one", phase="learning", fault=fault)
    wait_until(lambda: view.state().control == "fault")
    assert view.state().reason.startswith(fault[:3])
    link.update(fault=None, phase="next")
    wait_until(lambda: view.state().control == "idle" and view.state().reason == "next")


def test_values_that_are_too_long_or_not_json_leave_the_essential_ones(link, view):
    link.update(run="one", phase="first", advice=["x" * 40_000])
    wait_until(lambda: view.state().reason == "first")
    link.update(advice=[], phase="second", telemetry={"bad": object()}, fault="the elbow is stuck")
    wait_until(lambda: view.state().control == "fault")
    link.update(telemetry={}, phase=object(), fault="still")
    wait_until(lambda: view.state().reason == "still")
    link.update(phase="third", fault=None)
    wait_until(lambda: view.state().reason == "third")


@pytest.mark.parametrize(
    ("key", "how"), [(None, "Acknowledge it in the console or"), ("c", "Acknowledge it with key c, in")]
)
def test_fault_says_how_to_acknowledge_it(tmp_path, key, how):
    lines = []
    link = LiveLink(tmp_path, robot=ROBOT, announce=lines.append, acknowledge_key=key)
    link.open()
    try:
        assert not link.wait_for_acknowledgement("the elbow is stuck", since=0, should_stop=lambda: True)
    finally:
        link.close()
    assert len(lines) == 1 and how in lines[0]


def test_emergency_in_the_mailbox_presses_the_stop_of_the_run(link, tmp_path):
    writer, other = MailboxWriter(link.mailbox), RunStop.attach(tmp_path, arm="another")
    writer.post(Event.EMERGENCY)
    wait_until(lambda: other.emergency)
    assert "robot" in other.source
    writer.post(Event.ACKNOWLEDGE)
    wait_until(lambda: not other.emergency)
    assert not link.mailbox.emergency
    other.close()


def test_acknowledgement_elsewhere_releases_the_mailbox(link, tmp_path):
    MailboxWriter(link.mailbox).post(Event.EMERGENCY)
    with RunStop.attach(tmp_path) as terminal:
        wait_until(lambda: terminal.emergency)
        terminal.acknowledge()
        wait_until(lambda: not link.mailbox.emergency)
        assert not terminal.emergency


def test_links_of_two_arms_share_one_stop(tmp_path):
    (tmp_path / "run").mkdir()
    with RunStop.create(tmp_path / "run") as run:
        arms = []
        for name in ("left", "right"):
            (tmp_path / name).mkdir()
            arms.append(LiveLink(tmp_path / name, robot=ROBOT, stop=run, arm=name))
            arms[-1].open()
        left, right = arms
        assert run.arms == ("left", "right")
        MailboxWriter(left.mailbox).post(Event.EMERGENCY)
        wait_until(lambda: right.stop.emergency)
        assert json.loads((tmp_path / "left" / LIVE_JSON).read_text())["pid"]
        for one in arms:
            one.close()
