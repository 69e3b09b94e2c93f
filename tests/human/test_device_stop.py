"""STOP of an input device is heard: held while it opens, before it is unplugged, after an overflow, and after errors."""

import threading
import time

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Event, HumanInput
from dovetail.human import gamepad
from dovetail.human.device_reader import DeviceReader, Reading
from dovetail.human.gamepad import GamepadConfig, GamepadDevice
from dovetail.human.pedal import PedalConfig, PedalDevice
from dovetail.human.spacemouse import SpaceMouseConfig, SpaceMouseDevice
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from dovetail.testing.input_devices import (
    EmulatedGamepad,
    EmulatedGamepadOperator,
    EmulatedKernel,
    EmulatedPedal,
    EmulatedSpaceMouse,
    install_easyhid,
)
from support.input_hands import SPEC, Pad, settle
from support.waiting import wait_until

OBSERVATION = FakeArm(FakeArmConfig()).observe()
PAUSED = HumanInput(event=Event.PAUSE)


def a_gamepad(folder):
    pad = EmulatedGamepad(folder / "pad")
    return pad, GamepadDevice(GamepadConfig(path=str(pad.path)), kernel=EmulatedKernel())


def a_pedal(folder):
    pedal = EmulatedPedal(folder / "pedal")
    config = PedalConfig(path=str(pedal.path), key="KEY_B", stop_key="KEY_C")
    return pedal, PedalDevice(config, kernel=EmulatedKernel())


def a_spacemouse(folder):
    mouse = EmulatedSpaceMouse(folder / "mouse")
    install_easyhid(mouse.path)
    return mouse, SpaceMouseDevice(SpaceMouseConfig(stop_button=mouse.STOP_BUTTON))


evdev = pytest.mark.parametrize("make", [a_gamepad, a_pedal], ids=["gamepad", "pedal"])
every = pytest.mark.parametrize("make", [a_gamepad, a_pedal, a_spacemouse], ids=["gamepad", "pedal", "spacemouse"])


@evdev
def test_stop_key_that_is_held_while_the_device_opens_counts_as_pressed(make, tmp_path):
    emulated, device = make(tmp_path)
    with emulated:
        emulated.hold()
        emulated.press(gamepad.BTN_MODE if make is a_gamepad else EmulatedPedal.STOP_KEY)
        device.open()
        reading = device.read()
        assert reading.event is Event.EMERGENCY
        assert not reading.held  # the dead-man switch does not count
        assert device.read().event is None
        device.close()


@every
def test_stop_that_is_followed_by_unplugging_before_the_next_reading_counts(make, tmp_path):
    emulated, device = make(tmp_path)
    emulated.plug_in()
    device.open()
    assert device.read().event is None
    emulated.stop()
    emulated.unplug()
    assert device.read().event is Event.EMERGENCY
    if make is a_spacemouse:
        with pytest.raises(Exception, match="HID"):  # the reader treats it as a loss
            device.read()
    else:
        assert device.read() is None
    device.close()


def test_unplugging_after_a_press_is_not_a_release(tmp_path):
    """A release would give the arm back to the policy."""
    pad, device = a_gamepad(tmp_path)
    pad.plug_in()
    device.open()
    pad.hold()
    assert device.read().held
    pad.tap(gamepad.BTN_NORTH)
    pad.unplug()
    assert device.read().held
    assert device.read() is None
    device.close()


# ---- the kernel's queue is full


@pytest.fixture
def pad(tmp_path):
    made = Pad(tmp_path)
    yield made
    made.close()


def opened(operator):
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator


def test_overflow_while_driving_holds_until_a_new_press(pad):
    operator = opened(pad.make())
    pad.hold()
    assert operator.poll(OBSERVATION).action is not None
    pad.device.drop_events(release=[gamepad.BTN_TL])  # the events are lost: the state is unknown
    settle(operator)
    wait_until(operator._reader.newest)
    assert operator.poll(OBSERVATION) == PAUSED
    pad.hold()
    assert operator.poll(OBSERVATION).action is not None


def test_stop_key_that_is_held_after_an_overflow_counts_as_pressed(pad):
    operator = opened(pad.make())
    pad.device.drop_events(press=[gamepad.BTN_MODE])
    wait_until(lambda: operator.poll(OBSERVATION).event is Event.EMERGENCY)


