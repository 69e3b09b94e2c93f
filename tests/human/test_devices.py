"""Input devices: contract, dead-man logic, expiry and loss. Devices are emulated at the level of evdev and HID."""

import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human import gamepad
from dovetail.human.browser import ConsoleControl, OperatorWithConsole
from dovetail.human.device import DeviceOperator, OperatorWithStop, Reading
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.gamepad import GamepadConfig, GamepadOperator
from dovetail.human.mailbox import EXPIRY_S
from dovetail.human.none import NoOperator
from dovetail.human.pedal import PedalConfig, PedalDevice, PedalOperator
from dovetail.human.selections import selections
from dovetail.human.spacemouse import SpaceMouseConfig, SpaceMouseOperator
from dovetail.testing.fakes import (
    FakeArm,
    FakeArmConfig,
    FakeBimanual,
    FakeBimanualConfig,
    FakeTask,
    FakeTaskConfig,
)
from dovetail.testing.input_devices import EmulatedGamepadOperator, EmulatedInput
from dovetail.testing.operators import check_dead_man, check_operator
from support.input_hands import SPEC, Foot, Mouse, Pad, Page, Typist, settle
from support.waiting import wait_until

S = 1_000_000_000
PAUSED = HumanInput(event=Event.PAUSE)


def task():
    return FakeTask(FakeTaskConfig(max_steps=1000, tolerance=1e-9))


def robot(task):
    return FakeArm(FakeArmConfig(), task=task)


def opened(operator):
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator


@pytest.fixture
def observation():
    return robot(None).observe()


