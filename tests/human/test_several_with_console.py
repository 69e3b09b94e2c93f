"""One person with a gamepad and one at the console or the terminal share a robot: each drives a part."""

import os
import pty
import time

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.browser import BrowserConfig, BrowserOperator, ConsoleControl, OperatorWithConsole
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.gamepad import ABS_Y, GamepadConfig
from dovetail.human.keyboard import KeyboardConfig, KeyboardOperator, TerminalKeys
from dovetail.human.mailbox import EXPIRY_S, Mailbox, MailboxReader, MailboxWriter
from dovetail.human.several import SeveralConfig, SeveralOperators
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedGamepadOperator
from dovetail.testing.mobile_arm import FakeDelivery, FakeDeliveryConfig, FakeMobileArm, FakeMobileArmConfig
from support.acting import FakeWorkcell, order
from support.input_hands import settle
from support.waiting import wait_until

PAUSED = HumanInput(event=Event.PAUSE)
SPEC = FakeMobileArm(FakeMobileArmConfig()).spec
HERE = FakeMobileArm(FakeMobileArmConfig()).observe()
TWO_ARMS = RobotSpec(
    name="rig", embodiment="rig", control_hz=20.0, observation={"joint_pos": ArraySpec(shape=(4,))},
    parts=tuple(
        ActionPart(
            name=name, kind="joint_target", unit="rad", names=(f"{name}1", f"{name}2"), low=(-2.0,) * 2, high=(2.0,) * 2,
            max_speed=(1.0, 1.0), measured=f"joint_pos[{columns}]",
        )
        for name, columns in (("left", "0:2"), ("right", "2:4"))
    ),
)  # fmt: skip
ARM, BASE, ALL = [True, True, True, False, False], [False, False, False, True, True], [True] * 5


class PadAndConsole:
    """A gamepad drives the arm of a mobile robot, and the console its base."""

    def __init__(self, folder, *, demonstrates=False, spec=SPEC, parts=("arm", "base")):
        self.pad = EmulatedGamepad(folder / "pad")
        self.pad.plug_in()
        settings = GamepadConfig(path=str(self.pad.path), part=parts[0], max_silence_s=None)
        self.inner = EmulatedGamepadOperator(settings, robot=spec)
        self.box = Mailbox(spec.action.shape[0] + 6 * sum(part.kind == "joint_target" for part in spec.parts))
        self.writer, self.sequence = MailboxWriter(self.box), 0
        config = SeveralConfig(operators=({"type": "gamepad"}, {"type": "browser"}))
        page = BrowserOperator(BrowserConfig(part=parts[1]), robot=spec)
        several = SeveralOperators(config, robot=spec, inner=[self.inner, page])
        console = ConsoleControl(self.box, spec, config=DriveConfig(part=parts[1]))
        self.operator = OperatorWithConsole(several, console, demonstrates=demonstrates)
        self.operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)

    def hold_pad(self):
        self.pad.hold()
        self.pad.push(ABS_Y, -1.0)
        settle(self.inner)

    def let_go_of_pad(self):
        self.pad.let_go()
        settle(self.inner)

    def press(self, *, held=True, first=3, **settings):
        self.sequence += 1
        axes = np.zeros(self.box.num_axes, np.float32)
        axes[first] = 1.0
        settings = {"expires_s": 2.0, **settings}
        self.writer.drive(session=1, sequence=self.sequence, held=held, axes=axes, **settings)

    def lose_console(self):
        self.press(time_ns=time.monotonic_ns() - 10**10)

    def poll(self):
        return self.operator.poll(HERE)

    def axes(self):
        found = self.poll()
        return None if found.axes is None else found.axes.tolist()


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**settings):
        made.append(PadAndConsole(tmp_path, **settings))
        return made[-1]

    yield build
    for one in made:
        one.operator._inner.close()
        one.pad.unplug()


def test_each_drives_its_part_and_release_of_one_leaves_the_other(make):
    both = make()
    assert both.poll() == HumanInput()
    both.press()
    alone = both.poll()
    assert alone.axes.tolist() == BASE and alone.action[3:] == pytest.approx((0.4, 0.0))
    both.hold_pad()
    polled = both.poll()
    assert polled.axes.tolist() == ALL
    assert polled.action[3:] == pytest.approx((0.4, 0.0)) and polled.action[0] > 0.0
    assert polled.keeps.tolist() == [False, False, True, False, False]  # the gripper was not commanded
    both.press(held=False)
    assert both.axes() == ARM
    both.let_go_of_pad()
    assert both.poll() == HumanInput()


def test_two_people_drive_two_arms_with_a_gamepad_and_the_console(make):
    both = make(spec=TWO_ARMS, parts=("left", "right"))
    here = Observation(time_ns=0, values={"joint_pos": np.array((0.1, 0.2, 0.3, 0.4), np.float32)})
    both.hold_pad()
    both.press(first=2)
    polled = both.operator.poll(here)
    assert polled.axes.tolist() == [True] * 4
    assert polled.action == pytest.approx((0.15, 0.2, 0.35, 0.4))
    both.let_go_of_pad()
    assert both.operator.poll(here).axes.tolist() == [False, False, True, True]


