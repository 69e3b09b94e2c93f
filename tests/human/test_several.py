"""Two people on two arms of one robot: each with a gamepad of their own."""

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.browser import ConsoleControl, OperatorWithConsole
from dovetail.human.gamepad import ABS_Y, BTN_SELECT, BTN_START, GamepadConfig
from dovetail.human.mailbox import Mailbox, MailboxWriter
from dovetail.human.none import NoOperator
from dovetail.human.several import SeveralConfig, SeveralOperators
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedGamepadOperator
from dovetail.testing.mobile_arm import FakeDelivery, FakeDeliveryConfig, FakeMobileArm, FakeMobileArmConfig
from dovetail.testing.operators import check_dead_man, check_operator
from support.input_hands import settle
from support.waiting import wait_until

PAUSED = HumanInput(event=Event.PAUSE)
LEFT = [True, True, False, False]
RIGHT = [False, False, True, True]
BOTH = [True] * 4


def arm(name, columns):
    return ActionPart(
        name=name, kind="joint_target", unit="rad", names=(f"{name}1", f"{name}2"), low=(-2.0,) * 2, high=(2.0,) * 2,
        max_speed=(1.0, 1.0), measured=f"joint_pos[{columns}]",
    )  # fmt: skip


SPEC = RobotSpec(
    name="rig", embodiment="rig", control_hz=20.0, parts=(arm("left", "0:2"), arm("right", "2:4")),
    observation={"joint_pos": ArraySpec(shape=(4,))},
)  # fmt: skip
HERE = Observation(time_ns=0, values={"joint_pos": np.array((0.1, 0.2, 0.3, 0.4), np.float32)})


class TwoPeople:
    def __init__(self, folder):
        self.pads = [EmulatedGamepad(folder / name) for name in ("left", "right")]
        for pad in self.pads:
            pad.plug_in()
        self.inner = [
            EmulatedGamepadOperator(GamepadConfig(path=str(pad.path), part=part, max_silence_s=None), robot=SPEC)
            for pad, part in zip(self.pads, ("left", "right"), strict=True)
        ]
        config = SeveralConfig(operators=({"type": "gamepad"}, {"type": "gamepad"}))
        self.operator = SeveralOperators(config, robot=SPEC, inner=self.inner)
        self.operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)

    def settle(self):
        for operator in self.inner:
            if not operator._reader._is_lost:
                settle(operator)

    def hold(self, number, *, push=-1.0):
        self.pads[number].hold()
        self.pads[number].push(ABS_Y, push)
        self.settle()

    def let_go(self, number):
        self.pads[number].let_go()
        self.settle()

    def poll(self):
        return self.operator.poll(HERE)


@pytest.fixture
def people(tmp_path):
    made = TwoPeople(tmp_path)
    yield made
    made.operator.close()
    for pad in made.pads:
        pad.unplug()


def test_each_person_drives_one_arm(people):
    assert people.poll() == HumanInput()
    people.hold(0)
    first = people.poll()
    assert first.axes.tolist() == LEFT
    assert first.action[:2] == pytest.approx((0.15, 0.2))
    people.hold(1, push=1.0)
    both = people.poll()
    assert both.axes.tolist() == BOTH
    assert both.action == pytest.approx((0.15, 0.2, 0.25, 0.4))
    people.let_go(0)
    assert people.poll().axes.tolist() == RIGHT
    people.let_go(1)
    assert people.poll() == HumanInput()


def test_lost_operator_holds_the_whole_robot_and_the_other_must_press_again(people):
    people.hold(0)
    people.hold(1)
    assert people.poll().axes.tolist() == BOTH
    people.pads[0].unplug()
    people.settle()
    for _ in range(3):
        assert people.poll() == PAUSED
    people.let_go(1)
    people.hold(1)
    assert people.poll() == PAUSED  # the other one is still lost
    people.pads[0].plug_in()
    wait_until(lambda: people.inner[0]._reader.newest() is not None)
    people.let_go(1)
    people.pads[0].let_go()
    people.settle()
    assert people.poll() == PAUSED
    people.hold(0)
    assert people.poll().axes.tolist() == LEFT
    people.hold(1)
    assert people.poll().axes.tolist() == BOTH


