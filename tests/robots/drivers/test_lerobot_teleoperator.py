"""A LeRobot leader arm behind the bridge."""

import math
import os
import time

import numpy as np
import pytest

from dovetail.core.abilities import Leader
from dovetail.core.errors import ConfigError, RobotError
from dovetail.robots.drivers.lerobot.teleoperator import LeRobotTeleoperator
from support.lerobot_arm import leader_config, wait_for

POSE = {"shoulder_pan": 90.0, "shoulder_lift": 0.0, "elbow_flex": -30.0, "wrist_flex": 0.0, "wrist_roll": 0.0,
        "gripper": 40.0}  # fmt: skip


@pytest.fixture
def make(arm):
    made = []

    def build(**changes):
        made.append(LeRobotTeleoperator(leader_config(arm, **changes)))
        return made[-1]

    yield build
    for leader in made:
        leader.close()


def test_positions_have_the_axes_and_units_of_the_follower(make, arm):
    arm.set_state(positions=POSE)
    leader = make()
    assert isinstance(leader, Leader)
    assert leader.axes[:2] == ("shoulder_pan", "shoulder_lift") and leader.units == ("rad",) * 5 + ("1",)
    np.testing.assert_allclose(leader.read(), [math.pi / 2, 0, -math.pi / 6, 0, 0, 0.4])
    assert leader.get_action()["shoulder_pan.pos"] == 90.0
    assert arm.events("connect")[0]["calibrate"] is False and arm.events("torque") == []


def test_events_have_the_names_of_lerobot(make):
    events = make().events()
    assert events["success"] is True and events["failure"] is False and len(events) == 5


def test_the_bridge_does_not_inherit_the_real_time_priority_of_the_control_process(make, arm):
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pytest.skip("this user may not use real-time priorities")
    try:
        leader = make()
        leader.read()
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    assert os.sched_getscheduler(leader._link.pid) == os.SCHED_OTHER


def test_a_leader_that_follows_moves_slowly_and_release_takes_its_torque(make, arm):
    leader = make(follow=True, follow_speed=0.5)
    leader.follow(np.array([1.0, 0, 0, 0, 0, 0.5]))
    began_s = time.monotonic()
    while time.monotonic() - began_s < 0.5:
        leader.follow(np.array([1.0, 0, 0, 0, 0, 0.5]))
        time.sleep(0.02)
    passed_s = time.monotonic() - began_s
    position = leader.read()[0]
    assert 0.0 < position <= 0.5 * passed_s + 0.06
    leader.release()
    assert [event["on"] for event in arm.events("torque")] == [True, False]


def test_a_leader_without_follow_is_never_moved(make, arm):
    leader = make()
    leader.read()
    leader.follow(np.ones(6))
    leader.release()
    assert arm.events("torque", "feedback") == []


def test_the_torque_goes_off_when_the_client_is_gone(make, arm):
    leader = make(follow=True)
    leader.follow(np.zeros(6))
    leader.close()
    wait_for(lambda: [event["on"] for event in arm.events("torque")] == [True, False])


@pytest.mark.parametrize("word", ["raise", "nan", "hang", "exit"])
def test_a_lost_leader_is_an_error(make, arm, word):
    leader = make(timeout_s=0.5)
    leader.read()
    arm.misbehave(read=word)
    with pytest.raises(RobotError):
        leader.read()
    arm.misbehave()
    leader.read()


def test_positions_that_are_not_finite_never_reach_the_leader(make, arm):
    leader = make(follow=True)
    with pytest.raises(RobotError, match="6 finite positions"):
        leader.follow(np.full(6, np.nan))
    assert arm.events("feedback") == []


def test_a_calibration_mismatch_names_the_lerobot_command(make, arm):
    arm.set_state(calibrated=False)
    with pytest.raises(RobotError, match=r"Run: lerobot-calibrate --teleop.type=so101_leader --teleop.port="):
        make().read()


def test_a_leader_without_units_is_refused(arm):
    with pytest.raises(ConfigError, match="needs `axes` and `units`"):
        LeRobotTeleoperator(leader_config(arm, teleoperator="koch_leader"))
    with pytest.raises(ConfigError, match=r"no unit of 'a.pos'"):
        LeRobotTeleoperator(leader_config(arm, teleoperator="koch_leader", axes=["a"]))
    with pytest.raises(ConfigError, match="unknown unit"):
        LeRobotTeleoperator(leader_config(arm, teleoperator="koch_leader", axes=["a"], units={"a.pos": "x"}))
