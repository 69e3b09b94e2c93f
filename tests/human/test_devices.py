"""Input devices: contract, dead-man logic, and lazy loading of libraries."""

import os
import pty
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Event, HumanInput
from dovetail.human import gamepad
from dovetail.human.browser import BrowserConfig, BrowserOperator, ConsoleControl, OperatorWithConsole
from dovetail.human.device import OperatorWithStop, map_axes
from dovetail.human.gamepad import GamepadConfig, GamepadOperator
from dovetail.human.keyboard import KeyboardConfig, KeyboardOperator, Keys, TerminalKeys
from dovetail.human.mailbox import Mailbox, MailboxReader, MailboxWriter
from dovetail.human.none import NoOperator
from dovetail.human.pedal import PedalConfig, PedalOperator
from dovetail.human.spacemouse import SpaceMouseConfig, SpaceMouseOperator
from dovetail.testing.fakes import (
    FakeArm,
    FakeArmConfig,
    FakeBimanual,
    FakeBimanualConfig,
    FakeTask,
    FakeTaskConfig,
)
from dovetail.testing.operators import check_dead_man, check_operator
from support.fake_devices import FakeEvdev, FakeInput, FakeSpaceMouse

SPEC = FakeArm(FakeArmConfig()).spec
PAD_KEYS = (*gamepad.EVENTS, gamepad.BTN_TL, gamepad.BTN_SOUTH, gamepad.BTN_EAST)
PAD_AXES = (gamepad.ABS_X, gamepad.ABS_Y, gamepad.ABS_RX, gamepad.ABS_RY)
KEY_B = 48


def task():
    return FakeTask(FakeTaskConfig(max_steps=1000, tolerance=1e-9))


def robot(task):
    return FakeArm(FakeArmConfig(), task=task)


class Hands:
    """A kind of device and the person who uses it."""

    def make(self, task):
        raise NotImplementedError

    def close(self):
        pass


class Pad(Hands):
    def __init__(self, monkeypatch):
        self.input = FakeInput(PAD_KEYS, PAD_AXES)
        monkeypatch.setitem(
            sys.modules, "evdev", FakeEvdev(FakeInput([1, 2], path="/dev/input/event0"), self.input)
        )

    def make(self, task):
        return GamepadOperator(GamepadConfig(), robot=SPEC)

    def hold(self):
        self.input.press(gamepad.BTN_TL)
        self.input.push(gamepad.ABS_Y, -32768)

    def let_go(self):
        self.input.release(gamepad.BTN_TL)

    def lose(self):
        self.input.plugged = False


class Mouse(Hands):
    def __init__(self, monkeypatch):
        self.library = FakeSpaceMouse()
        monkeypatch.setitem(sys.modules, "pyspacemouse", self.library)
        self.made = []

    def make(self, task):
        self.made.append(SpaceMouseOperator(SpaceMouseConfig(release_after_s=0.0), robot=SPEC))
        return self.made[-1]

    def _seen(self):
        until_s, reads = time.monotonic() + 10.0, self.library.num_reads
        while self.made and self.library.num_reads < reads + 3:  # its own thread has seen it
            assert time.monotonic() < until_s
            time.sleep(0.001)
            if not self.library.plugged and self.made[-1]._device._newest is None:
                return

    def hold(self):
        self.library.move(y=1.0)
        self._seen()

    def let_go(self):
        self.library.rest()
        self._seen()

    def lose(self):
        self.library.plugged = False
        self._seen()

    def close(self):
        for device in self.made:
            device.close()


class Foot(Hands):
    def __init__(self, monkeypatch):
        self.input = FakeInput([KEY_B])
        monkeypatch.setitem(sys.modules, "evdev", FakeEvdev(self.input))

    def make(self, task):
        return PedalOperator(PedalConfig(), robot=SPEC, inner=NoOperator())

    def hold(self):
        self.input.press(KEY_B)

    def let_go(self):
        self.input.release(KEY_B)

    def lose(self):
        self.input.plugged = False


