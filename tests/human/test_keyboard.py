"""The terminal as an operator: keys, repetitions, and Esc in any surroundings."""

import itertools
import os
import pty
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.core.types import Event
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.keyboard import _SEQUENCE, ESC, KeyParser, Keys, TerminalKeys, key_help
from dovetail.human.mailbox import Control, Mailbox, MailboxReader, MailboxWriter
from dovetail.testing.fakes import FakeBimanual, FakeBimanualConfig
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.input_hands import SPEC
from support.waiting import wait_until


def test_key_moves_while_it_repeats_and_enter_releases():
    keys = Keys()
    assert not keys.held
    assert keys.press("w", 10.0) is None
    assert keys.held
    assert keys.axes(10.24)[0] == 1.0
    assert keys.axes(10.26)[0] == 0.0  # it expires, although a terminal repeats it only later
    for tick in range(10):
        keys.press("W", 10.5 + 0.03 * tick)
    assert keys.axes(10.9)[0] == 1.0
    assert keys.axes(11.0)[0] == 0.0
    assert keys.num_presses == 1  # repetitions are no presses
    assert keys.held  # no motion is not a release
    assert keys.axes(11.0)[6] == 0.0
    keys.press(" ", 11.0)
    assert keys.axes(11.0)[6] == -1.0
    assert keys.press("y", 11.0) is Event.SUCCESS
    assert keys.press("\x1b", 11.0) is Event.EMERGENCY
    keys.press("\n", 12.0)
    assert not keys.held
    keys.press("w", 12.1)
    assert keys.num_presses == 3  # with the gripper's
    keys.press("w", 20.0)
    assert keys.num_presses == 4


def test_space_opens_a_closed_gripper_also_after_another_joint_was_chosen():
    keys = Keys()
    keys.press(" ", 1.0)
    assert keys.axes(1.0)[6] == -1.0
    keys.rest(same_gripper=True)
    assert keys.axes(1.1)[6] == 0.0  # it keeps its state
    keys.press(" ", 2.0)
    assert keys.axes(2.0)[6] == 1.0


@pytest.mark.parametrize("key", "tynxz")
def test_gripper_key_of_an_episode_does_not_move_the_gripper_in_the_next_one(key):
    keys = Keys()
    keys.press(" ", 1.0)
    keys.press(key, 2.0)
    keys.press("w", 3.0)
    assert keys.axes(3.0)[6] == 0.0
    keys.press(" ", 4.0)
    assert keys.axes(4.0)[6] == -1.0


@pytest.mark.parametrize("key", ["t", "y", "\n"])
def test_motion_key_soon_after_another_key_is_a_new_press(key):
    keys = Keys()
    keys.press("w", 1.0)
    keys.press(key, 1.1)
    keys.press("w", 1.2)
    assert keys.num_presses == 2


KNOWN = [
    b"\x1b[A",
    b"\x1b[D",
    b"\x1b[H",
    b"\x1b[1;5C",
    b"\x1b[3~",
    b"\x1b[15~",
    b"\x1b[24;2~",
    b"\x1b[[B",
    b"\x1b[Z",
]
PIECES = st.one_of(
    st.sampled_from(KNOWN),
    st.sampled_from(
        [b"\x1b", b"\x1b[", b"\x1bO", b"\x1bOA", b"\x1b[1", b"\x1b[1;", b"\x1b[200~", b"\x1b[M", b"[A", b"w", b"~"]
    ),
    st.binary(max_size=4),
)


def parse(chunks):
    parser = KeyParser()
    keys = [key for chunk in chunks for key in parser.feed(chunk)]
    return "".join([*keys, *parser.flush()])


@given(st.lists(PIECES, max_size=12), st.lists(st.integers(0, 60), max_size=8))
def test_esc_outside_a_known_sequence_is_an_emergency_stop(pieces, cuts):
    """Finding 21. However the bytes are split into reads. Nothing but known sequences is dropped."""
    data = b"".join(pieces)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    chunks = [data[first:end] for first, end in itertools.pairwise(places)]
    keys = parse(chunks)
    assert keys == parse([data])
    left = _SEQUENCE.sub("", data.decode("latin-1"))
    if ESC in left:
        events = [Keys().press(key, 0.0) for key in keys]
        assert Event.EMERGENCY in events
    if not any(piece.count(b"\x1b") and piece not in KNOWN for piece in pieces):
        assert ESC not in keys


@pytest.mark.parametrize("sequence", KNOWN)
def test_known_sequence_is_no_key_and_each_part_of_it_is_an_emergency_stop(sequence):
    assert parse([sequence]) == ""
    assert parse([sequence[at : at + 1] for at in range(len(sequence))]) == ""
    for end in range(1, len(sequence)):
        assert parse([sequence[:end]])[0] == ESC
        assert parse([sequence[:end] + b"\x1b"]).count(ESC) == 2


