"""Operators of a workcell by purpose."""

import numpy as np
import pytest

from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.types import Event, Purpose
from dovetail.live.run_stop import RunStop
from dovetail.runs.assembly.workcell import build_workcell
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedPedal
from support.waiting import wait_until

DEVICES = "dovetail.testing.input_devices"


@pytest.mark.parametrize("purpose", [Purpose.EVAL, Purpose.DEMO, Purpose.ONLINE])
@pytest.mark.parametrize("by", ["gamepad", "pedal"])
def test_emergency_stop_of_a_gamepad_works_for_every_purpose(purpose, by, tmp_path):
    """Also during evaluations and demonstrations of a scripted expert. The device is opened once."""
    with EmulatedGamepad(tmp_path / "pad") as pad, EmulatedPedal(tmp_path / "pedal") as pedal:
        plain = {"type": f"{DEVICES}:EmulatedGamepadOperator", "path": str(pad.path)}
        if by == "pedal":
            plain = {"type": f"{DEVICES}:EmulatedPedalOperator", "path": str(pedal.path), "operator": plain}
        section = PluginSection.parse("operator", plain)
        workcell = make_workcell()
        online_operator = workcell.operator(Purpose.ONLINE, section, demo_noise=0.0)
        operator = workcell.operator(purpose, section, demo_noise=0.0)
        workcell.task.reset(workcell.robot, rng=np.random.default_rng(0))
        for each in (online_operator, operator):
            each.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
        pad.stop()
        observation = workcell.robot.observe()
        wait_until(lambda: operator.poll(observation).event is Event.EMERGENCY)
        assert online_operator.poll(observation).event is None  # the event is delivered once
        workcell.close()


def test_emergency_stop_of_a_watched_device_stops_the_run_before_the_first_episode(tmp_path):
    with EmulatedGamepad(tmp_path / "pad") as pad, RunStop.create(tmp_path) as stop:
        section = PluginSection.parse(
            "operator", {"type": f"{DEVICES}:EmulatedGamepadOperator", "path": str(pad.path)}
        )
        workcell = make_workcell()
        workcell.watch_device(section, stop)
        pad.stop()
        wait_until(lambda: stop.emergency)
        assert "gamepad" in stop.source
        workcell.close()


def make_workcell():
    return build_workcell(
        task=PluginSection.parse("task", {"type": "dovetail.testing.fakes:FakeTask"}),
        robot=PluginSection.parse("robot", {"type": "dovetail.testing.fakes:FakeArm"}),
        safety=SafetyConfig(),
    )