def test_lost_console_holds_the_whole_robot_until_its_own_switch_is_pressed_again(make):
    both = make()
    both.press()
    both.hold_pad()
    assert both.axes() == ALL
    both.lose_console()
    for _ in range(3):
        assert both.poll() == PAUSED
    both.let_go_of_pad()
    both.hold_pad()
    assert both.poll() == PAUSED  # the console is still lost
    both.press(held=False)
    both.press()
    assert both.axes() == BASE  # the gamepad's press was spent
    both.let_go_of_pad()
    both.hold_pad()
    assert both.axes() == ALL


def test_lost_gamepad_holds_the_whole_robot_and_the_console_presses_again(make):
    both = make()
    both.press()
    both.hold_pad()
    assert both.axes() == ALL
    both.pad.unplug()
    settle(both.inner)
    both.press()
    for _ in range(3):
        assert both.poll() == PAUSED
    both.press(held=False)
    both.press()
    assert both.poll() == PAUSED  # the gamepad is still lost
    both.writer.post(Event.START)
    assert both.poll().event is Event.START
    both.press(held=False)
    both.press()
    assert both.axes() == BASE


def test_pause_at_the_console_holds_until_its_switch_or_start(make):
    both = make()
    both.hold_pad()
    assert both.axes() == ARM
    both.writer.post(Event.PAUSE)
    for _ in range(3):
        assert both.poll() == PAUSED
    both.writer.post(Event.START)
    assert both.poll().event is Event.START
    assert both.poll() == HumanInput()  # the gamepad's switch is held, but its press was spent
    both.let_go_of_pad()
    both.hold_pad()
    assert both.axes() == ARM


@pytest.mark.parametrize("first", ["gamepad", "console"])
def test_demonstration_begins_when_any_of_them_presses(make, first):
    both = make(demonstrates=True)
    for _ in range(3):
        assert both.poll() == PAUSED
    both.hold_pad() if first == "gamepad" else both.press()
    assert both.axes() == (ARM if first == "gamepad" else BASE)
    if first == "gamepad":
        both.press()
        assert both.axes() == ALL
        both.lose_console()  # later, a press of the other one does not end the pause
        assert both.poll() == PAUSED
        both.let_go_of_pad()
        both.hold_pad()
        assert both.poll() == PAUSED


def test_emergency_stop_and_verdicts_arrive_from_both(make):
    both = make()
    both.press()
    both.hold_pad()
    both.writer.post(Event.SUCCESS)
    assert both.poll().event is Event.SUCCESS
    both.pad.press(316)
    settle(both.inner)
    assert both.poll().event is Event.EMERGENCY


def test_keyboard_without_a_part_is_refused():
    config = SeveralConfig(operators=({"type": "keyboard"},))
    with pytest.raises(UsageError, match=r"'keyboard' would drive the whole robot\. Give it a `part`"):
        SeveralOperators(config, robot=SPEC, inner=[KeyboardOperator(KeyboardConfig(), robot=SPEC)])


class Typing:
    """An operator whose person presses keys in a terminal before some ticks."""

    name = "keyboard"

    def __init__(self, operator, box, acts):
        self._inner, self._acts, self._tick, self._reader = operator, acts, 0, MailboxReader(box)

    def reset(self, *, rng, robot_minutes):
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)
        wait_until(lambda: self._reader.command() is not None)

    def poll(self, observation):
        self._tick += 1
        if (act := self._acts.get(self._tick)) is not None:
            moves = act()
            wait_until(lambda: self._reader.command().axes.any() == moves)
        return self._inner.poll(observation)


def test_base_driven_by_keys_stops_when_no_key_arrives_and_the_arm_never_moves():
    """No key repeats: the press expires after 0.25 s, while the person still has control."""
    box, (ours, theirs) = Mailbox(11), pty.openpty()
    config = KeyboardConfig()
    operator = OperatorWithConsole(KeyboardOperator(config, robot=SPEC), ConsoleControl(box, SPEC, config=config))
    acts = {2: lambda: os.write(ours, b"\tw") > 0, 5: lambda: time.sleep(2 * EXPIRY_S) is not None}
    cell = FakeWorkcell(
        raw=lambda task, clock: FakeMobileArm(FakeMobileArmConfig(), task=task),
        task=FakeDelivery(FakeDeliveryConfig(max_steps=8, tolerance=1e-9)),
    )
    try:
        with TerminalKeys(lambda: (box, SPEC), config=config, descriptor=theirs):
            episode = cell.actor(None, operator=Typing(operator, box, acts)).run(order())
    finally:
        os.close(ours)
        os.close(theirs)
    arm, base = episode.column("executed")[:, :2], episode.column("executed")[:, 3:]
    assert base[1] == pytest.approx((0.2, 0.0))  # half of the limit: the default speed of the keys
    assert not base[4:].any()
    assert np.ptp(arm, axis=0).max() < 1e-6


def test_terminal_that_hangs_stops_the_base_and_holds():
    """The thread that reads the keys no longer writes: the last command expires in the control loop."""
    box = Mailbox(11)
    operator = OperatorWithConsole(
        KeyboardOperator(KeyboardConfig(part="base"), robot=SPEC),
        ConsoleControl(box, SPEC, config=KeyboardConfig(part="base")),
    )
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    writer, axes = MailboxWriter(box), np.zeros(11, np.float32)
    axes[3] = 1.0
    writer.drive(session=1, sequence=1, held=True, axes=axes)
    assert operator.poll(HERE).action[3:] == pytest.approx((0.2, 0.0))
    time.sleep(EXPIRY_S)
    assert operator.poll(HERE) == PAUSED  # the control loop then sends `hold` of each part: zero for a velocity