def test_stop_behind_an_overflow_in_the_queue_counts(tmp_path):
    pad, device = a_gamepad(tmp_path)
    with pad:
        device.open()
        pad.drop_events()
        for _ in range(100):  # more than one read takes
            pad.push_raw(gamepad.ABS_X, 100)
            pad.push_raw(gamepad.ABS_X, 0)
        pad.stop()
        assert device.read().event is Event.EMERGENCY
        assert device.read() is None
        device.close()


def test_reader_that_was_paused_for_long_is_told_of_the_overflow(tmp_path):
    pad, device = a_gamepad(tmp_path)
    with pad:
        device.open()
        for _ in range(5000):
            pad.push_raw(gamepad.ABS_X, 100)
            pad.push_raw(gamepad.ABS_X, 0)
        assert device.read() is not None
        pad.push_raw(gamepad.ABS_X, 50)
        assert device.read() is None
        device.close()


# ---- the thread goes on


class OneKey:
    """A device whose STOP is pressed at each reading while `presses`."""

    def __init__(self):
        self.presses = self.is_gone = False
        self.num_opened = 0
        self.fails = None

    def open(self):
        if self.fails is not None:
            raise self.fails
        self.num_opened += 1

    def read(self):
        if self.is_gone:
            return None
        event, self.presses = Event.EMERGENCY if self.presses else None, False
        return Reading(held=False, axes=np.zeros(7, np.float32), event=event)

    def close(self):
        pass


@pytest.fixture
def reader():
    made = DeviceReader(OneKey(), name="one key")
    yield made
    made.close()


def test_stop_that_cannot_be_passed_on_is_tried_again(reader, capfd):
    heard, failures = [], [OSError("no descriptor left")] * 3

    def stop():
        if failures:
            raise failures.pop()
        heard.append(time.monotonic())

    reader.on_emergency = stop
    reader.open()
    reader._device.presses = True
    wait_until(lambda: heard)
    assert reader.next_event() is Event.EMERGENCY  # meanwhile, it stopped at least its own arm
    reader._device.presses = True
    wait_until(lambda: len(heard) == 2)
    printed = []
    wait_until(lambda: printed.append(capfd.readouterr().err) or "".join(printed))
    time.sleep(0.05)
    printed.append(capfd.readouterr().err)
    line = "warning: the thread that reads the one key failed and tries again: OSError: no descriptor left\n"
    assert "".join(printed) == line


def test_stop_is_passed_on_while_its_device_is_gone(reader):
    heard, fails = [], threading.Event()
    fails.set()

    def stop():
        if fails.is_set():
            raise OSError
        heard.append(1)

    reader.on_emergency = stop
    reader.open()
    device = reader._device
    device.presses = True
    wait_until(lambda: not device.presses)
    device.is_gone, device.fails = True, OSError("a vendor's library may raise anything")
    wait_until(lambda: reader.num_losses == 1)
    fails.clear()
    wait_until(lambda: heard)


def test_device_that_cannot_be_opened_for_any_reason_is_tried_again(reader, monkeypatch):
    monkeypatch.setattr("dovetail.human.device_reader._REOPEN_S", 0.01)
    heard = []
    reader.on_emergency = lambda: heard.append(1)
    reader.open()
    device = reader._device
    device.fails, device.is_gone = RuntimeError("a vendor's library may raise anything"), True
    wait_until(lambda: reader.num_losses == 1)
    time.sleep(0.05)
    device.fails, device.is_gone = None, False
    wait_until(lambda: device.num_opened == 2)
    device.presses = True
    wait_until(lambda: heard)


def test_watched_device_that_cannot_be_opened_is_refused_by_open_and_heard_later(reader, monkeypatch):
    monkeypatch.setattr("dovetail.human.device_reader._REOPEN_S", 0.01)
    heard, device = [], reader._device
    reader.on_emergency = lambda: heard.append(1)
    device.fails = OSError("libhidapi-hidraw.so.0: cannot open shared object file")
    reader.watch()
    with pytest.raises(UsageError, match="libhidapi"):
        reader.open()
    device.fails = None
    wait_until(lambda: device.num_opened == 1)
    device.presses = True
    wait_until(lambda: heard)
    reader.open()


def test_watched_device_that_is_plugged_in_later_is_heard(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.human.device_reader._REOPEN_S", 0.01)
    heard = []
    operator = EmulatedGamepadOperator(GamepadConfig(path=str(tmp_path / "pad")), robot=SPEC)
    operator.watch(heard.append)
    with EmulatedGamepad(tmp_path / "pad") as pad:
        wait_until(operator._reader.newest)
        pad.stop()
        wait_until(lambda: heard == ["gamepad"])
        opened(operator)
    operator.close()
