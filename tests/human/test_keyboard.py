"""The terminal as an operator: keys, repetitions, and Esc in any surroundings."""

import os
import pty
import time

import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Event
from dovetail.human.keyboard import Keys, TerminalKeys
from dovetail.human.mailbox import Mailbox, MailboxReader, MailboxWriter
from support.input_hands import SPEC
from support.waiting import wait_until


def test_key_moves_while_it_repeats_and_enter_releases():
    keys = Keys()
    assert not keys.held
    assert keys.press("w", 10.0) is None
    assert keys.held
    assert keys.axes(10.5)[0] == 1.0  # until a terminal would repeat it
    assert keys.axes(10.6)[0] == 0.0
    for tick in range(10):
        keys.press("W", 10.5 + 0.03 * tick)
    assert keys.axes(10.9)[0] == 1.0
    assert keys.axes(11.0)[0] == 0.0
    assert keys.held  # no motion is not a release
    assert keys.axes(11.0)[6] == 0.0
    keys.press(" ", 11.0)
    assert keys.axes(11.0)[6] == -1.0
    assert keys.press("y", 11.0) is Event.SUCCESS
    assert keys.press("\x1b", 11.0) is Event.EMERGENCY
    keys.press("\n", 12.0)
    assert not keys.held


def test_terminal_writes_to_the_mailbox_until_it_closes():
    ours, theirs = pty.openpty()
    box = Mailbox(7)
    reader = MailboxReader(box)
    try:
        with TerminalKeys(lambda: (box, SPEC), descriptor=theirs):
            os.write(ours, b"r")
            command = wait_until(lambda: (h := reader.command()) and h.held and h)
            assert command.axes[2] == 1.0
            os.write(ours, b"\x1b[A")  # an arrow is no Esc
            os.write(ours, b"p")
            assert wait_until(reader.next_event).event is Event.PAUSE
            os.write(ours, b"\n")
            wait_until(lambda: not reader.command().held)
            os.write(ours, b"\x1b")
            wait_until(lambda: box.emergency)
            os.write(ours, b"c")
            wait_until(lambda: not box.emergency)
            os.write(ours, b"w")
            wait_until(lambda: reader.command().held)
            os.close(ours)
            ours = None
            command = wait_until(lambda: (h := reader.command()) and not h.is_fresh(time.monotonic_ns()) and h)
            assert command.held  # no release was received, so the arm holds
    finally:
        for descriptor in (ours, theirs):
            if descriptor is not None:
                os.close(descriptor)


def test_terminal_emergency_stop_works_while_a_console_has_the_mailbox():
    ours, theirs = pty.openpty()
    box = Mailbox(7)
    console = MailboxWriter(box)
    console.beat()
    try:
        with TerminalKeys(lambda: console.beat() or (box, SPEC), descriptor=theirs):
            os.write(ours, b"p\x1b")
            wait_until(lambda: console.beat() or box.emergency)
            assert box.num_posted == 0  # other keys are the console's
            console.post(Event.ACKNOWLEDGE)
            assert not box.emergency
    finally:
        os.close(ours)
        os.close(theirs)


def test_keyboard_without_a_terminal_gives_usage_error():
    reading, writing = os.pipe()
    with pytest.raises(UsageError, match="needs a terminal"):
        TerminalKeys(lambda: None, descriptor=reading)
    os.close(reading)
    os.close(writing)
