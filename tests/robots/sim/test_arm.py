"""The arms against published data."""

import math

import numpy as np
import pytest

from dovetail.robots.sim import ARMS, DOWN, EmptyScene, World
from dovetail.robots.sim.kinematics import Kinematics

# Franka Emika's published modified (Craig) DH parameters: a, d, alpha per joint; then the flange
PANDA_DH = (
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -math.pi / 2),
    (0.0, 0.316, math.pi / 2),
    (0.0825, 0.0, math.pi / 2),
    (-0.0825, 0.384, -math.pi / 2),
    (0.0, 0.0, math.pi / 2),
    (0.088, 0.0, math.pi / 2),
)


def craig(a: float, d: float, alpha: float, theta: float) -> np.ndarray:
    ct, st, ca, sa = math.cos(theta), math.sin(theta), math.cos(alpha), math.sin(alpha)
    return np.array(
        [[ct, -st, 0, a], [st * ca, ct * ca, -sa, -d * sa], [st * sa, ct * sa, ca, d * ca], [0, 0, 0, 1]]
    )


def panda_tcp(joints: tuple[float, ...]) -> np.ndarray:
    pose = np.eye(4)
    for (a, d, alpha), theta in zip(PANDA_DH, joints, strict=True):
        pose = pose @ craig(a, d, alpha, theta)
    # flange 0.107, hand turned by -45 degrees, finger tips 0.1034 further
    return pose @ craig(0.0, 0.107, 0.0, 0.0) @ craig(0.0, 0.1034, 0.0, -math.pi / 4)


@pytest.mark.parametrize(
    "joints",
    [
        (0.0,) * 3 + (-0.1,) + (0.0,) * 3,
        (0.0, 0.0, 0.0, -math.pi / 2, 0.0, math.pi / 2, math.pi / 4),
        (0.3, -0.5, 0.7, -2.0, 1.1, 1.9, -0.4),
        (-2.1, 1.2, -1.7, -0.6, -2.4, 3.1, 2.2),
    ],
)
def test_panda_forward_kinematics_is_franka_s(joints: tuple[float, ...]) -> None:
    position, quat = Kinematics(ARMS["panda"]).pose(np.array(joints))
    expected = panda_tcp(joints)
    np.testing.assert_allclose(position, expected[:3, 3], atol=1e-9)
    approach = np.array(
        (2 * (quat[1] * quat[3] + quat[0] * quat[2]), 2 * (quat[2] * quat[3] - quat[0] * quat[1]),
         1 - 2 * (quat[1] ** 2 + quat[2] ** 2))
    )  # fmt: skip
    np.testing.assert_allclose(approach, expected[:3, 2], atol=1e-9)


def test_panda_ready_pose_by_hand() -> None:
    """Forearm level, hand straight down: x = .0825 + .384 - .0825 ... read off the drawing."""
    position, quat = Kinematics(ARMS["panda"]).pose(np.array((0, 0, 0, -math.pi / 2, 0, math.pi / 2, math.pi / 4)))
    # upwards .333 + .316 + .0825 (elbow offset, turned up), down .107 + .1034; outwards .0825 + .384 + .088
    np.testing.assert_allclose(position, (0.5545, 0.0, 0.333 + 0.316 + 0.0825 - 0.107 - 0.1034), atol=1e-9)
    assert abs(abs(float(quat @ np.array(DOWN))) - 1.0) < 1e-9


def test_panda_limits_are_the_published_ones() -> None:
    world = World(arm=ARMS["panda"], scene=EmptyScene())
    lower = (-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973)
    upper = (2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973)
    assert ARMS["panda"].lower == lower
    assert ARMS["panda"].upper == upper
    assert ARMS["panda"].max_velocity == (2.175,) * 4 + (2.61,) * 3
    assert ARMS["panda"].max_torque == (87.0,) * 4 + (12.0,) * 3
    np.testing.assert_allclose(world.model.actuator_forcerange[:7, 1], ARMS["panda"].max_torque)


@pytest.mark.parametrize("name", ARMS)
def test_description_and_model_agree(name: str) -> None:
    arm, world = ARMS[name], World(arm=ARMS[name], scene=EmptyScene())
    ranges = np.array([world.model.joint(joint).range for joint in arm.joint_names])
    np.testing.assert_allclose(ranges[:, 0], arm.lower)
    np.testing.assert_allclose(ranges[:, 1], arm.upper)
    torques = world.model.actuator_forcerange[world.joint_ctrl]
    np.testing.assert_allclose(torques[:, 1], arm.max_torque)
    np.testing.assert_allclose(torques[:, 0], -np.array(arm.max_torque))
    np.testing.assert_allclose(world.model.actuator_ctrlrange[world.joint_ctrl], ranges)
    assert world.model.nmesh == 0
    assert world.model.nmocap == 0
    assert 2 * world.model.joint("finger_joint1").range[1] == pytest.approx(arm.max_opening_m)


@pytest.mark.parametrize(("name", "where"), [("panda", (0.5, 0.0, 0.22)), ("x5", (0.3, 0.0, 0.17))])
def test_home_points_straight_down_over_the_workspace(name: str, where: tuple[float, ...]) -> None:
    world = World(arm=ARMS[name], scene=EmptyScene())
    position, quat = world.tcp_pose()
    np.testing.assert_allclose(position, where, atol=1e-6)
    np.testing.assert_allclose(quat, DOWN, atol=1e-6)
    assert world.data.ncon == 0
