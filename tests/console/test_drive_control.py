"""One session drives at a time; invalid messages move nothing; a driver that disconnects leaves the arm holding."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.console.drive_control import MAX_MESSAGE_BYTES, DriveControl, InvalidMessage
from dovetail.core.errors import UsageError


class RecordingRobot:
    """Keeps the commands that it receives."""

    def __init__(self):
        self.commands = []
        self.times_ns = []

    def drive(self, *, session, sequence, held, axes, time_ns):
        if len(axes) not in (0, 3):
            raise UsageError("axes should be 3 numbers")
        self.commands.append((session, sequence, held, tuple(axes)))
        self.times_ns.append(time_ns)

    def disconnect(self, *, session, sequence):
        self.commands.append((session, sequence, "lost"))


@pytest.fixture
def robot():
    return RecordingRobot()


@pytest.fixture
def control(robot):
    return DriveControl(robot)


def message(n, *, held=True, axes=(0.0, 0.5, -1.0), **other):
    return json.dumps({"n": n, "t": 20.0 * n if isinstance(n, int) else 1.0, "held": held, "axes": axes, **other})


def test_messages_reach_the_robot_until_release(control, robot):
    session = control.connect("Ada")
    assert session.receive(message(1)) is None and session.receive(message(2, held=False)) is None
    assert robot.commands == [(session.id, 1, True, (0.0, 0.5, -1.0)), (session.id, 2, False, (0.0, 0.5, -1.0))]
    assert control.name_of(session.id) == "Ada"


def test_second_driver_gets_the_first_ones_name_and_moves_nothing(control, robot):
    first, second = control.connect("Ada"), control.connect("Grace")
    first.receive(message(1))
    assert second.receive(message(1)) == "Ada is driving"
    assert second.receive(message(2, held=False)) is None
    assert len(robot.commands) == 1
    first.receive(message(2, held=False))
    assert second.receive(message(3)) is None
    assert robot.commands[-1][:3] == (second.id, 3, True)


def test_disconnect_while_driving_holds_the_arm(control, robot):
    session = control.connect("Ada")
    session.receive(message(7))
    control.disconnect(session)
    assert robot.commands[-1] == (session.id, 8, "lost")
    control.disconnect(session)
    assert len(robot.commands) == 2


def test_lost_focus_holds_the_arm(control, robot):
    session = control.connect("Ada")
    session.receive(message(1))
    session.receive(message(2, lost=True))
    assert robot.commands[-1] == (session.id, 2, "lost")


def test_driving_continues_after_lost_focus(control, robot):
    session = control.connect("Ada")
    for text in (message(1), message(2, lost=True), message(3), message(4, held=False)):
        session.receive(text)
    assert [command[1] for command in robot.commands] == [1, 2, 3, 4]


def test_refused_first_message_does_not_hold_the_arm(control, robot):
    session = control.connect("Ada")
    with pytest.raises(InvalidMessage):
        session.receive(message(1, axes=(0.0,)))
    control.disconnect(session)
    assert robot.commands == []


def test_disconnect_without_driving_sends_nothing(control, robot):
    session = control.connect("Ada")
    session.receive(message(1, held=False))
    control.disconnect(session)
    assert robot.commands == []


def test_silent_driver_is_replaced_by_another(control, robot, monkeypatch):
    first, second = control.connect("Ada"), control.connect("Grace")
    first.receive(message(1))
    from dovetail.console import drive_control as module

    later_s = module.time.monotonic() + 1.5
    monkeypatch.setattr(module.time, "monotonic", lambda: later_s)
    assert second.receive(message(1)) is None
    assert robot.commands[-1][:3] == (second.id, 1, True)
    control.disconnect(first)  # the silent connection has ended; it no longer drives
    assert robot.commands[-1][0] == second.id


INVALID = [
    "",
    "null",
    "[]",
    "{}",
    "1e999",
    '{"n": 1}',
    message(0),
    message(-1),
    message(2**60),
    message(1.5),
    message(True),
    message("1"),
    message(1, held="yes"),
    message(1, held=1),
    message(1, axes=[2.0]),
    message(1, axes=[math.nan, 0.0, 0.0]),
    message(1, axes=[math.inf, 0.0, 0.0]),
    message(1, axes="abc"),
    message(1, axes=[[0.0]]),
    message(1, axes=[0.0] * 33),
    message(1, axes=[0.0, 0.0]),  # this robot has three axes
    message(1, more=1),
    message(1, t=None),
    message(1, t="now"),
    message(1, t=-1.0),
    message(1, t=math.inf),
    message(1, t=1e300),
    json.dumps({"n": 1, "held": True, "axes": [0.0, 0.0, 0.0]}),  # without its time
    '{"n": 1, "t": 1, "held": true, "axes": [0, 0, 0]' + " " * MAX_MESSAGE_BYTES + "}",
    "[" * 1000,
]


@pytest.mark.parametrize("text", INVALID)
def test_invalid_message_is_refused_and_moves_nothing(control, robot, text):
    with pytest.raises(InvalidMessage):
        control.connect("Mallory").receive(text)
    assert robot.commands == []


def test_old_messages_are_refused(control):
    session = control.connect("Ada")
    session.receive(message(5))
    for n in (5, 4):
        with pytest.raises(InvalidMessage, match="not newer"):
            session.receive(message(n))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["n", "t", "held", "axes", "lost", "x"]), inner)
    ),
    max_leaves=8,
)


@given(st.lists(JSON.map(json.dumps) | st.text(max_size=60), max_size=8))
def test_robot_receives_only_valid_commands(texts):
    robot = RecordingRobot()
    session = DriveControl(robot).connect("Mallory")
    for text in texts:
        try:
            session.receive(text)
        except InvalidMessage:
            break
    for session_id, sequence, *rest in robot.commands:
        assert session_id == session.id and sequence > 0
        if rest[0] != "lost":
            assert all(-1.0 <= value <= 1.0 for value in rest[1])


def test_burst_after_a_stall_has_the_times_at_which_the_page_sent_it(control, robot, monkeypatch):
    from dovetail.console import drive_control as module

    now_ns = 50_000_000_000
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: now_ns)
    session = control.connect("Ada")
    session.receive(message(1, t=1000.0))
    now_ns += 2_000_000_000  # the network stalls for two seconds, then delivers all
    for n in range(2, 82):
        session.receive(message(n, t=1000.0 + 25.0 * (n - 1)))
    ages_ms = [(now_ns - sent_ns) / 1e6 for sent_ns in robot.times_ns[1:]]
    assert ages_ms == [pytest.approx(2000.0 - 25.0 * n, abs=1.0) for n in range(1, 81)]
    assert sum(age_ms > 250.0 for age_ms in ages_ms) == 69  # these have expired when they arrive
