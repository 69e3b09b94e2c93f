"""Leaders of end effectors and of joint velocities: each mapping by hand, and takeovers without a jump."""

from types import SimpleNamespace

import numpy as np
import pytest

from dovetail.core.abilities import Leader, LeadsByPose
from dovetail.core.clock import RealClock
from dovetail.core.errors import UsageError
from dovetail.core.poses import product, quat_of
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Observation
from dovetail.human.drive_settings import KinematicsConfig
from dovetail.human.leader_mapping import LeaderMapping
from dovetail.human.leader_pose import PosedLeader
from dovetail.runs.assembly.leaders import RobotLeader
from support.pose_arms import PoseArms

HZ = 10.0
AXES = ("x", "y", "z", "rx", "ry", "rz")
POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
QUARTER_TURN_Z = quat_of(np.array((0.0, 0.0, np.pi / 2)))
STILL = np.zeros(6)


def arm(kind="ee_delta", *, name="arm", frame="base", measured="ee_pose[0:7]", prefix=""):
    unit = "m/s+rad/s" if kind == "ee_velocity" else "m+rad"
    most = {"ee_delta": (0.02, 0.1), "ee_velocity": (0.2, 1.0), "ee_target": (1.0, 4.0)}[kind]
    high = (most[0],) * 3 + (most[1],) * 3
    return ActionPart(
        name=name,
        kind=kind,
        unit=unit,
        names=tuple(prefix + axis for axis in AXES),
        low=tuple(-x for x in high),
        high=high,
        max_speed=(0.2,) * 3 + (1.0,) * 3,
        hold="measured" if kind == "ee_target" else "zero",
        frame=frame,
        measured=measured,
    )


GRIPPER = ActionPart(
    name="gripper", kind="gripper", unit="1", names=("grip",), low=(0.0,), high=(1.0,), max_speed=(10.0,), hold="last",
    measured="opening",
)  # fmt: skip
BASE = ActionPart(name="base", kind="velocity", unit="m/s", names=("vx",), low=(-0.5,), high=(0.5,), hold="zero")


def robot(*parts):
    shapes = {"ee_pose": ArraySpec(shape=(14,)), "opening": ArraySpec(shape=(1,)), "q": ArraySpec(shape=(2,))}
    return RobotSpec(name="rig", embodiment="rig", observation=shapes, control_hz=HZ, parts=parts)


def seen(position=(0.4, 0.0, 0.3), quat=(1, 0, 0, 0), opening=1.0):
    pose = np.array([*position, *quat] * 2, np.float32)
    return Observation(time_ns=0, values={"ee_pose": pose, "opening": np.array([opening], np.float32)})


def leader(*, poses=("hand",), others=(), units=()):
    axes = (*others, *(f"{name}.{axis}" for name in poses for axis in POSE))
    found = {name: len(others) + 7 * at for at, name in enumerate(poses)}
    return SimpleNamespace(name="hand", axes=axes, units=(*units, *("m",) * 7 * len(poses)), poses=found)


def pose(x=0.0, y=0.0, z=0.0, quat=(1.0, 0.0, 0.0, 0.0)):
    """The leader is elsewhere and turned: only its motion counts."""
    return np.array([1.0 + x, 2.0 + y, 3.0 + z, *product(np.array(quat), QUARTER_TURN_Z)])


def mapping(part, **settings):
    found = LeaderMapping(robot(part, GRIPPER, BASE), leader(), **settings)
    found.begin()
    found.observe(seen())
    return found


def test_takeover_begins_at_rest_and_deltas_add_up_to_the_motion_of_the_leader():
    found = mapping(arm())
    assert found.driven.tolist() == [True] * 6 + [False] * 2
    np.testing.assert_allclose(found.action(pose(), seen())[:6], STILL)
    np.testing.assert_allclose(found.action(pose(x=0.01), seen())[:6], (0.01, 0, 0, 0, 0, 0), atol=1e-6)
    steps = [found.action(pose(x=0.06), seen())[0] for _ in range(4)]  # 0.05 m further, 0.02 m per tick
    np.testing.assert_allclose(steps, (0.02, 0.02, 0.01, 0.0), atol=1e-6)


def test_takeover_after_the_leader_was_moved_alone_begins_at_rest_again():
    found = mapping(arm())
    found.action(pose(), seen())
    found.release()
    np.testing.assert_allclose(found.action(pose(x=0.3, quat=QUARTER_TURN_Z), seen())[:6], STILL)


