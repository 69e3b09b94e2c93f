"""The mailbox of one arm and the emergency stop of its run."""

from __future__ import annotations

import pytest

from dovetail.core.types import Event
from dovetail.human.mailbox import Mailbox, MailboxWriter
from dovetail.live import mailbox_stop
from dovetail.live.mailbox_stop import MailboxStop
from dovetail.live.run_stop import RunStop


@pytest.fixture
def stop(tmp_path):
    stop = RunStop.create(tmp_path)
    for arm in ("left", "right"):
        stop.join(arm)
    yield stop
    stop.close()


@pytest.fixture
def box():
    return Mailbox(1)


@pytest.fixture
def link(stop, box, monkeypatch):
    """Its thread is as slow as that of a paused process: a test calls `_poll` itself."""
    monkeypatch.setattr(mailbox_stop, "_POLL_S", 3600.0)
    link = MailboxStop(box, RunStop.from_descriptor(stop.descriptor, arm="right"), source="keyboard of right")
    yield link
    link._ended.set()


def test_press_in_the_mailbox_stops_all_arms_and_one_acknowledgement_releases_both(stop, box, link):
    writer = MailboxWriter(box)
    writer.post(Event.EMERGENCY)
    link._poll()
    assert stop.is_stopped("left") and stop.is_stopped("right") and stop.source == "keyboard of right"
    stop.acknowledge()
    link._poll()
    assert not box.emergency and not stop.emergency

    writer.post(Event.EMERGENCY)
    link._poll()
    writer.post(Event.ACKNOWLEDGE)
    link._poll()
    assert not box.emergency and not stop.emergency


def test_press_of_the_console_is_not_pressed_again(stop, box, link):
    stop.press("console")  # it presses the run's stop itself, and then the mailbox
    MailboxWriter(box).post(Event.EMERGENCY)
    num = len(stop.records())
    link._poll()
    assert len(stop.records()) == num


def test_press_after_an_acknowledgement_stays_in_force_when_both_are_read_at_once(stop, box, link):
    writer = MailboxWriter(box)
    writer.post(Event.EMERGENCY)
    link._poll()
    writer.post(Event.ACKNOWLEDGE)
    writer.post(Event.EMERGENCY)  # while the process of the link was paused
    link._poll()
    link._poll()
    assert box.emergency and stop.is_stopped("left") and stop.is_stopped("right")
    writer.post(Event.ACKNOWLEDGE)
    link._poll()
    assert not box.emergency and not stop.emergency


def test_press_at_an_arm_that_is_stopped_stops_an_arm_that_was_released(stop, box, link):
    writer = MailboxWriter(box)
    writer.post(Event.EMERGENCY)
    link._poll()
    stop.acknowledge(arm="left")
    writer.post(Event.EMERGENCY)
    link._poll()
    assert stop.is_stopped("left")
