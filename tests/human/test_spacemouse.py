"""The SpaceMouse: HID reports through the real pyspacemouse, explicit release, and silence."""

import time

import numpy as np
import pytest

from dovetail.core.types import Event, HumanInput
from dovetail.human import spacemouse
from dovetail.human.spacemouse import SpaceMouseConfig, SpaceMouseDevice
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.input_hands import Mouse, settle
from support.waiting import wait_until

OBSERVATION = FakeArm(FakeArmConfig()).observe()
PAUSED = HumanInput(event=Event.PAUSE)


@pytest.fixture
def mouse(tmp_path):
    made = Mouse(tmp_path)
    yield made
    made.close()


def opened(mouse):
    operator = mouse.make()
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    mouse.arm()
    return operator


@pytest.mark.parametrize(
    ("push", "axis", "sign"),
    [
        ({"back": -1.0}, 0, 1),  # away from the person is forward
        ({"right": 1.0}, 1, -1),
        ({"down": -1.0}, 2, 1),
        ({"rotation": (0.0, -1.0, 0.0)}, 3, 1),  # about forward
        ({"rotation": (-1.0, 0.0, 0.0)}, 4, 1),  # about left
        ({"rotation": (0.0, 0.0, -1.0)}, 5, 1),  # about up
    ],
)
def test_reports_become_axes_of_the_base_frame(mouse, push, axis, sign):
    operator = opened(mouse)
    mouse.device.push(**push)
    settle(operator)
    reading, _ = operator._reader.newest()
    expected = np.zeros(7)
    expected[axis] = sign
    np.testing.assert_allclose(reading.axes, expected, atol=1e-6)


def test_both_conventions_of_the_library_give_the_same_axes():
    """pyspacemouse 1 and 2.0 have other axes than 2.1 with AxisConvention.ROS."""

    class State:
        x, y, z, roll, pitch, yaw = 0.1, 0.2, 0.3, 0.4, 0.5, 0.6

    class OldState:
        x, y, z, roll, pitch, yaw = -0.2, 0.1, 0.3, 0.4, 0.5, -0.6

    device = SpaceMouseDevice(SpaceMouseConfig())
    old = device._cap(OldState)
    device._is_ros = True
    np.testing.assert_allclose(device._cap(State), old)


def test_operator_keeps_control_at_rest_until_both_buttons_are_pressed(mouse):
    operator = opened(mouse)
    assert operator.poll(OBSERVATION) == HumanInput()
    mouse.hold()
    assert operator.poll(OBSERVATION).action[:6].any()
    mouse.device.rest()
    time.sleep(1.2)  # longer than a reading lasts
    settle(operator)
    action = operator.poll(OBSERVATION).action
    assert action is not None and not action[:6].any()
    mouse.device.buttons(0, 1)
    settle(operator)
    assert operator.poll(OBSERVATION) == HumanInput()
    mouse.device.push(back=-1.0)  # while the buttons are still pressed
    settle(operator)
    assert operator.poll(OBSERVATION) == HumanInput()


def test_control_returns_after_a_rest_if_configured(tmp_path):
    mouse = Mouse(tmp_path, release_after_s=0.05)
    operator = opened(mouse)
    mouse.hold()
    assert operator.poll(OBSERVATION).action is not None
    mouse.device.rest()
    wait_until(lambda: operator.poll(OBSERVATION).action is None)
    assert operator.poll(OBSERVATION) == HumanInput()
    mouse.close()


def test_pushed_cap_without_reports_stops_driving_and_needs_a_new_push(mouse):
    """Finding 5: the receiver is plugged in, but the mouse is out of range."""
    operator = opened(mouse)
    mouse.hold()
    assert operator.poll(OBSERVATION).action is not None
    mouse.device.be_silent()
    began_s = time.monotonic()
    while operator.poll(OBSERVATION).action is not None:
        assert time.monotonic() - began_s < 10.0
        time.sleep(0.002)
    assert operator.poll(OBSERVATION) == PAUSED
    mouse.device.push(back=-1.0)  # reports arrive again; the cap was not released
    time.sleep(0.2)
    settle(operator)
    assert operator.poll(OBSERVATION) == PAUSED
    mouse.device.rest()
    mouse.hold()
    assert operator.poll(OBSERVATION).action is not None


def test_buttons_move_the_gripper(mouse):
    operator = opened(mouse)
    mouse.device.buttons(0)
    settle(operator)
    assert operator.poll(OBSERVATION).action[6] == 0.0
    mouse.device.buttons(1)
    settle(operator)
    assert operator.poll(OBSERVATION).action[6] == 1.0


def test_held_gripper_button_without_reports_stops_driving_and_needs_a_new_press(mouse, monkeypatch):
    monkeypatch.setattr(spacemouse, "GRIP_SILENCE_S", 0.4)
    operator = opened(mouse)
    mouse.device.buttons(0)
    settle(operator)
    pressed_s = time.monotonic()
    while operator.poll(OBSERVATION).action is not None:
        assert time.monotonic() - pressed_s < 10.0
        time.sleep(0.002)
    assert time.monotonic() - pressed_s > 0.3  # a held button sends nothing, also in range
    assert operator.poll(OBSERVATION) == PAUSED
    mouse.device.buttons()
    settle(operator)
    assert operator.poll(OBSERVATION) == PAUSED
    mouse.arm()
    mouse.device.buttons(1)
    settle(operator)
    assert operator.poll(OBSERVATION).action[6] == 1.0


def test_gripper_button_may_be_held_while_the_cap_reports(mouse, monkeypatch):
    monkeypatch.setattr(spacemouse, "GRIP_SILENCE_S", 0.1)
    operator = opened(mouse)
    mouse.device.buttons(0)
    mouse.hold()
    time.sleep(0.3)
    settle(operator)
    assert operator.poll(OBSERVATION).action[6] == 0.0


def test_many_reports_between_two_readings_are_all_read(mouse):
    """A mouse sends 250 reports per second: if each reading took one, the newest would be ever older."""
    operator = opened(mouse)
    for _ in range(40):
        mouse.device._report()
    mouse.device.push(back=-1.0)
    settle(operator)
    assert operator._reader.newest()[0].axes[0] == 1.0