@pytest.fixture(
    params=[Pad, Mouse, Foot, Page, Typist], ids=["gamepad", "spacemouse", "pedal", "browser", "keyboard"]
)
def hands(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()


@pytest.fixture
def pad(tmp_path):
    made = Pad(tmp_path)
    yield made
    made.close()


@pytest.fixture
def foot(tmp_path):
    made = Foot(tmp_path, stop_key="KEY_C")
    yield made
    made.close()


def test_every_device_passes_check_operator(hands):
    check_operator(hands.make, task, robot, reproducible=False, num_ticks=20)


def test_every_device_passes_check_dead_man(hands):
    check_dead_man(hands.make, task, robot, hold=hands.hold, let_go=hands.let_go, lose=hands.lose)


def test_check_dead_man_rejects_a_device_that_continues_after_a_loss(tmp_path):
    class Careless(Page):
        def make(self, task=None):
            operator = super().make(task)
            poll = operator.poll
            operator.poll = lambda seen: HumanInput() if poll(seen).event is Event.PAUSE else poll(seen)
            return operator

    page = Careless(tmp_path)
    with pytest.raises(AssertionError, match="must hold"):
        check_dead_man(page.make, task, robot, hold=page.hold, let_go=page.let_go, lose=page.lose)


# ---- readings expire by their own time


class HangingDevice:
    """Its read blocks while `hangs` is set, as a driver of a broken USB device does."""

    def __init__(self):
        self.hangs, self.num_reads = False, 0

    def open(self):
        pass

    def read(self):
        self.num_reads += 1
        while self.hangs:
            time.sleep(0.002)
        return (
            Reading(held=True, axes=np.ones(7, np.float32))
            if self.num_reads > 3
            else Reading(held=False, axes=np.zeros(7, np.float32))
        )

    def close(self):
        self.hangs = False


class HangingOperator(DeviceOperator):
    name = "hanging"


def test_reader_that_hangs_stops_driving_when_its_reading_expires(observation):
    """Finding 5: the last reading drove for as long as the reader hung."""
    device = HangingDevice()
    operator = opened(HangingOperator(device, robot=SPEC))
    wait_until(lambda: operator.poll(observation).action is not None)
    device.hangs = True
    last_s = time.monotonic()
    while operator.poll(observation).action is not None:
        last_s = time.monotonic()
        time.sleep(0.002)
        assert last_s - device_time(operator) < 3.0
    assert operator.poll(observation) == PAUSED
    device.hangs = False
    settle(operator)
    assert (
        operator.poll(observation) == PAUSED
    )  # its switch was not released: the takeover does not resume by itself
    operator.close()


def device_time(operator):
    return operator._reader.newest()[0].time_ns / S


def test_old_reading_does_not_drive(observation):
    class Late(HangingDevice):
        def read(self):
            return Reading(held=True, axes=np.ones(7, np.float32), time_ns=time.monotonic_ns() - 2 * S)

    operator = opened(HangingOperator(Late(), robot=SPEC))
    wait_until(operator._reader.newest)
    assert operator.poll(observation) == PAUSED
    operator.close()


def test_silent_gamepad_stops_driving_and_needs_a_new_press(tmp_path, observation):
    """Finding 5: a wireless pad that is out of range sends nothing, and its receiver stays plugged in."""
    pad = Pad(tmp_path, max_silence_s=0.2)
    operator = opened(pad.make())
    pad.hold()
    pad.device.tremble(period_s=0.01)
    until_s = time.monotonic() + 0.6
    while time.monotonic() < until_s:
        assert operator.poll(observation).action is not None  # a trembling hand drives as long as it likes
        time.sleep(0.01)
    pad.device.be_silent()
    wait_until(lambda: operator.poll(observation).event is Event.PAUSE)
    pad.device.push(gamepad.ABS_Y, -0.9)  # back in range, with the button still held
    settle(operator)
    assert operator.poll(observation) == PAUSED
    pad.let_go()
    assert operator.poll(observation) == PAUSED
    pad.hold()
    pad.device.push(gamepad.ABS_Y, -1.0)
    settle(operator)
    assert operator.poll(observation).action is not None
    pad.close()


def test_stick_of_a_gamepad_expires_like_every_other_input():
    assert GamepadConfig().max_silence_s == EXPIRY_S == 0.25


def test_silent_gamepad_with_a_held_gripper_button_stops_driving(tmp_path, observation, monkeypatch):
    monkeypatch.setattr(gamepad, "GRIP_SILENCE_S", 0.4)
    pad = Pad(tmp_path, max_silence_s=0.05)
    operator = opened(pad.make())
    pad.device.press(gamepad.BTN_TL, gamepad.BTN_SOUTH)
    settle(operator)
    pressed_s = time.monotonic()
    while operator.poll(observation).action is not None:
        assert time.monotonic() - pressed_s < 10.0
        time.sleep(0.002)
    assert time.monotonic() - pressed_s > 0.3  # a held button sends nothing, also in range
    assert operator.poll(observation) == PAUSED
    pad.close()


def test_gamepad_at_rest_may_be_silent(tmp_path, observation):
    pad = Pad(tmp_path, max_silence_s=0.05)
    operator = opened(pad.make())
    pad.device.hold()
    time.sleep(0.2)
    settle(operator)
    assert not operator.poll(observation).action[:6].any()
    pad.close()


def test_switch_that_is_held_while_the_device_opens_does_not_drive(observation, pad):
    pad.device.hold()
    pad.device.push(gamepad.ABS_Y, -1.0)
    operator = opened(pad.make())
    settle(operator)
    assert operator.poll(observation) == HumanInput()
    pad.let_go()
    pad.device.hold()
    settle(operator)
    action = operator.poll(observation).action
    assert action is not None and not action[:6].any()  # a stick counts once it has moved
    pad.device.push(gamepad.ABS_Y, -0.9)
    settle(operator)
    assert operator.poll(observation).action[:6].any()


@pytest.mark.parametrize("make", [Pad, Foot, Mouse], ids=["gamepad", "pedal", "spacemouse"])
def test_device_that_returns_after_a_loss_needs_a_new_press(make, tmp_path, observation):
    hands = make(tmp_path)
    operator = opened(hands.make())
    hands.hold()
    assert operator.poll(observation).action is not None
    hands.lose()
    hands.device.plug_in()  # between two polls
    wait_until(operator._reader.newest)
    assert operator.poll(observation) == PAUSED
    assert operator.poll(observation) == PAUSED
    hands.let_go()
    hands.hold()
    assert operator.poll(observation).action is not None
    hands.close()


# ---- emergency stop


@pytest.mark.parametrize("make", [Pad, Foot, Mouse], ids=["gamepad", "pedal", "spacemouse"])
def test_emergency_stop_of_a_watched_device_needs_no_control_loop(make, tmp_path):
    """Between episodes, during a reset and while the control loop hangs."""
    settings = {Pad: {}, Foot: {"stop_key": "KEY_C"}, Mouse: {"stop_button": 4}}[make]
    hands, pressed = make(tmp_path, **settings), []
    operator = hands.make()
    operator.watch(pressed.append)
    settle(operator)
    hands.device.stop()
    wait_until(lambda: pressed)
    assert pressed == [operator.name]
    opened(operator)
    assert operator.poll(robot(None).observe()).event is None  # the callback has latched it
    hands.close()


def test_watched_device_that_is_missing_is_refused_by_reset(tmp_path):
    operator = EmulatedGamepadOperator(GamepadConfig(path=str(tmp_path / "none")), robot=SPEC)
    operator.watch(lambda name: None)
    with pytest.raises(UsageError, match="No such file"):
        opened(operator)


def test_only_emergency_stop_counts_between_episodes(pad, observation):
    operator = opened(pad.make())
    pad.device.tap(gamepad.BTN_NORTH, gamepad.BTN_WEST)
    settle(operator)
    assert opened(operator).poll(observation) == HumanInput()
    pad.device.stop()
    settle(operator)
    assert opened(operator).poll(observation).event is Event.EMERGENCY
    assert operator.poll(observation) == HumanInput()
    pad.device.tap(gamepad.BTN_SELECT)
    settle(operator)
    assert opened(operator).poll(observation).event is Event.PAUSE


def test_emergency_stop_of_device_works_with_another_operator(pad, observation, tmp_path):
    operator = opened(OperatorWithStop(NoOperator(), pad.make()))
    pad.hold()
    pad.device.tap(gamepad.BTN_NORTH)
    pad.settle()
    assert [operator.poll(observation), operator.poll(observation), operator.name] == [
        HumanInput(),
        HumanInput(),
        "none",
    ]
    pad.device.stop()
    pad.settle()
    assert operator.poll(observation).event is Event.EMERGENCY
    missing = EmulatedGamepadOperator(GamepadConfig(path=str(tmp_path / "none")), robot=SPEC)
    assert opened(OperatorWithStop(NoOperator(), missing)).poll(observation) == HumanInput()


def test_emergency_stop_works_after_losing_the_pedal(pad, foot, observation):
    foot.inner = pad.make
    operator = opened(foot.make())
    foot.hold()
    operator.poll(observation)
    foot.lose()
    assert operator.poll(observation).event is Event.PAUSE
    pad.device.stop()
    pad.settle()
    assert operator.poll(observation).event is Event.EMERGENCY


# ---- single devices


def test_gamepad_gives_motion_and_events(pad, observation):
    operator, arm = opened(pad.make()), FakeArm(FakeArmConfig())
    pad.device.hold()
    pad.device.push(gamepad.ABS_RY, -1.0)
    settle(operator)
    np.testing.assert_allclose(arm.frame @ operator.poll(observation).action[:3], (0, 0, 0.02), atol=1e-6)  # up
    pad.device.push_raw(gamepad.ABS_RY, 2000)  # within the dead zone
    settle(operator)
    assert not operator.poll(observation).action[:6].any()
    pad.device.press(gamepad.BTN_SOUTH)
    settle(operator)
    assert operator.poll(observation).action[6] == 0.0
    pad.device.press(gamepad.BTN_NORTH, gamepad.BTN_WEST)
    events = [wait_until(lambda: operator.poll(observation).event) for _ in range(2)]
    assert events == [Event.SUCCESS, Event.FAILURE]
    pad.device.press(gamepad.BTN_START, gamepad.BTN_MODE)
    assert wait_until(lambda: operator.poll(observation).event) is Event.EMERGENCY


def test_pressed_pedal_enables_the_other_operator(foot, observation):
    class Pushy(NoOperator):
        def poll(self, observation):
            return HumanInput(action=np.full(7, 0.01, np.float32))

    foot.inner = Pushy
    operator = opened(foot.make())
    assert operator.poll(observation) == HumanInput()
    foot.hold()
    for _ in range(3):
        assert operator.poll(observation).action[0] == np.float32(0.01)
        foot.device.repeat(foot.device.KEY)  # an automatic repetition is neither a press nor a release
        foot.settle()
    foot.let_go()
    assert operator.poll(observation) == HumanInput()


@pytest.mark.parametrize("make", [Pad, Foot], ids=["gamepad", "pedal"])
def test_console_drives_after_a_device_was_lost(make, tmp_path, observation):
    hands, page = make(tmp_path), Page(tmp_path)
    operator = opened(OperatorWithConsole(hands.make(), ConsoleControl(page.box, SPEC)))
    hands.hold()
    assert operator.poll(observation).action is not None
    hands.lose()
    assert operator.poll(observation) == PAUSED
    page.hold()
    taken = operator.poll(observation)
    assert taken.action is not None and taken.event is None  # with a pause event, the loop would hold
    page.let_go()
    assert operator.poll(observation) == PAUSED  # the policy does not continue by itself
    page.writer.post(Event.START)
    assert operator.poll(observation).event is Event.START
    assert operator.poll(observation) == HumanInput()
    hands.close()


@pytest.mark.parametrize("make", [Pad, Mouse], ids=["gamepad", "spacemouse"])
def test_pause_from_the_console_holds_a_device_that_drives_until_a_new_press(make, tmp_path, observation):
    hands, page = make(tmp_path), Page(tmp_path)
    operator = opened(OperatorWithConsole(hands.make(), ConsoleControl(page.box, SPEC)))
    hands.hold()
    assert operator.poll(observation).action is not None
    page.writer.post(Event.PAUSE)
    for _ in range(3):
        polled = operator.poll(observation)
        assert polled.event is Event.PAUSE and polled.action is None
        hands.settle()
    hands.let_go()
    assert operator.poll(observation) == PAUSED
    hands.hold()
    assert operator.poll(observation).action is not None
    hands.close()


def test_held_device_does_not_drive_when_the_console_releases(pad, tmp_path, observation):
    page = Page(tmp_path)
    operator = opened(OperatorWithConsole(pad.make(), ConsoleControl(page.box, SPEC)))
    pad.hold()
    forward = operator.poll(observation).action
    page.hold()
    assert not np.array_equal(operator.poll(observation).action, forward)
    page.let_go()
    assert operator.poll(observation) == PAUSED
    page.writer.post(Event.START)
    assert operator.poll(observation).event is Event.START
    pad.settle()
    assert operator.poll(observation) == HumanInput()  # its press is spent
    pad.let_go()
    pad.hold()
    assert operator.poll(observation).action is not None


# ---- refusals


def test_missing_library_is_named_in_the_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspacemouse", None)
    operator = SpaceMouseOperator(SpaceMouseConfig(), robot=SPEC)  # the constructor opens no device
    with pytest.raises(UsageError, match="pip install pyspacemouse") as refused:
        opened(operator)
    assert "\n" not in str(refused.value)


def test_missing_device_gives_usage_error(monkeypatch, tmp_path):
    monkeypatch.setattr("dovetail.human._evdev.DEVICES", str(tmp_path / "event*"))
    with pytest.raises(UsageError, match="Plug it in"):
        opened(GamepadOperator(GamepadConfig(), robot=SPEC))
    with pytest.raises(UsageError, match="No such file"):
        opened(GamepadOperator(GamepadConfig(path="/dev/input/none"), robot=SPEC))
    with pytest.raises(UsageError, match="Inappropriate ioctl"):
        opened(GamepadOperator(GamepadConfig(path="/dev/null"), robot=SPEC))
    with pytest.raises(UsageError, match="unknown key 'KEY_NONE'"):
        PedalOperator(PedalConfig(key="KEY_NONE"), robot=SPEC, inner=NoOperator())


def test_first_device_with_the_key_is_found(monkeypatch, tmp_path):
    from dovetail.testing.input_devices import EmulatedKernel

    monkeypatch.setattr("dovetail.human._evdev.DEVICES", str(tmp_path / "event?"))
    mouse, pedal = (
        EmulatedInput(tmp_path / f"event{at}", keys=keys) for at, keys in enumerate(((272, 273), (48,)))
    )
    with mouse, pedal:
        device = PedalDevice(PedalConfig(), kernel=EmulatedKernel())
        device.open()
        pedal.press(48)
        assert device.read().held
        device.close()


def mapped(spec):
    (only,) = selections(spec, DriveConfig(), name="any")
    return only.axes


def joints_at(value):
    return Observation(time_ns=0, values={"joint_pos": np.full(24, value, np.float32)})


def test_d_pad_of_a_gamepad_chooses_the_joint_that_the_stick_moves(tmp_path):
    pad = Pad(tmp_path)
    spec = FakeBimanual(FakeBimanualConfig()).spec
    operator = opened(
        EmulatedGamepadOperator(GamepadConfig(path=str(pad.device.path), max_silence_s=None), robot=spec)
    )
    pad.operators.append(operator)
    pad.hold()
    first = operator.poll(joints_at(0.2)).action
    assert first[0] == pytest.approx(0.2 + 0.8 / 20) and first[1:] == pytest.approx(np.full(23, 0.2))
    for value in (1.0, 0.0, 1.0, 0.0):
        pad.device.push(gamepad.ABS_HAT0Y, value)
        pad.settle()
    third = operator.poll(joints_at(0.2)).action
    assert operator.selection == "arm, joint left_arm3"
    assert third[2] == pytest.approx(0.2 + 0.8 / 20)
    assert third[0] == pytest.approx(first[0])  # keeps its target
    pad.close()


def test_button_of_a_spacemouse_chooses_the_next_six_joints(tmp_path):
    mouse = Mouse(tmp_path, next_button=4)
    mouse.robot = FakeBimanual(FakeBimanualConfig()).spec
    operator = opened(mouse.make())
    mouse.hold()
    assert np.flatnonzero(operator.poll(joints_at(0.0)).action).tolist() == [0]
    mouse.device.buttons(4)
    mouse.settle()
    mouse.device.buttons()
    mouse.settle()
    moved = operator.poll(joints_at(0.0)).action
    assert operator.selection == "arm, joint left_finger1 to left_finger6"
    assert moved[6] == pytest.approx(0.04)
    mouse.close()


def test_axes_are_mapped_by_position_not_by_name():
    """Three axes to move, three to turn, then grippers; also for an arm that does not turn."""
    plain = replace(SPEC, action=replace(SPEC.action, names=()))
    assert mapped(plain) == {axis: axis for axis in range(7)}
    flat = replace(SPEC.action, shape=(4,), names=("x", "y", "z", "gripper"), low=(-1,) * 4, high=(1,) * 4)
    assert mapped(replace(SPEC, action=flat)) == {0: 0, 1: 1, 2: 2, 3: 6}
