"""Inverse kinematics against forward kinematics: our arms, and a small URDF with meshes that do not exist."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail.robots.sim as sim
from dovetail.core.errors import UsageError
from dovetail.core.specs import ActionPart
from dovetail.human.drive_settings import DriveConfig, KinematicsConfig
from dovetail.human.kinematics import Kinematics
from dovetail.human.rotations import from_quaternion, from_vector, to_vector

ARMS = Path(sim.__file__).parent / "arms"
HOME = {"panda": (0.0, -0.3, 0.0, -2.2, 0.0, 2.0, 0.8), "x5": (0.0, 1.4, 1.3, -0.4, 0.1, 0.0)}
URDF = """<robot name="planar"><link name="base"/>
<link name="upper"><visual><geometry><mesh filename="package://nowhere/upper.stl"/></geometry></visual></link>
<link name="lower"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="tool"/>
<joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><origin xyz="0 0 0.1"/><axis xyz="0 0 1"/>
<limit lower="-2" upper="2" effort="1" velocity="1"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/><origin xyz="0.3 0 0"/><axis xyz="0 0 1"/>
<limit lower="-2" upper="2" effort="1" velocity="1"/></joint>
<joint name="flange" type="fixed"><parent link="lower"/><child link="tool"/><origin xyz="0.2 0 0"/></joint></robot>"""


def part(names, *, unit="rad", reach=4.0):
    count = len(names)
    return ActionPart(
        name="arm", kind="joint_target", unit=unit, names=names, low=(-reach,) * count, high=(reach,) * count,
        max_speed=(1.0,) * count, measured="joint_pos",
    )  # fmt: skip


def arm(name):
    names = tuple(f"joint{number + 1}" for number in range(len(HOME[name])))
    config = KinematicsConfig(file=str(ARMS / f"{name}.xml"), end_effector="tcp", angle="radian")
    loaded = Kinematics(config, part=part(names))
    loaded.load()
    return loaded


LOADED = {name: arm(name) for name in HOME}


@pytest.fixture
def urdf(tmp_path):
    file = tmp_path / "planar.urdf"
    file.write_text(URDF)
    return file


def moved(kinematics, joints, move, *, max_step=0.2, low=-4.0, high=4.0):
    count = len(joints)
    return kinematics.moved(
        joints,
        np.array(move),
        max_step=np.full(count, max_step),
        low=np.full(count, low),
        high=np.full(count, high),
    )


@pytest.mark.parametrize("name", HOME)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_small_motion_near_the_home_pose_reaches_the_wanted_pose(name, data):
    kinematics, count = LOADED[name], len(HOME[name])
    joints = np.array(HOME[name]) + data.draw(st.lists(st.floats(-0.2, 0.2), min_size=count, max_size=count))
    way = np.array(data.draw(st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6)))
    move = way * np.repeat((0.01, 0.04), 3)
    position, rotation = kinematics.pose(joints)
    new_position, new_rotation = kinematics.pose(moved(kinematics, joints, move))
    np.testing.assert_allclose(new_position - position, move[:3], atol=1e-5)
    np.testing.assert_allclose(to_vector(new_rotation @ rotation.T), move[3:], atol=1e-4)


@pytest.mark.parametrize("name", HOME)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_motion_from_any_pose_leaves_a_limit_or_moves_away_from_the_goal(name, data):
    """Also in singular poses, at joint limits and beyond them."""
    kinematics, count = LOADED[name], len(HOME[name])
    joints = np.array(
        data.draw(st.lists(st.sampled_from((-3.2, -1.0, 0.0, 0.5, 3.2)), min_size=count, max_size=count))
    )
    move = np.array(data.draw(st.lists(st.sampled_from((-0.05, 0.0, 0.02)), min_size=6, max_size=6)))
    low, high = -2.5, 2.5
    new = moved(kinematics, joints, move, max_step=0.06, low=low, high=high)
    assert np.isfinite(new).all()
    assert np.abs(new - joints).max() <= 0.06 + 1e-9
    assert (new >= np.minimum(joints, low) - 1e-9).all() and (new <= np.maximum(joints, high) + 1e-9).all()
    position, rotation = kinematics.pose(joints)
    goal = position + move[:3], from_vector(move[3:]) @ rotation

    def distance(at):
        here, turned = kinematics.pose(at)
        return np.linalg.norm((*(goal[0] - here), *(0.3 * to_vector(goal[1] @ turned.T))))

    assert distance(new) <= distance(joints) + 1e-9


def test_many_steps_follow_a_straight_line():
    kinematics, joints = LOADED["panda"], np.array(HOME["panda"])
    start, rotation = kinematics.pose(joints)
    for _ in range(30):
        joints = moved(kinematics, joints, (0.0, 0.005, 0.0, 0.0, 0.0, 0.0))
    end, turned = kinematics.pose(joints)
    np.testing.assert_allclose(end - start, (0.0, 0.15, 0.0), atol=1e-4)
    assert np.abs(to_vector(turned @ rotation.T)).max() < 1e-3


def test_stretched_arm_stays_calm():
    """At a singularity an undamped inverse would turn the joints fast."""
    kinematics, joints = LOADED["panda"], np.array((0.0, 1.5, 0.0, -0.07, 0.0, 1.6, 0.0))
    before = joints
    for _ in range(50):
        joints = moved(kinematics, joints, (0.01, 0.0, 0.0, 0.0, 0.0, 0.0), max_step=0.1)
    assert np.abs(joints - before).max() < 0.6


def test_urdf_in_degrees_without_its_meshes(urdf):
    kinematics = Kinematics(
        KinematicsConfig(file=str(urdf), end_effector="tool", joints=("shoulder", "elbow")),
        part=part(("a", "b"), unit="deg", reach=100.0),
    )
    kinematics.load()
    np.testing.assert_allclose(kinematics.pose(np.array((90.0, 0.0)))[0], (0.0, 0.5, 0.1), atol=1e-9)
    joints = np.array((20.0, 60.0))
    new = moved(kinematics, joints, (0.01, 0.0, 0.0, 0.0, 0.0, 0.0), max_step=10.0, low=-100.0, high=100.0)
    change = kinematics.pose(new)[0] - kinematics.pose(joints)[0]
    np.testing.assert_allclose(change, (0.01, 0.0, 0.0), atol=2e-4)  # two joints: the position has priority


def test_pose_in_the_frame_of_another_body(urdf):
    settings = KinematicsConfig(file=str(urdf), end_effector="tool", base="upper")
    kinematics = Kinematics(settings, part=part(("shoulder", "elbow")))
    kinematics.load()
    np.testing.assert_allclose(kinematics.pose(np.array((1.0, 0.0)))[0], (0.5, 0.0, 0.0), atol=1e-9)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ({"end_effector": "tol"}, "no site or body 'tol'. Did you mean 'tool'"),
        ({"joints": ("shoulder", "elbw")}, "no joint 'elbw'. Did you mean 'elbow'"),
        ({"base": "bas"}, "no body 'bas'"),
        ({"file": "/nowhere/arm.xml"}, "there is no file /nowhere/arm.xml"),
    ],
)
def test_wrong_setting_is_refused_in_one_line(urdf, setting, line):
    config = KinematicsConfig(**{"file": str(urdf), "end_effector": "tool", **setting})
    kinematics = Kinematics(config, part=part(("shoulder", "elbow")))
    with pytest.raises(UsageError) as error:
        kinematics.load()
    assert line in str(error.value) and "\n" not in str(error.value)


def test_file_that_is_not_a_model_is_refused(tmp_path):
    file = tmp_path / "arm.xml"
    file.write_text("<mujoco><body></mujoco>")
    with pytest.raises(UsageError, match="MuJoCo cannot read"):
        Kinematics(KinematicsConfig(file=str(file), end_effector="tool"), part=part(("a",))).load()


def test_one_mapping_or_a_list_of_kinematics_is_accepted():
    one = {"file": "arm.xml", "end_effector": "tcp", "joints": ["a", "b"]}
    single, listed = (DriveConfig.from_mapping({"kinematics": given}) for given in (one, [one]))
    assert single.known_arms == listed.known_arms
    assert single.known_arms[0].joints == ("a", "b")
    assert DriveConfig.from_mapping({}).known_arms == ()


def test_operators_load_neither_mujoco_nor_torch():
    names = "gamepad, spacemouse, pedal, keyboard, browser, leader, several"
    code = f"import sys; from dovetail.human import {names}; assert not {{'mujoco', 'torch'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@given(st.lists(st.floats(-2.0, 2.0), min_size=4, max_size=4).filter(lambda quat: np.linalg.norm(quat) > 0.1))
def test_rotation_vector_and_matrix_agree(quat):
    matrix = from_quaternion(np.array(quat))
    np.testing.assert_allclose(from_vector(to_vector(matrix)), matrix, atol=1e-6)


def test_rotation_vector_near_half_a_turn_keeps_its_sign():
    for near in ((3.3, 0.0, 0.0), (-3.0, 0.0, 0.0)):
        found = to_vector(from_vector(np.array((3.2, 0.0, 0.0))), near=np.array(near))
        assert np.sign(found[0]) == np.sign(near[0])
        np.testing.assert_allclose(from_vector(found), from_vector(np.array((3.2, 0.0, 0.0))), atol=1e-9)
