"""The mailbox: the newest command while it is fresh, events once and in order, invalid values never."""

import mmap
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dovetail.core.errors import UsageError
from dovetail.core.types import Event
from dovetail.human.mailbox import NUM_SLOTS, Control, Mailbox, MailboxReader, MailboxWriter

S = 1_000_000_000
ANY_NUMBER = st.one_of(st.floats(width=32), st.floats(-2, 2, width=32))


def a_pair(num_axes=7):
    box = Mailbox(num_axes)
    return MailboxWriter(box), MailboxReader(box)


def test_newest_command_counts_until_it_expires():
    writer, reader = a_pair(2)
    assert reader.command() is None
    writer.drive(session=5, sequence=1, held=True, axes=[0.5, -1.0], time_ns=10 * S)
    writer.drive(session=5, sequence=2, held=True, axes=[0.25, 1.0], time_ns=11 * S, expires_s=0.5)
    command = reader.command()
    assert (command.session, command.sequence, command.held, command.axes.tolist()) == (5, 2, True, [0.25, 1.0])
    assert command.is_fresh(11 * S + S // 2)
    assert not command.is_fresh(11 * S + S // 2 + 1)
    assert not command.is_fresh(9 * S)  # time stamp of another clock
    assert reader.command() == command  # nothing new


@given(st.lists(ANY_NUMBER, max_size=9), st.integers(-(2**64), 2**64), st.integers(-(2**64), 2**64))
def test_invalid_axes_are_rejected(axes, session, sequence):
    writer, reader = a_pair(7)
    makes_sense = (
        len(axes) == 7 and all(abs(a) <= 1 for a in axes) and 0 < session < 2**63 and 0 < sequence < 2**63
    )
    if makes_sense:
        writer.drive(session=session, sequence=sequence, held=True, axes=axes)
        assert reader.command().axes.tolist() == axes
    else:
        with pytest.raises(UsageError):
            writer.drive(session=session, sequence=sequence, held=True, axes=axes)
        assert reader.command() is None


@pytest.mark.parametrize("axes", [["a"] * 7, None, [[0.0]] * 7, [1e400] * 7, [float("nan")] * 7, object()])
def test_non_numeric_axes_are_rejected(axes):
    writer, reader = a_pair(7)
    with pytest.raises(UsageError):
        writer.drive(session=1, sequence=1, held=True, axes=axes)
    assert reader.command() is None


def test_reader_checks_every_value():
    """NaN, axes beyond 1, an invalid `held`, an old number, written without the writer's checks."""
    box = Mailbox(2)
    reader = MailboxReader(box)
    now = time.monotonic_ns()
    for sequence, axes, held, good in (
        (1, 0.5, 1, True),
        (2, np.nan, 1, False),
        (3, 1.5, 1, False),
        (4, 0, 7, False),
    ):
        box.drive.write({"numbers": (9, sequence, now, S, held, 1), "axes": axes})
        command = reader.command()
        assert (command.sequence, command.is_valid) == (sequence, good)
        assert command.is_fresh(now) is good
    box.drive.write({"numbers": (9, 3, now, S, 1, 1), "axes": 0.0})
    assert reader.command().sequence == 4  # the older number is ignored
    box.drive.write({"numbers": (8, 1, now, 10**15, 1, 1), "axes": 0.0})
    assert reader.command().session == 8  # each session has its own numbers
    assert not reader.command().is_fresh(now + 3 * S)  # every command expires


def test_old_sequence_numbers_are_rejected_per_session():
    writer, _ = a_pair(1)
    writer.drive(session=1, sequence=5, held=True, axes=[0])
    for old in (5, 4, 0):
        with pytest.raises(UsageError):
            writer.drive(session=1, sequence=old, held=True, axes=[0])
    writer.drive(session=2, sequence=1, held=True, axes=[0])
    with pytest.raises(UsageError, match="expires"):
        writer.drive(session=1, sequence=6, held=True, axes=[0], expires_s=60.0)


def test_command_expires_by_the_time_of_the_input():
    """Also if it is delivered late. A time in the future does not make it last longer."""
    writer, reader = a_pair(1)
    now = time.monotonic_ns()
    writer.drive(session=1, sequence=1, held=True, axes=[1], time_ns=now - S)
    assert not reader.command().is_fresh(now)
    writer.drive(session=1, sequence=2, held=True, axes=[1], time_ns=now + 100 * S)
    assert reader.command().time_ns <= time.monotonic_ns()
    assert not reader.command().is_fresh(now - S)


def test_presses_are_numbered_even_if_the_release_is_never_read():
    writer, reader = a_pair(1)
    presses = []
    for sequence, held in enumerate((False, True, True, False, True, True), 1):
        writer.drive(session=1, sequence=sequence, held=held, axes=[0])
        presses.append(reader.command().press)
    assert presses == [0, 1, 1, 1, 2, 2]
    writer.drive(session=1, sequence=7, held=True, axes=[0], new_press=True)
    assert reader.command().press == 3
    writer.lose(session=1, sequence=8)
    lost = reader.command()
    assert (lost.press, lost.held, lost.is_fresh(time.monotonic_ns())) == (3, True, False)
    writer.drive(session=1, sequence=9, held=True, axes=[0])
    assert reader.command().press == 4
    writer.drive(session=2, sequence=1, held=True, axes=[0])
    assert reader.command().press == 1


def test_emergency_lasts_until_acknowledged_even_with_a_full_ring():
    writer, reader = a_pair()
    for _ in range(NUM_SLOTS):
        writer.post(Event.SUCCESS)
    with pytest.raises(UsageError, match="no episode is running"):
        writer.post(Event.SUCCESS)
    writer.post(Event.EMERGENCY)
    assert writer.box.emergency
    writer.post(Event.EMERGENCY)
    while reader.next_event():
        pass
    assert writer.box.emergency  # reading does not clear it
    writer.post(Event.ACKNOWLEDGE)
    assert not writer.box.emergency
    writer.post(Event.EMERGENCY)
    assert writer.box.emergency


class Events(RuleBasedStateMachine):
    """Each event once and in order, also when a new reader continues for a dead one."""

    def __init__(self):
        super().__init__()
        self.box = Mailbox(3)
        self.writer, self.reader = MailboxWriter(self.box), MailboxReader(self.box)
        self.posted, self.taken = [], []

    @rule(event=st.sampled_from(Event), session=st.integers(1, 2**62))
    def post(self, event, session):
        if len(self.posted) - len(self.taken) < NUM_SLOTS:
            self.writer.post(event, session=session)
            self.posted.append((event, session))

    @rule(num=st.integers(1, 100))
    def take(self, num):
        for _ in range(num):
            if (found := self.reader.next_event()) is not None:
                assert found.number == len(self.taken) + 1
                self.taken.append((found.event, found.session))

    @rule()
    def the_reader_is_restarted(self):
        self.reader = MailboxReader(self.box)

    @rule()
    def the_writer_is_restarted(self):
        self.writer.close()
        self.writer = MailboxWriter(self.box)

    @invariant()
    def nothing_is_lost_or_doubled(self):
        assert self.taken == self.posted[: len(self.taken)]

    def teardown(self):
        self.take(100)
        assert self.taken == self.posted


Events.TestCase.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
test_events_arrive_once = Events.TestCase


WRITER = """
    import mmap, sys
    from dovetail.core.types import Event
    from dovetail.human.mailbox import Mailbox, MailboxWriter
    num_axes = 64
    box = Mailbox(num_axes, memoryview(mmap.mmap(int(sys.argv[1]), Mailbox.num_bytes(num_axes))))
    writer, sequence, events = MailboxWriter(box), 0, 0
    print("ready", flush=True)
    while True:
        sequence += 1
        writer.drive(session=3, sequence=sequence, held=True, axes=[(sequence % 1000) / 1000] * num_axes)
        if box.num_posted - int(box.word["taken"][0]) < 32:
            events += 1
            writer.post(list(Event)[events % len(Event)], session=events)
"""


def test_two_processes_never_see_partial_values():
    """All axes of a message contain its number, and events arrive once and in order, even if the writer is killed."""
    num_axes = 64
    size = Mailbox.num_bytes(num_axes)
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, size)
    box = Mailbox(num_axes, memoryview(mmap.mmap(descriptor, size)))
    reader = MailboxReader(box)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(descriptor)],
        pass_fds=[descriptor],
        stdout=subprocess.PIPE,
    )
    try:
        process.stdout.readline()
        last = num_new = num_events = 0
        until_s = time.monotonic() + 60.0
        while num_new < 300 or num_events < 300:
            assert time.monotonic() < until_s
            command = reader.command()
            if command is not None and command.sequence != last:
                assert command.sequence > last
                assert command.is_valid
                np.testing.assert_array_equal(command.axes, np.float32(command.sequence % 1000 / 1000))
                last, num_new = command.sequence, num_new + 1
            if (event := reader.next_event()) is not None:
                num_events += 1
                assert (event.number, event.session) == (num_events, num_events)
                assert event.event is list(Event)[num_events % len(Event)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(descriptor)
    reader.command()  # a partial message of a dead writer is ignored
    command = reader.command()
    np.testing.assert_array_equal(command.axes, np.float32(command.sequence % 1000 / 1000))
    assert not command.is_fresh(time.monotonic_ns() + S)


def test_memory_with_another_layout_is_rejected():
    memory = memoryview(bytearray(b"x" * Mailbox.num_bytes(7)))
    with pytest.raises(UsageError, match="another version"):
        Mailbox(7, memory)


def test_reader_reports_who_is_in_control():
    writer, reader = a_pair()
    reader.report(Control.HUMAN, driver=12, last_sequence=40)
    box = writer.box
    assert (box.control, box.driver, box.last_sequence) == (Control.HUMAN, 12, 40)
    since = box.since_ns
    reader.report(Control.HUMAN, driver=12, last_sequence=41)
    assert box.since_ns == since
    assert box.reader_ns >= since > 0


def test_second_writer_is_rejected_except_for_emergency_stop():
    first, _ = a_pair(1)
    first.drive(session=1, sequence=1, held=True, axes=[0])
    second = MailboxWriter(first.box)
    for attempt in (
        second.beat,
        lambda: second.post(Event.START),
        lambda: second.drive(session=2, sequence=1, held=True, axes=[0]),
    ):
        with pytest.raises(UsageError, match="another console"):
            attempt()
    second.post(Event.EMERGENCY)
    assert first.box.emergency
    first.post(Event.ACKNOWLEDGE)
    assert not first.box.emergency
    first.close()
    second.beat()
    with pytest.raises(UsageError):
        first.beat()


def test_second_writers_stop_counts_again_after_an_acknowledgement_elsewhere():
    """`dovetail acknowledge` releases the mailbox without an event of the first writer."""
    first, _ = a_pair(1)
    first.beat()
    second, box = MailboxWriter(first.box), first.box
    for _ in range(3):
        second.post(Event.EMERGENCY)
        assert box.emergency
        box.word[f"newest/{Event.ACKNOWLEDGE}"][0] = box.newest(Event.EMERGENCY)  # as live.mailbox_stop does
        assert not box.emergency
    first.post(Event.EMERGENCY)
    assert box.emergency
