"""Achieved actions against values computed by hand."""

import dataclasses
import math

import numpy as np
import pytest

from dovetail.core.achieved import achieved_actions, measures_achieved
from dovetail.core.clock import SimulatedClock
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig

HALF = math.sqrt(0.5)
AXES = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")
CARTESIAN = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={
        "ee_pose": ArraySpec(shape=(7,)),
        "gripper": ArraySpec(shape=(2,), names=("opening", "command")),
    },
    action=ArraySpec(shape=(7,), names=AXES),
    action_kind="ee_delta",
    control_hz=10.0,
)
JOINTS = dataclasses.replace(
    CARTESIAN,
    observation={"joint_pos": ArraySpec(shape=(2,)), "gripper": ArraySpec(shape=(1,))},
    action=ArraySpec(shape=(3,), names=("j1", "j2", "gripper")),
    action_kind="joint_target",
)


def about_z(angle):
    return (math.cos(angle / 2), 0.0, 0.0, math.sin(angle / 2))


def poses(*rows):
    return np.array([(*position, *quat) for position, quat in rows], np.float32)


def test_translations_are_in_the_frame_of_the_first_pose():
    """Reset turned by 90 degrees about z: its x axis is the base's y, its y axis the base's -x."""
    observations = {
        "ee_pose": poses(
            ((0.0, 0.0, 0.0), about_z(math.pi / 2)),
            ((0.0, 0.1, 0.0), about_z(math.pi / 2)),  # base y: forward, in the reset frame's x
            ((-0.2, 0.1, 0.3), about_z(math.pi / 2 + 0.2)),  # base -x is its y; and it turns by 0.2 about z
        ),
        "gripper": np.array([(1.0, 1.0), (0.7, 0.0), (0.4, 0.0)], np.float32),
    }
    executed = np.full((2, 7), 9.0, np.float32)
    achieved = achieved_actions(CARTESIAN, observations, executed)
    assert achieved.dtype == np.float32
    expected = [[0.1, 0, 0, 0, 0, 0, 0.7], [0, 0.2, 0.3, 0, 0, 0.2, 0.4]]
    np.testing.assert_allclose(achieved, expected, atol=1e-6)


def test_rotations_are_in_the_frame_of_the_first_pose():
    """Reset frame: x -> base z (turned by -90 degrees about y). A turn of 0.4 about the base's z is one about its x."""
    start = np.array((HALF, 0.0, -HALF, 0.0))
    w, z = math.cos(0.2), math.sin(0.2)
    turned = (w * HALF, z * HALF, -w * HALF, z * HALF)  # (w, 0, 0, z) times start
    observations = {"ee_pose": poses(((0, 0, 0), start), ((0, 0, 0.1), turned))}
    achieved = achieved_actions(CARTESIAN, observations, np.full((1, 7), 0.25, np.float32))
    np.testing.assert_allclose(achieved[0, :6], [0.1, 0, 0, 0.4, 0, 0], atol=1e-6)
    assert achieved[0, 6] == 0.25  # not measured: the command


def test_opposite_quaternions_give_the_same_rotation():
    first, second = np.array(about_z(0.1)), -np.array(about_z(0.15))
    observations = {"ee_pose": poses(((0, 0, 0), first), ((0, 0, 0), second))}
    achieved = achieved_actions(CARTESIAN, observations, np.zeros((1, 7), np.float32))
    np.testing.assert_allclose(achieved[0, 3:6], [0, 0, 0.05], atol=1e-6)


def test_two_arms_are_computed_separately():
    both = dataclasses.replace(
        CARTESIAN,
        observation={"ee_pose": ArraySpec(shape=(14,))},
        action=ArraySpec(shape=(14,)),
    )
    still = poses(((1, 1, 1), about_z(0)), ((1, 1, 1), about_z(0)))
    moved = poses(((0, 0, 0), about_z(0)), ((0, 0, 0.5), about_z(0.3)))
    observations = {"ee_pose": np.concatenate((still, moved), axis=1)}
    achieved = achieved_actions(both, observations, np.full((1, 14), 0.5, np.float32))
    np.testing.assert_allclose(achieved[0, :7], [0] * 6 + [0.5], atol=1e-6)
    np.testing.assert_allclose(achieved[0, 7:], [0, 0, 0.5, 0, 0, 0.3, 0.5], atol=1e-6)