def test_rotations_follow_in_the_base_frame():
    found = mapping(arm())
    found.action(pose(), seen())
    turned = pose(quat=quat_of(np.array((0.0, 0.05, 0.0))))
    np.testing.assert_allclose(found.action(turned, seen())[:6], (0, 0, 0, 0, 0.05, 0), atol=1e-6)
    np.testing.assert_allclose(found.action(turned, seen())[:6], STILL, atol=1e-6)


def test_long_step_is_shortened_without_another_direction():
    found = mapping(arm())
    found.action(pose(), seen())
    np.testing.assert_allclose(found.action(pose(x=0.08, y=0.04), seen())[:2], (0.02, 0.01), atol=1e-6)


@pytest.mark.parametrize("frame", ["reset", "tool"])
def test_motion_is_given_in_the_frame_of_the_part(frame):
    found = LeaderMapping(robot(arm(frame=frame)), leader())
    found.begin()
    here = seen(quat=QUARTER_TURN_Z)  # the frame's y is the base's -x
    found.observe(here)
    found.action(pose(), here)
    np.testing.assert_allclose(found.action(pose(x=0.01), here), (0, -0.01, 0, 0, 0, 0), atol=1e-6)


def test_speed_and_scale_reduce_the_motion():
    found = mapping(arm(), speed=0.5, scale=0.5)
    found.action(pose(), seen())
    steps = [found.action(pose(x=0.03), seen())[0] for _ in range(3)]  # 0.015 m, 0.01 m per tick
    np.testing.assert_allclose(steps, (0.01, 0.005, 0.0), atol=1e-6)


def test_velocity_part_moves_as_far_as_the_leader_in_one_tick():
    found = mapping(arm("ee_velocity"))
    found.action(pose(), seen())
    np.testing.assert_allclose(found.action(pose(y=-0.01), seen())[:6], (0, -0.1, 0, 0, 0, 0), atol=1e-6)
    np.testing.assert_allclose(found.action(pose(y=-0.01), seen())[:6], STILL, atol=1e-6)


def test_target_part_starts_at_the_measured_pose_and_leads_it_by_one_step():
    found = mapping(arm("ee_target"))
    np.testing.assert_allclose(found.action(pose(), seen())[:6], (0.4, 0, 0.3, 0, 0, 0), atol=1e-6)
    turned = pose(x=0.015, quat=quat_of(np.array((0.05, 0.0, 0.0))))
    np.testing.assert_allclose(found.action(turned, seen())[:6], (0.415, 0, 0.3, 0.05, 0, 0), atol=1e-6)
    far = pose(x=0.5, quat=quat_of(np.array((1.0, 0.0, 0.0))))
    np.testing.assert_allclose(found.action(far, seen())[:6], (0.42, 0, 0.3, 0.1, 0, 0), atol=1e-6)


def test_end_effector_waits_for_the_gripper_and_then_begins_at_rest():
    found = LeaderMapping(robot(arm(), GRIPPER), leader(others=("grip",), units=("1",)), waits=True)
    found.begin()
    closed = seen(opening=0.0)
    found.observe(closed)
    for x in (0.0, 0.1):
        np.testing.assert_allclose(found.action(np.array([1.0, *pose(x=x)]), closed), (*STILL, 0.0), atol=1e-6)
    assert "grip is" in found.waiting
    np.testing.assert_allclose(found.action(np.array([0.0, *pose(x=0.1)]), closed), (*STILL, 0.0), atol=1e-6)
    moved = found.action(np.array([0.0, *pose(x=0.11)]), closed)
    np.testing.assert_allclose(moved, (0.01, 0, 0, 0, 0, 0, 0), atol=1e-6)


def test_two_poses_lead_the_arms_of_the_same_name():
    two = robot(
        arm(name="left", prefix="l", measured="ee_pose[0:7]"),
        arm(name="right", prefix="r", measured="ee_pose[7:14]"),
    )
    found = LeaderMapping(two, leader(poses=("right", "left")))
    found.begin()
    found.observe(seen())
    found.action(np.concatenate((pose(), pose())), seen())
    moved = found.action(np.concatenate((pose(x=0.01), pose(y=0.01))), seen())
    np.testing.assert_allclose(moved, (0, 0.01, 0, 0, 0, 0, 0.01, 0, 0, 0, 0, 0), atol=1e-6)
    one = LeaderMapping(two, leader(), parts=("right",))
    assert one.driven.tolist() == [False] * 6 + [True] * 6
    with pytest.raises(UsageError, match=r"operator.kinematics and operator.part"):
        LeaderMapping(two, leader())


