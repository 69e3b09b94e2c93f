"""The dead-man logic: release, loss and takeover."""

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
OBSERVATION = ARM.observe()
ZEROS = np.zeros(7, np.float32)


def command(*, session=1, sequence=1, held=True, press=1, age_s=0.0, axes=ZEROS, is_valid=True):
    time_ns = time.monotonic_ns() - round(age_s * S)
    return DriveCommand(
        session=session,
        sequence=sequence,
        held=held,
        axes=axes,
        press=press,
        time_ns=time_ns,
        expires_ns=5 * S,
        is_valid=is_valid,
    )


@pytest.fixture
def handover():
    return Handover(ARM.spec)


def test_held_device_drives_and_release_returns_control(handover):
    assert handover.decide(None, None, OBSERVATION) is None
    assert handover.decide(command(held=False), None, OBSERVATION) is None
    assert handover.decide(command(sequence=2), None, OBSERVATION).action is not None
    assert (handover.control, handover.driver) == (Control.HUMAN, 1)
    assert handover.decide(command(sequence=3, held=False), None, OBSERVATION) is None
    assert (handover.control, handover.driver) == (Control.POLICY, 0)


@pytest.mark.parametrize("lost", [{"age_s": 9.0}, {"is_valid": False}])
def test_lost_driver_holds_until_takeover_or_start(handover, lost):
    handover.decide(command(sequence=1), None, OBSERVATION)
    gone = command(sequence=2, **lost)
    for _ in range(3):
        assert handover.decide(gone, None, OBSERVATION) == HumanInput(event=Event.PAUSE)
    assert handover.control is Control.HOLDING
    assert handover.decide(command(sequence=3, held=False), None, OBSERVATION) == HumanInput(
        event=Event.PAUSE
    )  # not enough
    assert handover.decide(command(session=2, sequence=1), None, OBSERVATION).action is not None  # takeover
    assert handover.decide(command(session=2, sequence=2, **lost), None, OBSERVATION) == HumanInput(
        event=Event.PAUSE
    )
    gone = command(session=2, sequence=2, **lost)
    assert handover.decide(gone, Event.START, OBSERVATION) == HumanInput(event=Event.START)
    assert handover.decide(gone, None, OBSERVATION) is None  # the same loss pauses only once
    assert handover.decide(command(session=2, sequence=3), None, OBSERVATION) is None  # its press is spent
    again = command(session=2, sequence=4, press=2, **lost)
    assert handover.decide(again, None, OBSERVATION) == HumanInput(event=Event.PAUSE)


@pytest.mark.parametrize("lost", [{"age_s": 9.0}, {"is_valid": False}])
def test_takeover_does_not_resume_when_messages_of_a_lost_press_arrive_again(handover, lost):
    handover.decide(command(sequence=1), None, OBSERVATION)
    handover.decide(command(sequence=2, **lost), None, OBSERVATION)
    for sequence in range(3, 6):  # the network works again, and the key is still held
        assert handover.decide(command(sequence=sequence), None, OBSERVATION) == HumanInput(event=Event.PAUSE)
    assert handover.decide(command(sequence=7, press=2), None, OBSERVATION).action is not None


def test_second_device_that_was_pressed_before_the_driver_was_lost_does_not_take_over(handover):
    handover.decide(command(session=1), None, OBSERVATION)
    handover.decide(command(session=2), None, OBSERVATION)
    handover.decide(command(session=1, sequence=2, age_s=9.0), None, OBSERVATION)
    assert handover.decide(command(session=2, sequence=2), None, OBSERVATION) == HumanInput(event=Event.PAUSE)
    assert handover.decide(command(session=2, sequence=3, press=2), None, OBSERVATION).action is not None


def test_evaluation_that_begins_while_a_person_drives_waits_for_start(handover):
    handover.decide(command(), None, OBSERVATION)
    for sequence in (2, 3):
        held = command(sequence=sequence)
        assert handover.decide(held, None, OBSERVATION, may_drive=False) == HumanInput(event=Event.PAUSE)
    assert handover.decide(None, Event.START, OBSERVATION, may_drive=False) == HumanInput(event=Event.START)
    assert handover.decide(command(sequence=4), None, OBSERVATION, may_drive=False) is None


def test_new_process_holds_after_a_lost_driver():
    assert Handover(ARM.spec).decide(command(age_s=9.0), None, OBSERVATION) == HumanInput(event=Event.PAUSE)


def test_second_device_is_ignored_while_the_first_drives(handover):
    mine = np.array((1.0, 0, 0, 0, 0, 0, 0), np.float32)
    wanted = handover.decide(command(session=1, axes=mine), None, OBSERVATION).action
    for other in (
        command(session=2, held=False),
        command(session=2, axes=-mine),
        command(session=2, is_valid=False),
    ):
        np.testing.assert_array_equal(handover.decide(other, None, OBSERVATION).action, wanted)
        assert handover.driver == 1