@pytest.mark.parametrize(
    "burst", [b"\x1bw", b"ww\x1b[ww", b"\x1bOA", b"\x1b\x1b[A", b"\x1b[\x1b[A", b"\x1b[99999~", b"\x1b"]
)
def test_esc_in_a_burst_stops_the_robot(burst):
    """Finding 21, through a real terminal."""
    ours, theirs = pty.openpty()
    box, pressed = Mailbox(7), []
    try:
        with TerminalKeys(lambda: (box, SPEC), descriptor=theirs, on_emergency=lambda: pressed.append(1)):
            os.write(ours, burst)
            wait_until(lambda: box.emergency and pressed)
    finally:
        os.close(ours)
        os.close(theirs)


def test_esc_before_the_robot_is_ready_is_reported():
    ours, theirs = pty.openpty()
    pressed = []
    try:
        with TerminalKeys(lambda: None, descriptor=theirs, on_emergency=lambda: pressed.append(1)):
            os.write(ours, b"\x1b")
            wait_until(lambda: pressed)
    finally:
        os.close(ours)
        os.close(theirs)


def test_esc_that_cannot_be_passed_on_is_tried_again_and_later_keys_are_heard():
    ours, theirs = pty.openpty()
    box, pressed = Mailbox(7), []

    def stop():
        if not box.emergency:  # the mailbox gets it meanwhile
            raise OSError("no descriptor left")
        pressed.append(1)

    try:
        with TerminalKeys(lambda: (box, SPEC), descriptor=theirs, on_emergency=stop):
            os.write(ours, b"\x1b")
            wait_until(lambda: box.emergency and pressed)
            os.write(ours, b"\x1b")
            wait_until(lambda: len(pressed) == 2)
    finally:
        os.close(ours)
        os.close(theirs)


def test_error_while_the_robot_starts_does_not_end_the_keyboard():
    ours, theirs = pty.openpty()
    problems, pressed = [RuntimeError("the robot is not ready")], []

    def find():
        if problems:
            raise problems.pop()

    try:
        with TerminalKeys(find, descriptor=theirs, on_emergency=lambda: pressed.append(1)):
            wait_until(lambda: not problems)
            os.write(ours, b"\x1b")
            wait_until(lambda: pressed)
    finally:
        os.close(ours)
        os.close(theirs)


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


def test_joint_that_does_not_exist_is_announced_and_stops_the_motion():
    ours, theirs = pty.openpty()
    box, lines = Mailbox(7), []
    reader = MailboxReader(box)
    try:
        with TerminalKeys(lambda: (box, SPEC), descriptor=theirs, announce=lines.append):
            os.write(ours, b"r")
            wait_until(lambda: (h := reader.command()) and h.axes[2] == 1.0)
            os.write(ours, b"5")
            wait_until(lambda: reader.command().axes[2] == 0.0)
            assert len(lines) == 1 and lines[0].startswith("keyboard: no joint 5: joints of ")
    finally:
        os.close(ours)
        os.close(theirs)


def test_hold_after_late_keys_is_announced_once():
    """A person who goes on holding a key would see an arm that stands still for no reason."""
    ours, theirs = pty.openpty()
    box, lines = Mailbox(7), []
    reader = MailboxReader(box)
    try:
        with TerminalKeys(lambda: (box, SPEC), descriptor=theirs, announce=lines.append):
            for num_losses in (1, 2):
                reader.report(Control.HUMAN)
                sent = reader.command()
                wait_until(lambda before=sent: reader.command() is not before)
                reader.report(Control.HOLDING)
                wait_until(lambda num=num_losses: len(lines) == num)
                os.write(ours, b"w")
                wait_until(lambda: reader.command().held)
        assert len(lines) == 2 and "the arm holds. Release all keys" in lines[0]
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("robot", "said", "unsaid"),
    [
        (SPEC, ["hold w s a d r f to move", "space"], ["joint", "Tab"]),
        (
            FakeBimanual(FakeBimanualConfig()).spec,
            ["hold w or s to move a joint; 1 to 9, comma"],
            ["rotate", "space"],
        ),
        (FakeMobileArm(FakeMobileArmConfig()).spec, ["Tab chooses "], []),
    ],
)
def test_help_names_the_keys_of_this_robot(robot, said, unsaid):
    shown = key_help(robot, DriveConfig())
    assert [part for part in said if part not in shown] == []
    assert [part for part in unsaid if part in shown] == []
    assert "Esc EMERGENCY STOP" in shown


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