def test_unmeasured_pose_is_refused_where_it_is_needed():
    with pytest.raises(UsageError, match="does not measure the pose of its part 'arm'"):
        LeaderMapping(robot(arm(frame="reset", measured="")), leader())
    LeaderMapping(robot(arm(measured="")), leader())


def test_joint_velocities_are_differences_of_positions():
    joints = ActionPart(
        name="arm", kind="joint_velocity", unit="deg/s", names=("a", "b"), low=(-60.0, -60.0), high=(60.0, 60.0),
        hold="zero", measured="q",
    )  # fmt: skip
    hand = SimpleNamespace(name="hand", axes=("a", "b"), units=("rad", "rad"))
    found = LeaderMapping(robot(joints), hand)
    here = Observation(time_ns=0, values={"q": np.array([1.0, -1.0], np.float32)})  # far away: it does not matter
    np.testing.assert_allclose(found.action(np.array((0.5, 0.0)), here), (0, 0))
    moved = found.action(np.array((0.5 + np.radians(2.0), -0.3)), here)
    np.testing.assert_allclose(
        moved, (20.0, -60.0), rtol=1e-5
    )  # 2 degrees in 0.1 s; 172 degrees per second are cut
    np.testing.assert_allclose(found.action(np.array((0.5 + np.radians(2.0), -0.3)), here), (0, 0), atol=1e-4)
    found.release()
    np.testing.assert_allclose(found.action(np.array((0.0, 0.0)), here), (0, 0))


PLANAR = """<mujoco><compiler angle="radian"/><worldbody><body name="a"><joint name="j1" axis="0 0 1"/>
<body name="b" pos="0.3 0 0"><joint name="j2" axis="0 0 1"/><body name="tip" pos="0.2 0 0"/></body></body>
</worldbody></mujoco>"""


class Joints:
    name, axes, units, can_follow = "planar", ("j1", "j2", "grip"), ("deg", "deg", "1"), True

    def __init__(self):
        self.at = np.array((0.0, 0.0, 0.5))

    def read(self):
        return self.at

    def follow(self, positions):
        raise AssertionError("it is not moved")

    def release(self): ...

    def close(self): ...


def test_leader_with_joints_leads_by_forward_kinematics(tmp_path):
    (tmp_path / "planar.xml").write_text(PLANAR)
    hand = Joints()
    posed = PosedLeader(hand, KinematicsConfig(file=str(tmp_path / "planar.xml"), end_effector="tip"))
    assert isinstance(posed, Leader) and isinstance(posed, LeadsByPose) and not posed.can_follow
    np.testing.assert_allclose(posed.read(), (0, 0, 0.5, 0.5, 0, 0, 1, 0, 0, 0), atol=1e-6)
    hand.at = np.array((90.0, 90.0, 0.5))  # 0.3 along y, then 0.2 along -x; turned by 180 degrees
    at = posed.read()
    np.testing.assert_allclose(at[3:6], (-0.2, 0.3, 0.0), atol=1e-6)
    np.testing.assert_allclose(np.abs(at[6:]), (0, 0, 0, 1), atol=1e-6)
    found = LeaderMapping(robot(arm(), GRIPPER), posed, waits=False)
    found.begin()
    found.observe(seen())
    found.action(at, seen())
    hand.at = np.array((90.0, 90.0 + np.degrees(0.05), 0.5))  # the last link turns: 0.01 m along -y, and 0.05 rad
    moved = found.action(posed.read(), seen())
    np.testing.assert_allclose(moved[:6], (0, -0.01, 0, 0, 0, 0.05), atol=3e-4)


def test_leader_without_angles_has_no_kinematics():
    hand = SimpleNamespace(name="slide", axes=("s",), units=("m",))
    with pytest.raises(UsageError, match="expected one unit, rad or deg"):
        PosedLeader(hand, KinematicsConfig(file="x.xml", end_effector="tip"))


def test_robot_with_poses_leads_and_is_only_observed():
    hand = PoseArms("ee_delta", "reset", num_arms=2)
    led = RobotLeader(hand, RealClock())
    assert isinstance(led, LeadsByPose) and dict(led.poses) == {"arm0": 0, "arm1": 7} and not led.can_follow
    assert led.axes[:8] == ("arm0.x", "arm0.y", "arm0.z", "arm0.qw", "arm0.qx", "arm0.qy", "arm0.qz", "arm1.x")
    values = led.read()
    np.testing.assert_allclose(values[7:10], (0.4, 0.1, 0.3), atol=1e-6)
    led.follow(values)
    led.release()
    assert hand.sent == []
