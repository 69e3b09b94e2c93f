"""The dead-man logic: only who drives gives back, a loss holds, and the policy never goes on by itself."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.browser import BrowserConfig, BrowserOperator, ConsoleControl, OperatorWithConsole
from dovetail.human.handover import Handover
from dovetail.human.mailbox import Control, DriveCommand, Mailbox, MailboxWriter
from dovetail.human.none import NoOperator
from dovetail.testing.fakes import FakeArm, FakeArmConfig, FakeBimanual, FakeBimanualConfig

S = 1_000_000_000
ARM = FakeArm(FakeArmConfig())
SEEN = ARM.observe()
ZEROS = np.zeros(7, np.float32)


def hand(*, session=1, sequence=1, held=True, age_s=0.0, axes=ZEROS, is_valid=True):
    time_ns = time.monotonic_ns() - round(age_s * S)
    return DriveCommand(
        session=session,
        sequence=sequence,
        held=held,
        axes=axes,
        time_ns=time_ns,
        expires_ns=5 * S,
        is_valid=is_valid,
    )


@pytest.fixture
def handover():
    return Handover(ARM.spec)


def test_held_drives_and_letting_go_gives_back(handover):
    assert handover.decide(None, None, SEEN) is None
    assert handover.decide(hand(held=False), None, SEEN) is None
    assert handover.decide(hand(sequence=2), None, SEEN).action is not None
    assert (handover.control, handover.driver) == (Control.HUMAN, 1)
    assert handover.decide(hand(sequence=3, held=False), None, SEEN) is None
    assert (handover.control, handover.driver) == (Control.POLICY, 0)


@pytest.mark.parametrize("lost", [{"age_s": 9.0}, {"good": False}])
def test_a_loss_holds_until_somebody_takes_over_or_says_start(handover, lost):
    handover.decide(hand(sequence=1), None, SEEN)
    gone = hand(sequence=2, **lost)
    for _ in range(3):
        assert handover.decide(gone, None, SEEN) == HumanInput(event=Event.PAUSE)
    assert handover.control is Control.HOLDING
    assert handover.decide(hand(sequence=3, held=False), None, SEEN) == HumanInput(event=Event.PAUSE)  # not enough
    assert handover.decide(hand(session=2, sequence=1), None, SEEN).action is not None  # somebody takes over
    assert handover.decide(hand(session=2, sequence=2, **lost), None, SEEN) == HumanInput(event=Event.PAUSE)
    gone = hand(session=2, sequence=2, **lost)
    assert handover.decide(gone, Event.START, SEEN) == HumanInput(event=Event.START)
    assert handover.decide(gone, None, SEEN) is None  # the same loss holds it once
    assert handover.decide(hand(session=2, sequence=3, **lost), None, SEEN) == HumanInput(event=Event.PAUSE)


def test_a_new_process_holds_for_a_driver_that_the_old_one_lost():
    assert Handover(ARM.spec).decide(hand(age_s=9.0), None, SEEN) == HumanInput(event=Event.PAUSE)


def test_another_hand_neither_drives_nor_gives_back_while_somebody_drives(handover):
    mine = np.array((1.0, 0, 0, 0, 0, 0, 0), np.float32)
    wanted = handover.decide(hand(session=1, axes=mine), None, SEEN).action
    for other in (hand(session=2, held=False), hand(session=2, axes=-mine), hand(session=2, is_valid=False)):
        np.testing.assert_array_equal(handover.decide(other, None, SEEN).action, wanted)
        assert handover.driver == 1


def test_who_is_lost_holds_though_another_hand_is_there(handover):
    driving = DriveCommand(session=1, sequence=1, held=True, axes=ZEROS, time_ns=time.monotonic_ns(), expires_ns=1)
    handover._last, handover.control = driving, Control.HUMAN
    assert handover.decide(hand(session=2, held=False), None, SEEN) == HumanInput(event=Event.PAUSE)
    assert handover.decide(hand(session=2, sequence=2), None, SEEN).action is not None


def test_pause_counts_though_the_key_is_still_held(handover):
    handover.decide(hand(sequence=1), None, SEEN)
    assert handover.decide(hand(sequence=2), Event.PAUSE, SEEN) == HumanInput(event=Event.PAUSE)
    assert handover.decide(hand(sequence=3), None, SEEN) == HumanInput(event=Event.PAUSE)
    assert handover.decide(hand(sequence=4, held=False), None, SEEN) == HumanInput(event=Event.PAUSE)
    assert handover.decide(hand(sequence=5), None, SEEN).action is not None  # let go first, then taken again


HANDS = st.builds(
    hand,
    session=st.integers(1, 2),
    held=st.booleans(),
    age_s=st.sampled_from((0.0, 9.0)),
    is_valid=st.booleans(),
)


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), HANDS), st.sampled_from((None, Event.PAUSE, Event.START))), max_size=30
    )
)
def test_the_policy_acts_only_when_told_to(story):
    """From a person's hands back to the policy lead only letting go, by that person, or a start."""
    handover = Handover(ARM.spec)
    for sequence, (given_hand, event) in enumerate(story, 1):
        before, driver = handover.control, handover.driver
        if given_hand is not None:
            given_hand = hand(
                session=given_hand.session,
                sequence=sequence,
                held=given_hand.held,
                is_valid=given_hand.is_valid,
                age_s=(time.monotonic_ns() - given_hand.time_ns) // S,
            )
        decided = handover.decide(given_hand, event, SEEN)
        if before is not Control.POLICY and handover.control is Control.POLICY:
            let_go = given_hand is not None and not given_hand.held and given_hand.session == driver
            assert event is Event.START or (before is Control.HUMAN and let_go)
        if decided is not None and decided.action is not None:
            assert handover.control is Control.HUMAN
            assert np.isfinite(decided.action).all()


