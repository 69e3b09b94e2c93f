"""Driving from a real Chromium: a page that was blocked and a network that stalled do not drive the arm."""

import os
import signal
import time
from dataclasses import replace

import pytest

from dovetail.core.specs import ArraySpec
from dovetail.human.mailbox import MailboxReader
from support.console_process import end_console, start_console
from support.live_arm import live_arm
from support.made_runs import ROBOT
from support.takeover_page import take_over
from support.waiting import wait_until

ARM = replace(ROBOT, action=ArraySpec(shape=(2,), names=("dx", "dy"), low=(-1.0, -1.0), high=(1.0, 1.0)))


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with live_arm(tmp_path_factory.mktemp("runs") / "one", robot=ARM) as arm:
        opened = start_console(arm.run)
        yield arm, opened
        end_console(opened)


@pytest.fixture
def reader(live):
    return MailboxReader(live[0].link.mailbox)


def drives(reader):
    command = reader.command()
    return command is not None and command.held and command.is_fresh(time.monotonic_ns())


def drives_within(reader, seconds):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if drives(reader):
            return True
        time.sleep(0.001)
    return False


@pytest.mark.extended
def test_page_that_was_blocked_does_not_drive_until_the_next_press(live, reader, page):
    take_over(live[1], page)
    wait_until(lambda: drives(reader))
    page.evaluate("() => { const end = performance.now() + 800; while (performance.now() < end); }")
    page.wait_for_selector("text=this page was blocked: the arm holds")
    assert not drives_within(reader, 0.5)  # the key is still down
    page.keyboard.up("Space")
    page.keyboard.down("Space")
    wait_until(lambda: drives(reader))
    page.keyboard.up("Space")


@pytest.mark.extended
def test_messages_that_a_stall_delivers_at_once_do_not_drive(live, reader, page):
    """The console is paused, so its socket keeps the messages of the page, as a network does."""
    take_over(live[1], page)
    wait_until(lambda: drives(reader))
    os.kill(live[1].process.pid, signal.SIGSTOP)
    try:
        time.sleep(1.5)
    finally:
        os.kill(live[1].process.pid, signal.SIGCONT)
    assert not drives_within(reader, 1.0)
    page.keyboard.up("Space")