class Page(Hands):
    """The browser and the terminal's keys, which share one path."""

    inner = staticmethod(lambda: BrowserOperator(BrowserConfig()))

    def __init__(self, monkeypatch):
        self.box = Mailbox(7)
        self.writer, self.sequence = MailboxWriter(self.box), 0

    def make(self, task):
        return OperatorWithConsole(self.inner(), ConsoleControl(self.box, SPEC))

    def _drive(self, held, **settings):
        self.sequence += 1
        self.writer.drive(session=1, sequence=self.sequence, held=held, axes=[0, 0, 1, 0, 0, 0, 0], **settings)

    def hold(self):
        self._drive(True, expires_s=2.0)

    def let_go(self):
        self._drive(False)

    def lose(self):
        self._drive(True, time_ns=time.monotonic_ns() - 10**9)  # the last message is one second old


class Typist(Page):
    inner = staticmethod(lambda: KeyboardOperator(KeyboardConfig(), robot=SPEC))


@pytest.fixture(
    params=[Pad, Mouse, Foot, Page, Typist], ids=["gamepad", "spacemouse", "pedal", "browser", "keyboard"]
)
def hands(request, monkeypatch):
    made = request.param(monkeypatch)
    yield made
    made.close()


def test_every_device_passes_check_operator(hands):
    check_operator(hands.make, task, robot, reproducible=False, num_ticks=20)


def test_every_device_passes_check_dead_man(hands):
    check_dead_man(hands.make, task, robot, hold=hands.hold, let_go=hands.let_go, lose=hands.lose)


def test_check_dead_man_rejects_a_device_that_continues_after_a_loss():
    class Careless(Page):
        def make(self, task):
            operator = super().make(task)
            poll = operator.poll
            operator.poll = lambda seen: HumanInput() if poll(seen).event is Event.PAUSE else poll(seen)
            return operator

    page = Careless(None)
    with pytest.raises(AssertionError, match="must hold"):
        check_dead_man(page.make, task, robot, hold=page.hold, let_go=page.let_go, lose=page.lose)


# ---- single devices


def opened(operator):
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator


def test_gamepad_gives_motion_events_and_emergency_stop(monkeypatch):
    pad = Pad(monkeypatch)
    operator, seen = opened(pad.make(None)), robot(None).observe()
    pad.input.press(gamepad.BTN_TL)
    pad.input.push(gamepad.ABS_RY, -32768)
    arm = FakeArm(FakeArmConfig())
    action = operator.poll(seen).action
    np.testing.assert_allclose(arm.frame @ action[:3], (0, 0, 0.02), atol=1e-6)  # up
    pad.input.push(gamepad.ABS_RY, 2000)  # within the dead zone
    assert not operator.poll(seen).action[:6].any()
    pad.input.press(gamepad.BTN_SOUTH)
    assert operator.poll(seen).action[6] == 0.0
    pad.input.press(gamepad.BTN_NORTH, gamepad.BTN_WEST)
    assert [operator.poll(seen).event for _ in range(3)] == [Event.SUCCESS, Event.FAILURE, None]
    pad.input.press(gamepad.BTN_START, gamepad.BTN_MODE)
    assert operator.poll(seen).event is Event.EMERGENCY


def test_only_emergency_stop_counts_between_episodes(monkeypatch):
    pad = Pad(monkeypatch)
    operator, seen = opened(pad.make(None)), robot(None).observe()
    pad.input.press(gamepad.BTN_NORTH, gamepad.BTN_WEST)
    assert opened(operator).poll(seen) == HumanInput()
    pad.input.press(gamepad.BTN_MODE)
    assert opened(operator).poll(seen).event is Event.EMERGENCY
    assert operator.poll(seen) == HumanInput()
    pad.input.press(gamepad.BTN_SELECT)
    assert opened(operator).poll(seen).event is Event.PAUSE


def test_emergency_stop_of_device_works_with_another_operator(monkeypatch):
    pad = Pad(monkeypatch)
    operator, seen = opened(OperatorWithStop(NoOperator(), pad.make(None))), robot(None).observe()
    pad.hold()
    pad.input.press(gamepad.BTN_NORTH)
    assert [operator.poll(seen), operator.poll(seen), operator.name] == [HumanInput(), HumanInput(), "none"]
    pad.input.press(gamepad.BTN_MODE)
    assert operator.poll(seen).event is Event.EMERGENCY
    monkeypatch.setitem(sys.modules, "evdev", FakeEvdev())
    absent = opened(OperatorWithStop(NoOperator(), GamepadOperator(GamepadConfig(), robot=SPEC)))
    assert absent.poll(seen) == HumanInput()