# ---- axes


def drive(robot, axes, seen=None):
    handover = Handover(robot.spec)
    axes = np.array(axes, np.float32)
    return handover.decide(hand(axes=axes), None, seen or robot.observe()).action


def test_up_is_up_whatever_the_frame_of_the_action():
    """The fake arm's frame points down and is turned by a yaw: its own matrix brings an action to the base frame."""
    arm = FakeArm(FakeArmConfig())
    for axes in ((0, 0, 1), (1, 0, 0), (0.5, -0.5, 0)):
        action = drive(arm, (*axes, 0, 0, 0, 0))
        np.testing.assert_allclose(arm.frame @ action[:3], 0.02 * np.array(axes), atol=1e-6)
    corner = drive(arm, (1, 1, 1, 1, 1, 1, 0))
    low, high = arm.spec.action.bounds
    assert (corner >= low).all()
    assert (corner <= high).all()


def test_the_gripper_keeps_what_it_did_until_it_is_told_otherwise():
    handover, arm = Handover(ARM.spec), FakeArm(FakeArmConfig())
    arm.gripper = 0.0
    grips = []
    for sequence, axis in enumerate((0.0, 1.0, 0.2, -1.0, 0.0), 1):
        axes = np.array((0, 0, 0, 0, 0, 0, axis), np.float32)
        grips.append(float(handover.decide(hand(sequence=sequence, axes=axes), None, arm.observe()).action[6]))
    assert grips == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_joints_are_jogged_from_where_they_are():
    robot = FakeBimanual(FakeBimanualConfig())
    axes = np.zeros(24, np.float32)
    axes[3] = 1.0
    seen = robot.observe()
    action = drive(robot, axes, seen)
    np.testing.assert_allclose(action - seen.values["joint_pos"], axes * 0.8 / 20.0, atol=1e-6)


# ---- an operator with a mailbox


class Inner:
    name = "inner"

    def __init__(self, *inputs):
        self.inputs, self.resets = list(inputs), 0

    def reset(self, *, rng, robot_minutes):
        self.resets += 1

    def poll(self, observation):
        return self.inputs.pop(0) if self.inputs else HumanInput()


def a_desk(inner=None, **settings):
    box = Mailbox(7)
    operator = OperatorWithConsole(inner or NoOperator(), ConsoleControl(box, ARM.spec), **settings)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator, MailboxWriter(box)


