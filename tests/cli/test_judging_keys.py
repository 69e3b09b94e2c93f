"""The keys of the terminal in an evaluation: they start and judge its episodes, one arm after another."""

import io
import os
import pty
from types import SimpleNamespace

import pytest

from dovetail.cli._judging_keys import JudgingKeys
from dovetail.config.schema import PluginSection
from dovetail.core.types import Event
from dovetail.human.axes import num_drive_axes
from dovetail.human.mailbox import Mailbox, MailboxReader
from support.input_hands import SPEC
from support.waiting import wait_until


class Link:
    """What the keys need of a link: a mailbox, once it is open."""

    def __init__(self):
        self.mailbox, self.is_open, self.waits = Mailbox(num_drive_axes(SPEC)), False, False

    def wait_after_faults(self, *, acknowledge_key):
        self.waits = acknowledge_key == "c"

    def event(self):
        posted = MailboxReader(self.mailbox).next_event()
        return posted and posted.event


class Stop:
    def __init__(self):
        self.pressed_by = []

    def press(self, source):
        self.pressed_by.append(source)


def config(operator):
    return SimpleNamespace(operator=PluginSection.parse("operator", operator))


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as standard input; the person's end of it."""
    ours, theirs = pty.openpty()
    before = os.dup(0)
    os.dup2(theirs, 0)
    with os.fdopen(os.dup(theirs)) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.dup2(before, 0)
    for one in (before, ours, theirs):
        os.close(one)


def test_keys_judge_the_arm_that_is_evaluated_now(terminal):
    first, second, stop = Link(), Link(), Stop()
    with JudgingKeys() as keys:
        for link, key, event in ((first, b"y", Event.SUCCESS), (second, b"n", Event.FAILURE)):
            keys(config("keyboard"), link, SPEC, stop)
            assert link.waits
            link.is_open = True
            wait_until(lambda link=link: link.mailbox.writer_ns > 0)
            os.write(terminal, key)
            wait_until(lambda link=link, event=event: link.event() is event)
        os.write(terminal, b"\x1b")
        wait_until(lambda: stop.pressed_by == ["keyboard"])


def test_keys_judge_if_the_keyboard_is_one_of_several_operators(terminal):
    link = Link()
    several = {
        "type": "several",
        "operators": [{"type": "gamepad", "part": "arm"}, {"type": "keyboard", "part": "base"}],
    }
    with JudgingKeys() as keys:
        keys(config(several), link, SPEC, Stop())
    assert link.waits


def test_keys_are_not_read_for_another_operator(terminal):
    link = Link()
    with JudgingKeys() as keys:
        keys(config("gamepad"), link, SPEC, Stop())
    assert not link.waits


def test_without_a_terminal_the_console_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    link = Link()
    with JudgingKeys() as keys:
        keys(config("keyboard"), link, SPEC, Stop())
    assert not link.waits
    assert "judge in the console" in capsys.readouterr().out