def test_lost_driver_holds_even_with_a_second_device(handover):
    driving = DriveCommand(session=1, sequence=1, held=True, axes=ZEROS, time_ns=time.monotonic_ns(), expires_ns=1)
    handover._last, handover.control = driving, Control.HUMAN
    assert handover.decide(command(session=2, held=False), None, OBSERVATION) == HumanInput(event=Event.PAUSE)
    assert handover.decide(command(session=2, sequence=2), None, OBSERVATION).action is not None


def test_pause_works_while_the_key_is_held(handover):
    handover.decide(command(sequence=1), None, OBSERVATION)
    assert handover.decide(command(sequence=2), Event.PAUSE, OBSERVATION) == HumanInput(event=Event.PAUSE)
    assert handover.decide(command(sequence=3), None, OBSERVATION) == HumanInput(event=Event.PAUSE)
    assert handover.decide(command(sequence=4, held=False), None, OBSERVATION) == HumanInput(event=Event.PAUSE)
    assert (
        handover.decide(command(sequence=5, press=2), None, OBSERVATION).action is not None
    )  # after release, a new press drives


COMMANDS = st.builds(
    command,
    session=st.integers(1, 2),
    held=st.booleans(),
    press=st.integers(1, 3),
    age_s=st.sampled_from((0.0, 9.0)),
    is_valid=st.booleans(),
)


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), COMMANDS), st.sampled_from((None, Event.PAUSE, Event.START))), max_size=30
    )
)
def test_control_changes_only_by_explicit_input(sequence_of_inputs):
    """The policy gets control back only if the driver releases the switch or a person signals start. A person gets control
    only by a fresh press that was not lost or paused before."""
    handover, lost_presses, drivers_press = Handover(ARM.spec), {}, 0
    for sequence, (received, event) in enumerate(sequence_of_inputs, 1):
        before, driver = handover.control, handover.driver
        if received is not None:
            received = command(
                session=received.session,
                sequence=sequence,
                held=received.held,
                press=received.press,
                is_valid=received.is_valid,
                age_s=(time.monotonic_ns() - received.time_ns) // S,
            )
        decided = handover.decide(received, event, OBSERVATION)
        if before is not Control.POLICY and handover.control is Control.POLICY:
            let_go = received is not None and not received.held and received.session == driver
            assert event is Event.START or (before is Control.HUMAN and let_go)
        if before is Control.HUMAN and handover.control in (Control.HOLDING, Control.PAUSED):
            lost_presses[driver] = drivers_press
        if handover.control is Control.HUMAN:
            drivers_press = handover._last.press
            assert lost_presses.get(handover.driver, 0) < drivers_press
        if before is not Control.HUMAN and handover.control is Control.HUMAN:
            assert received.held and received.is_valid and time.monotonic_ns() - received.time_ns < 5 * S
        if decided is not None and decided.action is not None:
            assert handover.control is Control.HUMAN
            assert np.isfinite(decided.action).all()


# ---- axes


def drive(robot, axes, seen=None):
    handover = Handover(robot.spec)
    axes = np.array(axes, np.float32)
    return handover.decide(command(axes=axes), None, seen or robot.observe()).action


def test_motion_is_in_the_base_frame_for_any_action_frame():
    """The fake arm's frame points down and is turned by a yaw: its own matrix brings an action to the base frame."""
    arm = FakeArm(FakeArmConfig())
    for axes in ((0, 0, 1), (1, 0, 0), (0.5, -0.5, 0)):
        action = drive(arm, (*axes, 0, 0, 0, 0))
        np.testing.assert_allclose(arm.frame @ action[:3], 0.02 * np.array(axes), atol=1e-6)
    corner = drive(arm, (1, 1, 1, 1, 1, 1, 0))
    low, high = arm.spec.action.bounds
    assert (corner >= low).all()
    assert (corner <= high).all()


def test_gripper_keeps_its_state_without_a_command():
    handover, arm = Handover(ARM.spec), FakeArm(FakeArmConfig())
    arm.gripper = 0.0
    grips = []
    for sequence, axis in enumerate((0.0, 1.0, 0.2, -1.0, 0.0), 1):
        axes = np.array((0, 0, 0, 0, 0, 0, axis), np.float32)
        grips.append(float(handover.decide(command(sequence=sequence, axes=axes), None, arm.observe()).action[6]))
    assert grips == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_joint_motion_starts_at_measured_joints():
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


def make_operator(inner=None, **settings):
    box = Mailbox(7)
    operator = OperatorWithConsole(inner or NoOperator(), ConsoleControl(box, ARM.spec), **settings)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator, MailboxWriter(box)


def test_without_console_the_inner_operator_acts():
    inputs = [HumanInput(action=ZEROS), HumanInput(), HumanInput(event=Event.SUCCESS)]
    operator, _ = make_operator(Inner(*inputs))
    assert [operator.poll(OBSERVATION) for _ in range(3)] == inputs
    assert operator.name == "inner"


