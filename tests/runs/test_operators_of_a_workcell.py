"""Operators that a workcell builds from config: leader arms, several operators, and what the console drives."""

import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.actor.control import HUMAN_AXES
from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.errors import ConfigError, UsageError
from dovetail.core.types import Purpose
from dovetail.human.leader import LeaderOperator
from dovetail.human.mailbox import Mailbox, MailboxWriter
from dovetail.human.several import SeveralOperators
from dovetail.runs.assembly.operators import console_config, console_operator, drives_part, parse_inner
from dovetail.runs.assembly.workcell import build_workcell
from dovetail.testing.leader_arm import EmulatedLeader
from support.waiting import wait_until

AXES = ["shoulder", "elbow", "gripper"]


def section(**settings):
    return PluginSection.parse("operator", settings)


def leader(path: Path, **settings):
    own = {"type": "dovetail.testing.leader_arm:EmulatedLeader", "path": str(path), "axes": AXES}
    return {"type": "leader", "leader": {**own, "units": ["rad", "rad", "1"]}, "switch": "squeeze", **settings}


def cell_for(operator, *, task="mobile_arm:FakeDelivery", robot="mobile_arm:FakeMobileArm"):
    return build_workcell(
        task=PluginSection.parse("task", f"dovetail.testing.{task}"),
        robot=PluginSection.parse("robot", f"dovetail.testing.{robot}"),
        safety=SafetyConfig(),
        operator=operator,
    )


def test_leader_of_the_config_demonstrates_and_the_base_stands_still(tmp_path):
    file = tmp_path / "leader.json"
    EmulatedLeader.put(file, (0.0, 0.0, 1.0))
    operator = section(**leader(file))
    cell = cell_for(operator)
    try:
        person = cell.operator(Purpose.DEMO, operator, demo_noise=0.0)
        assert isinstance(person, LeaderOperator)
        cell.robot.reset()
        person.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
        here = cell.robot.observe()
        wait_until(lambda: person._squeeze._was_open)
        EmulatedLeader.put(file, (0.05, 0.0, 0.0))
        wait_until(lambda: person._squeeze._held)

        EmulatedLeader.put(file, (0.05, 0.0, 1.0))  # as open as the robot's gripper: only now it follows

        def follows():
            time.sleep(0.01)
            polled = person.poll(here)
            return polled if polled.action is not None and polled.action[0] > 0.0 else None

        polled = wait_until(follows)
        assert polled.axes.tolist() == [True, True, True, False, False]
        assert polled.action[0] == pytest.approx(0.05, abs=0.04) and not polled.action[3:].any()
        assert cell.probe()[HUMAN_AXES].shape == (5,)
    finally:
        cell.close()


def test_building_a_leader_does_not_read_it(tmp_path):
    """Several processes build the operator, and only the control process may connect."""
    operator = section(**leader(tmp_path / "nowhere.json"))
    cell = cell_for(operator)
    person = cell.operator(Purpose.ONLINE, operator, demo_noise=0.0)
    with pytest.raises(UsageError, match="cannot read 'emulated_leader'"):
        person.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    cell.close()


def test_any_robot_leads(tmp_path):
    robot = {"type": "dovetail.testing.mobile_arm:FakeMobileArm"}
    operator = section(type="leader", leader=robot, switch="squeeze", handover="blend")
    cell = cell_for(operator)
    person = cell.operator(Purpose.ONLINE, operator, demo_noise=0.0)
    person.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert person._leader.positions().tolist() == [0.0, 0.0, 1.0]
    cell.close()


def test_several_operators_are_built_with_their_parts(tmp_path):
    inner = [leader(tmp_path / "leader.json"), {"type": "gamepad", "part": "base"}]
    operator = section(type="several", operators=inner)
    cell = cell_for(operator)
    person = cell.operator(Purpose.ONLINE, operator, demo_noise=0.0)
    assert isinstance(person, SeveralOperators) and person.name == "leader+gamepad"
    assert person.drives.all()
    cell.close()


@pytest.mark.parametrize("kind", ["keyboard", "browser"])
def test_one_of_several_operators_may_be_at_the_console_and_drives_its_part(tmp_path, kind):
    inner = [leader(tmp_path / "leader.json"), {"type": kind, "part": "base", "speed": 0.5}]
    operator = section(type="several", operators=inner)
    assert console_operator(operator).type == kind
    driven = console_config(operator)
    assert (driven.part, driven.speed) == ("base", 0.5)
    cell, box = cell_for(operator), Mailbox(11)
    person = cell.operator(Purpose.ONLINE, operator, demo_noise=0.0, console=cell.console_control(box, operator))
    EmulatedLeader.put(tmp_path / "leader.json", (0.0, 0.0, 1.0))
    person.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert person.name == f"leader+{kind}"
    axes = np.zeros(11, np.float32)
    axes[3] = 1.0
    MailboxWriter(box).drive(session=1, sequence=1, held=True, axes=axes, expires_s=2.0)
    polled = person.poll(cell.robot.observe())
    assert polled.axes.tolist() == [False, False, False, True, True]
    assert polled.action[3:] == pytest.approx((0.2, 0.0))
    cell.close()


def test_two_operators_at_the_console_are_refused():
    inner = [{"type": "keyboard", "part": "arm"}, {"type": "browser", "part": "base"}]
    with pytest.raises(UsageError, match="keyboard and browser cannot drive one robot together"):
        console_config(section(type="several", operators=inner))


def test_column_of_axes_exists_only_if_a_person_may_drive_a_part():
    one_arm = {"task": "fakes:FakeTask", "robot": "fakes:FakeArm"}
    assert HUMAN_AXES not in cell_for(section(type="gamepad"), **one_arm).probe()
    assert HUMAN_AXES in cell_for(section(type="gamepad", part="arm"), **one_arm).probe()
    assert (
        HUMAN_AXES in cell_for(section(type="scripted")).probe()
    )  # an arm and a base: one of them may be taken over
    pedal = {"type": "pedal", "operator": {"type": "gamepad", "part": "arm"}}
    assert drives_part(section(**pedal)) and not drives_part(section(type="pedal"))


def test_console_drives_everything_unless_its_own_operator_has_a_part():
    kinematics = {"file": "arm.xml", "end_effector": "tcp"}
    gamepad = {"type": "gamepad", "part": "arm", "kinematics": kinematics, "speed": 0.5}
    beside = console_config(section(**gamepad))
    assert (beside.part, beside.speed, len(beside.known_arms)) == (None, 0.5, 1)
    assert console_config(section(type="browser", part="arm")).part == "arm"
    assert len(console_config(section(type="several", operators=[gamepad])).known_arms) == 1
    assert console_config(section(type="scripted")).part is None


def test_wrong_section_inside_a_section_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"^operator\.operator: no operator named 'gamepda'") as error:
        parse_inner("operator", {"type": "gamepda"}, "operator.operator")
    assert "\n" not in str(error.value)
