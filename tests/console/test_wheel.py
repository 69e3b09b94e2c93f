"""One drives at a time; what makes no sense moves nothing; whoever goes while driving is lost, not done."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.console.wheel import MAX_MESSAGE, Refused, Wheel
from dovetail.core.errors import UsageError


class Heard:
    """A driver that writes down what it is told."""

    def __init__(self):
        self.said = []

    def drive(self, *, session, sequence, held, axes):
        if len(axes) not in (0, 3):
            raise UsageError("axes should be 3 numbers")
        self.said.append((session, sequence, held, tuple(axes)))

    def lose(self, *, session, sequence):
        self.said.append((session, sequence, "lost"))

    def post(self, event, *, session):
        raise AssertionError("nobody posts here")


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def wheel(heard):
    return Wheel(heard)


def move(n, *, held=True, axes=(0.0, 0.5, -1.0), **other):
    return json.dumps({"n": n, "held": held, "axes": axes, **other})


def test_a_driver_is_heard_and_gives_back(wheel, heard):
    seat = wheel.sit("Ada")
    assert seat.take(move(1)) is None and seat.take(move(2, held=False)) is None
    assert heard.said == [(seat.session, 1, True, (0.0, 0.5, -1.0)), (seat.session, 2, False, (0.0, 0.5, -1.0))]
    assert wheel.name_of(seat.session) == "Ada"


def test_a_second_driver_is_told_who_drives_and_moves_nothing(wheel, heard):
    first, second = wheel.sit("Ada"), wheel.sit("Grace")
    first.take(move(1))
    assert second.take(move(1)) == "Ada"
    assert second.take(move(2, held=False)) is None
    assert len(heard.said) == 1
    first.take(move(2, held=False))
    assert second.take(move(3)) is None
    assert heard.said[-1][:3] == (second.session, 3, True)


def test_a_driver_that_leaves_is_lost(wheel, heard):
    seat = wheel.sit("Ada")
    seat.take(move(7))
    wheel.leave(seat)
    assert heard.said[-1] == (seat.session, 8, "lost")
    wheel.leave(seat)
    assert len(heard.said) == 2


def test_a_page_without_focus_is_lost_too(wheel, heard):
    seat = wheel.sit("Ada")
    seat.take(move(1))
    seat.take(move(2, lost=True))
    assert heard.said[-1] == (seat.session, 2, "lost")


def test_who_comes_back_to_the_page_drives_on(wheel, heard):
    """The line is the same, and so is the session: no number of it is used up."""
    seat = wheel.sit("Ada")
    for message in (move(1), move(2, lost=True), move(3), move(4, held=False)):
        seat.take(message)
    assert [said[1] for said in heard.said] == [1, 2, 3, 4]


def test_who_is_refused_loses_nothing(wheel, heard):
    """The policy goes on: nobody drove."""
    seat = wheel.sit("Ada")
    with pytest.raises(Refused):
        seat.take(move(1, axes=(0.0,)))
    wheel.leave(seat)
    assert heard.said == []


def test_who_never_drove_is_not_lost(wheel, heard):
    seat = wheel.sit("Ada")
    seat.take(move(1, held=False))
    wheel.leave(seat)
    assert heard.said == []


def test_a_driver_whose_line_hangs_does_not_keep_the_wheel(wheel, heard, monkeypatch):
    first, second = wheel.sit("Ada"), wheel.sit("Grace")
    first.take(move(1))
    from dovetail.console import wheel as module

    later_s = module.time.monotonic() + 1.5
    monkeypatch.setattr(module.time, "monotonic", lambda: later_s)
    assert second.take(move(1)) is None
    assert heard.said[-1][:3] == (second.session, 1, True)
    wheel.leave(first)  # the line that hung has ended: it no longer drives, and loses nothing
    assert heard.said[-1][0] == second.session


NONSENSE = [
    "",
    "null",
    "[]",
    "{}",
    "1e999",
    '{"n": 1}',
    move(0),
    move(-1),
    move(2**60),
    move(1.5),
    move(True),
    move("1"),
    move(1, held="yes"),
    move(1, held=1),
    move(1, axes=[2.0]),
    move(1, axes=[math.nan, 0.0, 0.0]),
    move(1, axes=[math.inf, 0.0, 0.0]),
    move(1, axes="abc"),
    move(1, axes=[[0.0]]),
    move(1, axes=[0.0] * 33),
    move(1, axes=[0.0, 0.0]),  # not this robot's
    move(1, more=1),
    '{"n": 1, "held": true, "axes": [0, 0, 0]' + " " * MAX_MESSAGE + "}",
    "[" * 1000,
]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_refused_and_moves_nothing(wheel, heard, text):
    with pytest.raises(Refused):
        wheel.sit("Mallory").take(text)
    assert heard.said == []


def test_old_messages_are_refused(wheel):
    seat = wheel.sit("Ada")
    seat.take(move(5))
    for n in (5, 4):
        with pytest.raises(Refused, match="old"):
            seat.take(move(n))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["n", "held", "axes", "lost", "x"]), inner)
    ),
    max_leaves=8,
)


@given(st.lists(JSON.map(json.dumps) | st.text(max_size=60), max_size=8))
def test_whatever_is_sent_what_is_heard_makes_sense(texts):
    heard = Heard()
    seat = Wheel(heard).sit("Mallory")
    for text in texts:
        try:
            seat.take(text)
        except Refused:
            break
    for session, sequence, *rest in heard.said:
        assert session == seat.session and sequence > 0
        if rest[0] != "lost":
            assert all(-1.0 <= value <= 1.0 for value in rest[1])
