"""Whatever the sequence of inputs, the first command after a takeover is at most one tick away from the measured pose."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail.robots.sim as sim
from dovetail.core.clock import SimulatedClock
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Event, Observation
from dovetail.human.axes import AxisMapping, num_drive_axes
from dovetail.human.drive_settings import KinematicsConfig
from dovetail.human.handover import Handover
from dovetail.human.leader_mapping import LeaderMapping
from dovetail.human.mailbox import DriveCommand
from dovetail.human.rotations import from_quaternion, from_vector, to_vector
from dovetail.robots.safety import SafeRobot, SafetyConfig

HZ = 20.0
JOINTS = tuple(f"joint{number + 1}" for number in range(6))
SPEED = np.array((1.0, 0.5, 1.0, 1.5, 1.5, 2.0))
POSE_SPEED = np.array((0.2, 0.2, 0.2, 1.0, 1.0, 1.0))
HOME = np.array((0.0, 1.4, 1.3, -0.4, 0.1, 0.0))
ARM = ActionPart(
    name="arm", kind="joint_target", unit="rad", names=JOINTS, low=(-3.0,) * 6, high=(3.0,) * 6, max_speed=tuple(SPEED),
    measured="joint_pos",
)  # fmt: skip
HAND = ActionPart(
    name="hand", kind="ee_target", unit="m+rad", names=("x", "y", "z", "rx", "ry", "rz"), low=(-1.0,) * 3 + (-7.0,) * 3,
    high=(1.0,) * 3 + (7.0,) * 3, max_speed=tuple(POSE_SPEED), hold="measured", frame="base", measured="pose",
)  # fmt: skip
SPEC = RobotSpec(
    name="rig", embodiment="rig", control_hz=HZ, parts=(ARM, HAND),
    observation={"joint_pos": ArraySpec(shape=(6,)), "pose": ArraySpec(shape=(7,))},
)  # fmt: skip
X5 = KinematicsConfig(
    file=str(Path(sim.__file__).parent / "arms" / "x5.xml"), end_effector="tcp", angle="radian", part="arm"
)
DOWN = np.array((0.0, 1.0, 0.0, 0.0))  # half a turn about x: where rotation vectors change their sign


def seen(joints, position, quat):
    pose = np.concatenate((position, quat / np.linalg.norm(quat)))
    values = {"joint_pos": np.asarray(joints, np.float32), "pose": pose.astype(np.float32)}
    return Observation(time_ns=0, values=values)


def command(number, *, held, press, axes, late=False, valid=True):
    now_ns = time.monotonic_ns() - (10**9 if late else 0)
    return DriveCommand(
        session=1, sequence=number, held=held, axes=axes, press=press, time_ns=now_ns, expires_ns=10**8, is_valid=valid
    )  # fmt: skip


def check_near(action, observation):
    step = SPEED / HZ
    assert (np.abs(action[:6] - observation.values["joint_pos"]) <= step + 1e-5).all()
    pose = observation.values["pose"].astype(np.float64)
    assert (np.abs(action[6:9] - pose[:3]) <= POSE_SPEED[:3] / HZ + 1e-5).all()
    turn = to_vector(from_vector(action[9:].astype(np.float64)) @ from_quaternion(pose[3:]).T)
    assert np.linalg.norm(turn) <= math.sqrt(3) * POSE_SPEED[3] / HZ + 1e-3


tick = st.fixed_dictionaries(
    {
        "held": st.booleans(),
        "axes": st.lists(st.sampled_from((-1.0, 0.0, 0.4, 1.0)), min_size=18, max_size=18),
        "what": st.sampled_from(("", "", "", "", "late", "invalid", "pause", "start")),
        "moved": st.floats(-0.3, 0.3),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(tick, min_size=1, max_size=25))
def test_first_command_after_any_takeover_is_one_tick_away_at_most(ticks):
    assert num_drive_axes(SPEC) == 18
    handover = Handover(SPEC, mapping=AxisMapping(SPEC, kinematics=(X5,)))
    handover.begin()
    joints, position, quat = HOME.copy(), np.array((0.3, 0.0, 0.2)), DOWN.copy()
    drove, was_held, press = False, False, 0
    for number, one in enumerate(ticks, 1):
        observation = seen(joints, position, quat)
        press += one["held"] and not was_held
        was_held = one["held"]
        given = command(
            number, held=one["held"], press=press, axes=np.array(one["axes"], np.float32),
            late=one["what"] == "late", valid=one["what"] != "invalid",
        )  # fmt: skip
        event = {"pause": Event.PAUSE, "start": Event.START}.get(one["what"])
        polled = handover.decide(given, event, observation)
        drives = polled is not None and polled.action is not None
        if drives and not drove:
            check_near(polled.action, observation)
        drove = drives
        if drives:  # the robot goes there
            joints, position = polled.action[:6].astype(np.float64), polled.action[6:9].astype(np.float64)
        else:  # the policy moves it anywhere
            joints, position = joints + one["moved"], position + 0.1 * one["moved"]
            turned = from_vector(np.array((one["moved"], one["moved"], 0.0))) @ from_quaternion(quat)
            vector = to_vector(turned)
            angle = np.linalg.norm(vector)
            quat = np.array((np.cos(angle / 2), *(np.sin(angle / 2) * vector / max(angle, 1e-9))))


class FixedLeader:
    name, axes, units, can_follow = "fixed", JOINTS, ("rad",) * 6, False


@pytest.mark.parametrize("waits", [True, False])
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-3.0, 3.0), min_size=6, max_size=6), st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6)
)
def test_every_command_of_a_leader_is_one_tick_away_at_most(waits, at, wander):
    spec = RobotSpec(
        name="rig", embodiment="rig", control_hz=HZ, parts=(ARM,), observation={"joint_pos": ArraySpec(shape=(6,))}
    )
    mapping = LeaderMapping(spec, FixedLeader(), waits=waits)
    joints, leader = HOME.copy(), np.array(at)
    for _ in range(20):
        observation = Observation(time_ns=0, values={"joint_pos": joints.astype(np.float32)})
        action = mapping.action(leader, observation)
        assert (np.abs(action - joints) <= SPEED / HZ + 1e-5).all()
        joints, leader = action.astype(np.float64), leader + np.array(wander)


# ---- absolute poses


def test_pose_target_moves_from_the_measured_pose_and_stays_at_rest():
    mapping = AxisMapping(SPEC)
    mapping.begin()
    observation = seen(HOME, (0.3, 0.0, 0.2), DOWN)
    up = np.zeros(18)
    up[8] = 1.0
    np.testing.assert_allclose(mapping.action(up, observation)[6:9], (0.3, 0.0, 0.21), atol=1e-6)
    lower = seen(HOME, (0.3, 0.0, 0.195), DOWN)  # it sags
    np.testing.assert_allclose(mapping.action(np.zeros(18), lower)[6:9], (0.3, 0.0, 0.21), atol=1e-6)
    mapping.release()
    np.testing.assert_allclose(mapping.action(np.zeros(18), lower)[6:9], (0.3, 0.0, 0.195), atol=1e-6)


def test_turn_about_the_vertical_keeps_turning_through_half_a_turn():
    mapping = AxisMapping(SPEC)
    mapping.begin()
    matrix, spin = from_quaternion(DOWN), np.zeros(18)
    spin[11] = 1.0
    for _ in range(100):  # 5 rad
        vector = to_vector(matrix)
        angle = np.linalg.norm(vector)
        quat = np.array((np.cos(angle / 2), *(np.sin(angle / 2) * vector / max(angle, 1e-9))))
        action = mapping.action(spin, seen(HOME, (0.3, 0.0, 0.2), quat))
        after = from_vector(action[9:].astype(np.float64))
        turn = to_vector(after @ matrix.T)
        assert turn[2] > 0.02 and np.abs(turn[:2]).max() < 0.02
        matrix = after


class PoseRobot:
    """A robot with absolute poses that goes where it is sent."""

    def __init__(self, vector):
        self.vector, self.now_ns, self.sent = np.array(vector, np.float64), 0, None
        self.spec = RobotSpec(
            name="pose",
            embodiment="pose",
            control_hz=HZ,
            parts=(HAND,),
            observation={"pose": ArraySpec(shape=(7,))},
        )

    def observe(self):
        angle = np.linalg.norm(self.vector[3:])
        axis = self.vector[3:] / max(angle, 1e-9)
        pose = (*self.vector[:3], np.cos(angle / 2), *(np.sin(angle / 2) * axis))
        return Observation(time_ns=self.now_ns, values={"pose": np.array(pose, np.float32)})

    def send(self, action):
        self.sent = np.array(action, np.float32)
        return self.sent

    def stop(self):
        pass

    def advance(self, duration_ns):
        self.now_ns += duration_ns
        if self.sent is not None:
            self.vector = self.sent.astype(np.float64)


def test_filter_does_not_turn_an_arm_back_for_an_equal_rotation_vector():
    """A policy has turned the arm beyond half a turn. An operator who holds still sends the shorter, equal vector."""
    robot, clock = PoseRobot((0.3, 0.0, 0.2, 3.1, 0.0, 0.0)), SimulatedClock()
    clock.on_advance(robot.advance)
    safe = SafeRobot(robot, SafetyConfig(), clock)
    for angle in (3.12, 3.16, 3.2):
        safe.observe()
        safe.send(np.array((0.3, 0.0, 0.2, angle, 0.0, 0.0), np.float32))
        clock.sleep_until(clock.now_ns() + round(1e9 / HZ))
    mapping = AxisMapping(robot.spec)
    mapping.begin()
    for _ in range(5):
        action = mapping.action(np.zeros(6), safe.observe())
        assert action[3] < 0.0  # the shorter vector
        safe.send(action)
        clock.sleep_until(clock.now_ns() + round(1e9 / HZ))
    turned = to_vector(from_vector(robot.vector[3:]) @ from_vector(np.array((3.2, 0.0, 0.0))).T)
    assert np.linalg.norm(turned) < 1e-3
