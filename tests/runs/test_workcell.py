"""Operators of a workcell by purpose."""

import sys

import numpy as np
import pytest

from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.types import Event, Purpose
from dovetail.human import gamepad
from dovetail.runs.assembly.workcell import build_workcell
from support.fake_devices import FakeEvdev, FakeInput


@pytest.mark.parametrize("purpose", [Purpose.EVAL, Purpose.DEMO, Purpose.ONLINE])
@pytest.mark.parametrize("by", ["gamepad", "pedal"])
def test_emergency_stop_of_a_gamepad_works_for_every_purpose(purpose, by, monkeypatch):
    """Also during evaluations and demonstrations of a scripted expert. The device is opened once."""
    keys = [*gamepad.EVENTS, gamepad.BTN_TL]
    pad, pedal = FakeInput(keys), FakeInput([48], path="/dev/input/event1")
    monkeypatch.setitem(sys.modules, "evdev", FakeEvdev(pad, pedal))
    plain = {"type": "gamepad"} if by == "gamepad" else {"type": "pedal", "operator": {"type": "gamepad"}}
    section = PluginSection.parse("operator", plain)
    workcell = build_workcell(
        task=PluginSection.parse("task", {"type": "dovetail.testing.fakes:FakeTask"}),
        robot=PluginSection.parse("robot", {"type": "dovetail.testing.fakes:FakeArm"}),
        safety=SafetyConfig(),
    )
    online_operator = workcell.operator(Purpose.ONLINE, section, demo_noise=0.0)
    operator = workcell.operator(purpose, section, demo_noise=0.0)
    workcell.task.reset(workcell.robot, rng=np.random.default_rng(0))
    for each in (online_operator, operator):
        each.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    pad.press(gamepad.BTN_MODE)
    observation = workcell.robot.observe()
    assert operator.poll(observation).event is Event.EMERGENCY
    assert online_operator.poll(observation).event is None  # the event is delivered once
    workcell.close()
    assert not pad.is_open