def test_press_of_the_other_person_does_not_survive_a_loss(people):
    people.hold(0)
    people.hold(1)
    assert people.poll().axes.tolist() == BOTH
    people.pads[0].unplug()
    people.settle()
    assert people.poll() == PAUSED
    people.operator.resume()  # start, from the console
    assert people.poll() == HumanInput()  # the second switch is still held, but its press is spent


def test_start_of_one_person_ends_the_pause_of_both(people):
    people.pads[0].tap(BTN_SELECT)
    people.settle()
    assert people.poll() == PAUSED
    assert people.poll() == PAUSED
    people.pads[1].tap(BTN_START)
    people.settle()
    assert people.poll() == HumanInput(event=Event.START)
    assert people.poll() == HumanInput()


def test_pause_from_elsewhere_ends_with_a_press(people):
    people.operator.pause()
    assert people.poll() == PAUSED
    people.hold(1)
    assert people.poll().axes.tolist() == RIGHT
    people.let_go(1)
    assert people.poll() == HumanInput()


def test_emergency_stop_of_either_stops(people):
    people.hold(0)
    people.pads[1].press(316)
    people.settle()
    assert people.poll() == HumanInput(event=Event.EMERGENCY)


def test_console_has_precedence_and_the_others_press_again(people):
    box = Mailbox(16)
    operator = OperatorWithConsole(people.operator, ConsoleControl(box, SPEC))
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    people.hold(0)
    assert operator.poll(HERE).axes.tolist() == LEFT
    writer = MailboxWriter(box)
    writer.drive(session=1, sequence=1, held=True, axes=np.zeros(16), expires_s=2.0)
    assert operator.poll(HERE).axes is None  # the whole robot
    writer.drive(session=1, sequence=2, held=False, axes=np.zeros(16))
    assert operator.poll(HERE).action is None


def test_operators_that_overlap_or_drive_everything_are_refused(tmp_path):
    config = SeveralConfig(operators=({"type": "gamepad"},))
    with EmulatedGamepad(tmp_path / "pad") as pad:

        def make(**settings):
            return EmulatedGamepadOperator(GamepadConfig(path=str(pad.path), **settings), robot=SPEC)

        with pytest.raises(UsageError, match="two operators drive left1"):
            SeveralOperators(config, robot=SPEC, inner=[make(part="left"), make(part="left")])
        with pytest.raises(UsageError, match=r"'gamepad' would drive the whole robot\. Give it a `part`"):
            SeveralOperators(config, robot=SPEC, inner=[make()])
        with pytest.raises(UsageError, match=r"'none' cannot share a robot\. Use a gamepad"):
            SeveralOperators(config, robot=SPEC, inner=[NoOperator()])


def test_several_operators_pass_the_checks_of_an_operator(tmp_path):
    def task():
        return FakeDelivery(FakeDeliveryConfig(max_steps=1000, tolerance=1e-9))

    def mobile(task):
        return FakeMobileArm(FakeMobileArmConfig(), task=task)

    pads, made = [EmulatedGamepad(tmp_path / name) for name in ("arm", "base")], []
    for pad in pads:
        pad.plug_in()

    def make(task):
        made[:] = [
            EmulatedGamepadOperator(
                GamepadConfig(path=str(pad.path), part=pad.path.name, max_silence_s=None), robot=mobile(None).spec
            )
            for pad in pads
        ]
        config = SeveralConfig(operators=({"type": "gamepad"}, {"type": "gamepad"}))
        return SeveralOperators(config, robot=mobile(None).spec, inner=made)

    def then_settle(act):
        def both():
            act()
            for operator in made:
                if not operator._reader._is_lost:
                    settle(operator)

        return both

    check_operator(make, task, mobile, reproducible=False, num_ticks=10)
    for operator in made:
        operator.close()
    check_dead_man(
        make,
        task,
        mobile,
        hold=then_settle(pads[0].hold),
        let_go=then_settle(pads[0].let_go),
        lose=then_settle(pads[0].unplug),
    )
    for operator in made:
        operator.close()
    pads[1].unplug()