def test_switch_that_is_held_while_the_control_process_restarts_needs_a_new_press():
    """The press was for the process that has died."""
    _, writer = make_operator()
    axes = [0, 0, 1, 0, 0, 0, 0]
    writer.drive(session=1, sequence=1, held=True, axes=axes)
    operator = OperatorWithConsole(NoOperator(), ConsoleControl(writer.box, ARM.spec))
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    for sequence in (2, 3):
        writer.drive(session=1, sequence=sequence, held=True, axes=axes)
        polled = operator.poll(OBSERVATION)
        assert (polled.action, polled.event) == (None, Event.PAUSE)  # neither the person nor the policy drives
    writer.drive(session=1, sequence=4, held=True, axes=axes, new_press=True)
    assert operator.poll(OBSERVATION).action is not None


def test_console_has_priority_but_inner_verdicts_count():
    operator, writer = make_operator(Inner(HumanInput(action=ZEROS), HumanInput(event=Event.SUCCESS)))
    axes = [0, 0, 1, 0, 0, 0, 0]
    writer.drive(session=1, sequence=1, held=True, axes=axes)
    polled = operator.poll(OBSERVATION)
    assert polled.action is not None
    assert polled.action.any()
    assert operator.poll(OBSERVATION).event is Event.SUCCESS
    assert operator.name == "inner+browser"


def test_device_but_not_script_ends_a_console_pause():
    for is_device, events in ((True, [Event.PAUSE, None]), (False, [Event.PAUSE, Event.PAUSE])):
        inner = Inner(HumanInput(), HumanInput(action=ZEROS))
        inner.demonstrates = is_device
        operator, writer = make_operator(inner)
        writer.post(Event.PAUSE)
        polled = [operator.poll(OBSERVATION) for _ in range(2)]
        assert [human_input.event for human_input in polled] == events
        assert (polled[1].action is not None) == is_device


def test_events_arrive_once_and_are_dropped_between_episodes():
    operator, writer = make_operator()
    for event in (Event.SUCCESS, Event.DISCARD, Event.PAUSE):
        writer.post(event)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert operator.poll(OBSERVATION).event is Event.PAUSE  # a pause is not dropped
    writer.post(Event.START)
    writer.post(Event.FAILURE)
    assert [operator.poll(OBSERVATION).event for _ in range(3)] == [Event.START, Event.FAILURE, None]


def test_evaluation_accepts_stop_but_no_driving():
    operator, writer = make_operator(may_drive=False)
    writer.drive(session=1, sequence=1, held=True, axes=[1, 0, 0, 0, 0, 0, 0])
    writer.post(Event.SUCCESS)
    assert operator.poll(OBSERVATION) == HumanInput()
    writer.post(Event.EMERGENCY)
    assert operator.poll(OBSERVATION).event is Event.EMERGENCY
    writer.post(Event.EMERGENCY)
    writer.post(Event.ACKNOWLEDGE)
    assert operator.poll(OBSERVATION).event is Event.ACKNOWLEDGE  # an acknowledged stop has no effect


def test_evaluation_that_a_person_judges_accepts_verdicts_but_no_driving():
    operator, writer = make_operator(may_drive=False, may_judge=True)
    writer.drive(session=1, sequence=1, held=True, axes=[1, 0, 0, 0, 0, 0, 0])
    for event in (Event.DISCARD, Event.RESET, Event.FAILURE):
        writer.post(event)
    polled = operator.poll(OBSERVATION)
    assert polled == HumanInput(event=Event.FAILURE)
    writer.post(Event.SUCCESS)
    assert operator.poll(OBSERVATION) == HumanInput(event=Event.SUCCESS)
    assert operator.name == "browser"


def test_demonstration_waits_for_the_operator():
    operator, writer = make_operator(BrowserOperator(BrowserConfig()), demonstrates=True)
    assert operator.name == "browser"
    assert operator.poll(OBSERVATION).event is Event.PAUSE
    writer.drive(session=1, sequence=1, held=True, axes=[1, 0, 0, 0, 0, 0, 0])
    assert operator.poll(OBSERVATION).action is not None


def test_simulated_time_is_slowed_only_while_a_person_drives(monkeypatch):
    slept = []
    monkeypatch.setattr("dovetail.human.handover.time.sleep", slept.append)
    handover = Handover(ARM.spec, pace_s=0.1)
    for _ in range(5):
        handover.decide(None, None, OBSERVATION)
    assert slept == []
    for sequence in range(1, 4):
        handover.decide(command(sequence=sequence), None, OBSERVATION)
    assert len(slept) >= 2
    assert all(0 < s <= 0.3 for s in slept)
    slept.clear()
    handover.decide(command(sequence=9, held=False), None, OBSERVATION)
    handover.decide(command(sequence=10, held=False), None, OBSERVATION)
    assert slept == []


def test_observation_without_a_gripper_is_accepted():
    """Without a pose the axes cannot be rotated, and no error is raised."""
    spec = FakeArm(FakeArmConfig()).spec
    assert Handover(spec).decide(None, None, Observation(time_ns=0, values=OBSERVATION.values)) is None