def test_emergency_stop_works_after_losing_the_pedal(monkeypatch):
    pedal, pad = FakeInput([KEY_B], path="/dev/input/event1"), FakeInput(PAD_KEYS, PAD_AXES)
    monkeypatch.setitem(sys.modules, "evdev", FakeEvdev(pedal, pad))
    inner = GamepadOperator(GamepadConfig(), robot=SPEC)
    operator, seen = opened(PedalOperator(PedalConfig(), robot=SPEC, inner=inner)), robot(None).observe()
    pedal.press(KEY_B)
    operator.poll(seen)
    pedal.plugged = False
    assert operator.poll(seen).event is Event.PAUSE
    pad.press(gamepad.BTN_MODE)
    assert operator.poll(seen).event is Event.EMERGENCY


def test_state_is_read_again_after_dropped_events(monkeypatch):
    pad = Pad(monkeypatch)
    operator, seen = opened(pad.make(None)), robot(None).observe()
    pad.input.press(gamepad.BTN_TL)
    assert operator.poll(seen).action is not None
    pad.input.down.clear()  # released, but the kernel lost the event
    pad.input._emit(0, 3, 0)
    assert operator.poll(seen) == HumanInput()


def test_pressed_pedal_enables_the_other_operator(monkeypatch):
    foot = Foot(monkeypatch)

    class Pushy(NoOperator):
        def poll(self, observation):
            return HumanInput(action=np.full(7, 0.01, np.float32))

    operator = opened(PedalOperator(PedalConfig(), robot=SPEC, inner=Pushy()))
    seen = robot(None).observe()
    assert operator.poll(seen) == HumanInput()
    foot.input.press(KEY_B)
    assert operator.poll(seen).action[0] == np.float32(0.01)
    foot.input.release(KEY_B)
    assert operator.poll(seen) == HumanInput()


@pytest.mark.parametrize("make", [Pad, Foot], ids=["gamepad", "pedal"])
def test_console_drives_after_a_device_was_lost(make, monkeypatch):
    hands, page = make(monkeypatch), Page(monkeypatch)
    operator, seen = (
        opened(OperatorWithConsole(hands.make(None), ConsoleControl(page.box, SPEC))),
        robot(None).observe(),
    )
    hands.hold()
    assert operator.poll(seen).action is not None
    hands.lose()
    assert operator.poll(seen) == HumanInput(event=Event.PAUSE)
    page.hold()
    taken = operator.poll(seen)
    assert taken.action is not None and taken.event is None  # with a pause event, the loop would hold
    page.let_go()
    assert operator.poll(seen) == HumanInput(event=Event.PAUSE)  # the policy does not continue by itself
    page.writer.post(Event.START)
    assert operator.poll(seen).event is Event.START
    assert operator.poll(seen) == HumanInput()


@pytest.mark.parametrize(
    ("make", "module"),
    [
        (lambda: GamepadOperator(GamepadConfig(), robot=SPEC), "evdev"),
        (lambda: SpaceMouseOperator(SpaceMouseConfig(), robot=SPEC), "pyspacemouse"),
        (lambda: PedalOperator(PedalConfig(), robot=SPEC, inner=NoOperator()), "evdev"),
    ],
)
def test_missing_library_is_named_in_the_error(make, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    operator = make()  # the constructor opens no device
    with pytest.raises(UsageError, match=f"pip install {module}") as refused:
        opened(operator)
    assert "\n" not in str(refused.value)


def test_missing_device_gives_usage_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "evdev", FakeEvdev(FakeInput([1])))
    with pytest.raises(UsageError, match="Plug it in"):
        opened(GamepadOperator(GamepadConfig(), robot=SPEC))
    with pytest.raises(UsageError, match="No such file"):
        opened(GamepadOperator(GamepadConfig(path="/dev/input/none"), robot=SPEC))
    with pytest.raises(UsageError, match="unknown key 'KEY_NONE'"):
        opened(PedalOperator(PedalConfig(key="KEY_NONE"), robot=SPEC, inner=NoOperator()))
    mouse = FakeSpaceMouse()
    mouse.present = False
    monkeypatch.setitem(sys.modules, "pyspacemouse", mouse)
    with pytest.raises(UsageError, match="no SpaceMouse"):
        opened(SpaceMouseOperator(SpaceMouseConfig(), robot=SPEC))