def test_joint_targets_achieve_the_next_joint_positions():
    observations = {
        "joint_pos": np.array([(0, 0), (0.1, 0.2), (0.3, 0.5)], np.float32),
        "gripper": np.array([[1.0], [0.5], [0.2]], np.float32),
    }
    executed = np.array([(0.2, 0.3, 0.0), (0.4, 0.6, 0.0)], np.float32)
    achieved = achieved_actions(JOINTS, observations, executed)
    np.testing.assert_allclose(achieved, [(0.1, 0.2, 0.5), (0.3, 0.5, 0.2)])
    whole = dataclasses.replace(JOINTS, observation={"joint_pos": ArraySpec(shape=(3,))})
    joints = np.array([(0, 0, 1), (0.1, 0.2, 0.9), (0.3, 0.5, 0.8)], np.float32)
    np.testing.assert_array_equal(achieved_actions(whole, {"joint_pos": joints}, executed), joints[1:])


def test_observation_achieved_is_used_directly():
    """The observation after an action contains the achieved action."""
    robot = dataclasses.replace(
        CARTESIAN, action_kind="gym", observation={**CARTESIAN.observation, "achieved": ArraySpec(shape=(7,))}
    )
    measured = np.arange(21, dtype=np.float32).reshape(3, 7)
    np.testing.assert_array_equal(achieved_actions(robot, {"achieved": measured}, np.zeros((2, 7))), measured[1:])


def test_simulated_arm_achieves_its_commands_with_a_lag():
    """In free space: less while it sets off, more while it stops, the same in sum; tilted as the reset frame may be."""
    robot, clock = SimRobot(SimRobotConfig(arm="panda")), SimulatedClock()
    clock.on_advance(robot.advance)
    robot.world.reset()
    robot.reset_reference()
    seen, executed = [robot.observe()], []
    wanted = np.array([0.01, -0.005, 0.004, 0.02, -0.03, 0.05, 0.0], np.float32)
    for tick in range(20):
        executed.append(robot.send(wanted if tick < 12 else 0 * wanted))
        clock.sleep_until(clock.now_ns() + 100_000_000)
        seen.append(robot.observe())
    observations = {key: np.stack([o.values[key] for o in seen]) for key in ("ee_pose", "gripper")}
    achieved = achieved_actions(robot.spec, observations, np.stack(executed))
    np.testing.assert_allclose(achieved[6, :6], wanted[:6], atol=5e-4)
    assert achieved[0, 0] < 0.007 and achieved[12, 0] > 0.002
    np.testing.assert_allclose(achieved[:, :6].sum(axis=0), 12 * wanted[:6], atol=1e-3)
    assert achieved[-1, 6] < 0.01  # closed on nothing
    robot.close()


@pytest.mark.parametrize("observations", [{}, {"ee_pose": np.zeros((3, 14), np.float32)}])
def test_missing_observations_give_nan(observations):
    achieved = achieved_actions(CARTESIAN, observations, np.zeros((2, 7), np.float32))
    assert achieved.shape == (2, 7)
    assert np.isnan(achieved).all()


def test_measures_achieved_for_each_kind_of_robot():
    assert measures_achieved(CARTESIAN)
    assert measures_achieved(JOINTS)
    unmeasured = dataclasses.replace(CARTESIAN, observation={"joint_pos": ArraySpec(shape=(7,))})
    assert not measures_achieved(unmeasured)
    assert not measures_achieved(dataclasses.replace(CARTESIAN, action_kind="gym"))
    # without names the third axis is not known to be a gripper; cloning its opening would drop the object
    assert not measures_achieved(dataclasses.replace(JOINTS, action=ArraySpec(shape=(3,))))


def test_gripper_axes_by_name_and_position():
    def grippers(kind, **action):
        spec = RobotSpec(
            name="a", embodiment="a", observation={}, action=ArraySpec(**action), action_kind=kind, control_hz=1.0
        )
        return spec.axes_of("gripper").nonzero()[0].tolist()

    assert CARTESIAN.axes_of("gripper").tolist() == [False] * 6 + [True]
    assert grippers("ee_delta", shape=(14,)) == [6, 13]
    assert grippers("ee_delta", shape=(6,)) == []
    assert grippers("ee_delta", shape=(8,)) == [6, 7]
    assert JOINTS.axes_of("gripper").tolist() == [False, False, True]
    assert grippers("joint_target", shape=(3,)) == []
