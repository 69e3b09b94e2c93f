"""Motions of a reset: any kind of part, slow, straight, verified, or a fault."""

import numpy as np
import pytest

from dovetail.actor.reset_motion import move_to
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import ConfigError, RobotFault
from dovetail.core.poses import quat_of, rotation_between
from dovetail.core.reset_steps import MoveTo
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.pose_arms import PoseArms

POSE = (0.5, 0.05, 0.25, *quat_of(np.array((0.0, 0.6, 0.5))).tolist())


def cell(raw):
    clock = SimulatedClock()
    clock.on_advance(raw.advance)
    safe = SafeRobot(raw, SafetyConfig(), clock)
    tick_ns = round(1e9 / raw.spec.control_hz)
    return safe, clock, lambda: clock.sleep_until(clock.now_ns() + tick_ns)


def move(raw, **motion):
    safe, clock, tick = cell(raw)
    move_to(MoveTo(name="home", **motion), safe, clock, tick=tick)
    return clock.now_ns() / 1e9


@pytest.mark.parametrize(
    ("kind", "frame", "adds_to"),
    [
        ("ee_delta", "base", "reference"),
        ("ee_delta", "reset", "reference"),
        ("ee_delta", "tool", "reference"),
        ("ee_delta", "base", "measured"),
        ("ee_delta", "reset", "measured"),
        ("ee_target", "base", "reference"),
    ],
)
def test_an_end_effector_reaches_its_pose_in_every_frame(kind, frame, adds_to):
    raw = PoseArms(kind, frame, adds_to=adds_to)
    move(raw, targets={"arm0": POSE})
    np.testing.assert_allclose(raw.positions[0], POSE[:3], atol=0.005)
    assert np.abs(rotation_between(raw.quats[0], np.array(POSE[3:]))).max() <= 0.02
    assert raw.base_m == 0.0  # a velocity part stands still


def test_both_arms_of_a_robot_move_together_and_a_position_keeps_the_rotation():
    raw = PoseArms("ee_delta", "base", num_arms=2)
    before = raw.quats[1].copy()
    move(raw, targets={"arm0": POSE, "arm1": (0.5, -0.1, 0.3)})
    np.testing.assert_allclose(raw.positions[0], POSE[:3], atol=0.005)
    np.testing.assert_allclose(raw.positions[1], (0.5, -0.1, 0.3), atol=0.005)
    assert np.abs(rotation_between(before, raw.quats[1])).max() <= 0.02
    both = np.array(raw.sent)[1:4]
    assert (np.abs(both[:, 0:3]).max(axis=1) > 0).all() and (np.abs(both[:, 6:9]).max(axis=1) > 0).all()


@pytest.mark.parametrize("speed", [1.0, 0.25])
def test_speed_is_a_share_of_the_filters_limits(speed):
    raw = FakeMobileArm(FakeMobileArmConfig())
    sent, send = [], raw.send
    raw.send = lambda action: (sent.append(action.copy()), send(action))[1]
    time_s = move(raw, targets={"arm": (1.2, -0.6), "gripper": (0.0,)}, speed=speed)
    np.testing.assert_allclose(raw.joints, (1.2, -0.6), atol=0.02)
    steps = np.abs(np.diff(np.array(sent)[:, :2], axis=0))
    assert steps.max() == pytest.approx(speed * 1.5 / 10.0, rel=1e-3)  # 1.5 rad/s at 10 Hz
    assert time_s == pytest.approx(1.2 / (1.5 * speed), abs=0.5)
    assert raw.opening == 0.0
    assert not np.array(sent)[:, 3:].any()  # the base
    path = np.array(sent)[1:6, :2]
    np.testing.assert_allclose(path[:, 0] / path[:, 1], -2.0, rtol=1e-4)  # straight: both joints arrive together


def test_a_blocked_arm_is_a_fault_that_names_the_axis():
    raw = PoseArms("ee_delta", "base", num_arms=2)
    raw.stuck = 1
    with pytest.raises(
        RobotFault, match=r"did not reach home in 3 s: axis 'arm1_y' of part 'arm1' is 0\.300 m off"
    ):
        move(raw, targets={"arm1": (0.4, 0.4, 0.3)}, timeout_s=3.0)


def test_a_blocked_joint_never_gets_a_command_far_ahead_of_it():
    """Otherwise it would jump once the obstacle is gone."""
    raw = FakeMobileArm(FakeMobileArmConfig())
    sent, send = [], raw.send

    def stuck(action):
        sent.append(action.copy())
        executed = send(action)
        raw._target[0] = 0.0
        return executed

    raw.send = stuck
    with pytest.raises(RobotFault, match=r"joint 'shoulder' is 1\.000 rad off"):
        move(raw, targets={"arm": (1.0, 0.0)}, timeout_s=4.0, speed=0.2)
    assert np.abs(np.array(sent)[:, 0]).max() <= 0.15 + 1e-6


@pytest.mark.parametrize(
    ("targets", "offsets", "because"),
    [
        ({"leg": (0.0,)}, {}, "has no action part 'leg'"),
        ({"arm": (0.0,)}, {}, "has 1 values, but part 'arm' needs 2"),
        ({"arm": (0.0, 9.0)}, {}, "is outside"),
        ({"arm": (0.0, 1.9)}, {"arm": (0.0, 0.2)}, "is outside"),
        ({"arm": (0.0, float("nan"))}, {}, "finite"),
        ({"base": (0.0, 0.0)}, {}, "it stands still"),
        ({}, {"arm": (0.1, 0.1)}, "has no target"),
        ({"arm": (0.0, 0.0)}, {"arm": (0.1,)}, "1 offsets"),
    ],
)
def test_a_target_that_does_not_fit_is_refused_before_motion(targets, offsets, because):
    raw = FakeMobileArm(FakeMobileArmConfig())
    raw.send = lambda action: pytest.fail("it moved")
    with pytest.raises(ConfigError, match=because):
        move(raw, targets=targets, offsets=offsets)


def test_a_pose_without_a_unit_quaternion_is_refused():
    with pytest.raises(ConfigError, match="unit quaternion"):
        move(PoseArms("ee_delta", "base"), targets={"arm0": (0.4, 0.0, 0.3, 1.0, 1.0, 0.0, 0.0)})