def test_joint_robots_are_rejected():
    with pytest.raises(UsageError, match="ee_delta"):
        GamepadOperator(GamepadConfig(), robot=FakeBimanual(FakeBimanualConfig()).spec)


def test_axes_are_mapped_by_position_not_by_name(monkeypatch):
    """Three axes to move, three to turn, then grippers; also for an arm that does not turn."""
    plain = replace(SPEC, action=replace(SPEC.action, names=()))
    assert map_axes(plain, name="any") == {axis: axis for axis in range(7)}
    flat = replace(SPEC.action, shape=(4,), names=("x", "y", "z", "gripper"), low=(-1,) * 4, high=(1,) * 4)
    assert map_axes(replace(SPEC, action=flat), name="any") == {0: 0, 1: 1, 2: 2, 3: 6}


# ---- the terminal


def test_key_moves_while_it_repeats_and_enter_releases():
    keys = Keys()
    assert not keys.held
    assert keys.press("w", 10.0) is None
    assert keys.held
    assert keys.axes(10.5)[0] == 1.0  # until a terminal would repeat it
    assert keys.axes(10.6)[0] == 0.0
    for tick in range(10):
        keys.press("W", 10.5 + 0.03 * tick)
    assert keys.axes(10.9)[0] == 1.0
    assert keys.axes(11.0)[0] == 0.0
    assert keys.held  # no motion is not a release
    assert keys.axes(11.0)[6] == 0.0
    keys.press(" ", 11.0)
    assert keys.axes(11.0)[6] == -1.0
    assert keys.press("y", 11.0) is Event.SUCCESS
    assert keys.press("\x1b", 11.0) is Event.EMERGENCY
    keys.press("\n", 12.0)
    assert not keys.held


def eventually(what):
    until_s = time.monotonic() + 10.0
    while not (found := what()):
        assert time.monotonic() < until_s
        time.sleep(0.005)
    return found


def test_terminal_writes_to_the_mailbox_until_it_closes():
    ours, theirs = pty.openpty()
    box = Mailbox(7)
    reader = MailboxReader(box)
    try:
        with TerminalKeys(lambda: (box, SPEC), descriptor=theirs):
            os.write(ours, b"r")
            command = eventually(lambda: (h := reader.command()) and h.held and h)
            assert command.axes[2] == 1.0
            os.write(ours, b"\x1b[A")  # an arrow is no Esc
            os.write(ours, b"p")
            assert eventually(reader.next_event).event is Event.PAUSE
            os.write(ours, b"\n")
            eventually(lambda: not reader.command().held)
            os.write(ours, b"\x1b")
            eventually(lambda: box.emergency)
            os.write(ours, b"c")
            eventually(lambda: not box.emergency)
            os.write(ours, b"w")
            eventually(lambda: reader.command().held)
            os.close(ours)
            ours = None
            command = eventually(lambda: (h := reader.command()) and not h.is_fresh(time.monotonic_ns()) and h)
            assert command.held  # no release was received, so the arm holds
    finally:
        for descriptor in (ours, theirs):
            if descriptor is not None:
                os.close(descriptor)


def test_terminal_emergency_stop_works_while_a_console_has_the_mailbox():
    ours, theirs = pty.openpty()
    box = Mailbox(7)
    console = MailboxWriter(box)
    console.beat()
    try:
        with TerminalKeys(lambda: console.beat() or (box, SPEC), descriptor=theirs):
            os.write(ours, b"p\x1b")
            eventually(lambda: console.beat() or box.emergency)
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