def test_while_nobody_is_there_it_is_the_operator_inside():
    said = [HumanInput(action=ZEROS), HumanInput(), HumanInput(event=Event.SUCCESS)]
    operator, _ = a_desk(Inner(*said))
    assert [operator.poll(SEEN) for _ in range(3)] == said
    assert operator.name == "inner"


def test_a_person_comes_before_the_operator_inside_which_may_still_judge():
    operator, writer = a_desk(Inner(HumanInput(action=ZEROS), HumanInput(event=Event.SUCCESS)))
    axes = [0, 0, 1, 0, 0, 0, 0]
    writer.drive(session=1, sequence=1, held=True, axes=axes)
    polled = operator.poll(SEEN)
    assert polled.action is not None
    assert polled.action.any()
    assert operator.poll(SEEN).event is Event.SUCCESS
    assert operator.name == "inner+browser"


def test_a_device_takes_over_from_a_pause_of_the_console_and_a_script_does_not():
    for hands, events in ((True, [Event.PAUSE, None]), (False, [Event.PAUSE, Event.PAUSE])):
        inner = Inner(HumanInput(), HumanInput(action=ZEROS))
        inner.demonstrates = hands
        operator, writer = a_desk(inner)
        writer.post(Event.PAUSE)
        polled = [operator.poll(SEEN) for _ in range(2)]
        assert [one.event for one in polled] == events
        assert (polled[1].action is not None) == hands


def test_events_arrive_once_and_those_of_no_episode_are_dropped():
    operator, writer = a_desk()
    for event in (Event.SUCCESS, Event.DISCARD, Event.PAUSE):
        writer.post(event)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert operator.poll(SEEN).event is Event.PAUSE  # that one stays true
    writer.post(Event.START)
    writer.post(Event.FAILURE)
    assert [operator.poll(SEEN).event for _ in range(3)] == [Event.START, Event.FAILURE, None]


def test_nobody_helps_in_an_evaluation_but_may_stop_it():
    operator, writer = a_desk(may_drive=False)
    writer.drive(session=1, sequence=1, held=True, axes=[1, 0, 0, 0, 0, 0, 0])
    writer.post(Event.SUCCESS)
    assert operator.poll(SEEN) == HumanInput()
    writer.post(Event.EMERGENCY)
    assert operator.poll(SEEN).event is Event.EMERGENCY
    writer.post(Event.EMERGENCY)
    writer.post(Event.ACKNOWLEDGE)
    assert operator.poll(SEEN).event is Event.ACKNOWLEDGE  # what was acknowledged stops nothing any more


def test_a_demonstration_waits_for_the_person_who_gives_it():
    operator, writer = a_desk(BrowserOperator(BrowserConfig()), demonstrates=True)
    assert operator.name == "browser"
    assert operator.poll(SEEN).event is Event.PAUSE
    writer.drive(session=1, sequence=1, held=True, axes=[1, 0, 0, 0, 0, 0, 0])
    assert operator.poll(SEEN).action is not None


def test_simulated_time_keeps_pace_with_a_person_and_with_nobody_else(monkeypatch):
    slept = []
    monkeypatch.setattr("dovetail.human.handover.time.sleep", slept.append)
    handover = Handover(ARM.spec, pace_s=0.1)
    for _ in range(5):
        handover.decide(None, None, SEEN)
    assert slept == []
    for sequence in range(1, 4):
        handover.decide(hand(sequence=sequence), None, SEEN)
    assert len(slept) >= 2
    assert all(0 < s <= 0.3 for s in slept)
    slept.clear()
    handover.decide(hand(sequence=9, held=False), None, SEEN)
    handover.decide(hand(sequence=10, held=False), None, SEEN)
    assert slept == []


def test_an_observation_may_come_from_anywhere():
    """Without a pose there is no frame to turn into, and nothing breaks."""
    spec = FakeArm(FakeArmConfig()).spec
    assert Handover(spec).decide(None, None, Observation(time_ns=0, values=SEEN.values)) is None
