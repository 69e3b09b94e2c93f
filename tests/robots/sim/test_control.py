"""Controllers: from actions to servo targets."""

import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.sim import ARMS, DOWN, CartesianDelta, EmptyScene, JointTarget, World
from dovetail.robots.sim.rotations import quat_conjugate, quat_from_rotvec, quat_multiply, quat_to_rotvec

MAX_PUSH_N = {"panda": 150.0, "x5": 100.0}  # at the default leash


@pytest.fixture(params=list(ARMS))
def world(request: pytest.FixtureRequest) -> World:
    return World(arm=ARMS[request.param], scene=EmptyScene())


@pytest.fixture
def controller(world: World) -> CartesianDelta:
    controller = CartesianDelta()
    controller.reset(world)
    return controller


def run(world: World, controller: CartesianDelta, action: tuple[float, ...], *, ticks: int) -> np.ndarray:
    executed = np.zeros(7)
    for _ in range(ticks):
        executed += controller.command(world, action)
        world.advance(50)
    return executed


def test_deltas_move_the_tcp_to_the_right_place(world: World, controller: CartesianDelta) -> None:
    start, start_quat = world.tcp_pose()
    run(world, controller, (0.006, -0.004, 0.005, 0, 0, 0.03, 1), ticks=10)
    run(world, controller, (0, 0, 0, 0, 0, 0, 1), ticks=10)
    position, quat = world.tcp_pose()
    # the tool points down: its y and z are the base's, reversed
    np.testing.assert_allclose(position - start, (0.06, 0.04, -0.05), atol=1e-3)
    turned = quat_to_rotvec(quat_multiply(quat, quat_conjugate(start_quat)))
    np.testing.assert_allclose(turned, (0, 0, -0.3), atol=5e-3)
    np.testing.assert_allclose(controller.reference_error(world), 0, atol=5e-4)


def test_deltas_stay_in_the_frame_of_the_reset_pose(world: World, controller: CartesianDelta) -> None:
    tilt = quat_multiply(quat_from_rotvec((0, 0, 0.5)), DOWN)
    world.place_arm(world.tcp_pose()[0], tilt)
    controller.reset(world)
    run(world, controller, (0, 0, 0, 0, 0, 0.05, 1), ticks=8)  # turning the hand does not turn the frame
    before, _ = world.tcp_pose()
    run(world, controller, (0.006, 0, 0, 0, 0, 0, 1), ticks=5)
    run(world, controller, (0, 0, 0, 0, 0, 0, 1), ticks=10)
    after, _ = world.tcp_pose()
    np.testing.assert_allclose(after - before, 0.03 * np.array((np.cos(0.5), np.sin(0.5), 0)), atol=1e-3)


def test_zero_action_does_not_drift(world: World, controller: CartesianDelta) -> None:
    start, start_quat = world.tcp_pose()
    executed = run(world, controller, (0, 0, 0, 0, 0, 0, 1), ticks=100)
    position, quat = world.tcp_pose()
    assert np.linalg.norm(position - start) < 1e-4
    assert np.linalg.norm(quat_to_rotvec(quat_multiply(quat, quat_conjugate(start_quat)))) < 1e-3
    np.testing.assert_allclose(executed[:6], 0, atol=1e-7)


def test_executed_action_is_not_changed_by_the_lead_limit(world: World, controller: CartesianDelta) -> None:
    """Recording what the leash left over would make pushing against a wall look like doing nothing."""
    world.place_arm(np.append(world.tcp_pose()[0][:2], 0.02))
    controller.reset(world)
    for _ in range(10):
        executed = controller.command(world, (0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0))  # +z is down, into the table
        world.advance(50)
    np.testing.assert_allclose(executed, (0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0), atol=1e-7)
    assert controller.reference_error(world)[2] <= 0.02 + 1e-6


def test_pushing_along_one_axis_does_not_limit_the_others(world: World, controller: CartesianDelta) -> None:
    world.place_arm(np.append(world.tcp_pose()[0][:2], 0.1))
    controller.reset(world)
    for _ in range(4):
        controller.command(world, (0.02, 0.02, 0.02, 0.0, 0.0, 0.0, 0.0))
    np.testing.assert_allclose(controller.reference_error(world)[:3], 0.02, atol=1e-3)


def test_pushing_force_is_bounded_by_the_lead_limit(world: World, controller: CartesianDelta) -> None:
    forces = []
    for _ in range(50):
        controller.command(world, (0, 0, 0.02, 0, 0, 0, 0))
        world.advance(50)
        forces.append(sum(world.contact_force(pad, "table") for pad in world.arm.pads))
    assert forces[-1] > 20.0
    assert max(forces[-20:]) < MAX_PUSH_N[world.arm.name]
    error = controller.reference_error(world)
    assert np.abs(error[:3]).max() <= 0.0202


def test_reference_out_of_reach_moves_back(world: World, controller: CartesianDelta) -> None:
    run(world, controller, (0.02, 0, 0, 0, 0, 0, 1), ticks=60)
    reached = world.tcp_pose()[0][0]
    run(world, controller, (-0.01, 0, 0, 0, 0, 0, 1), ticks=10)
    run(world, controller, (0, 0, 0, 0, 0, 0, 1), ticks=5)
    assert world.tcp_pose()[0][0] < reached - 0.03
    joints = world.joint_positions()
    assert (joints > np.array(world.arm.lower) - 0.01).all()
    assert (joints < np.array(world.arm.upper) + 0.01).all()


def test_gripper_is_sticky(world: World, controller: CartesianDelta) -> None:
    commands = [
        controller.command(world, (0,) * 6 + (value,))[6] for value in (0.5, 0.45, 0.39, 0.5, 0.59, 0.61, 0.5)
    ]
    assert commands == [1, 1, 0, 0, 0, 1, 1]


def test_gripper_opens_and_closes(world: World, controller: CartesianDelta) -> None:
    run(world, controller, (0,) * 7, ticks=10)
    assert world.gripper_opening() < 1e-3
    run(world, controller, (0,) * 6 + (1,), ticks=10)
    assert world.gripper_opening() == pytest.approx(0.08, abs=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_actions_never_reach_a_servo(world: World, controller: CartesianDelta, bad: float) -> None:
    before = world.data.ctrl.copy()
    with pytest.raises(RobotError, match="not finite"):
        controller.command(world, (bad, 0, 0, 0, 0, 0, 1))
    np.testing.assert_array_equal(world.data.ctrl, before)


def test_joint_targets_are_reached_within_limits_and_steps(world: World) -> None:
    controller = JointTarget(arm=world.arm)
    controller.reset(world)
    home = np.array(world.arm.home)
    goal = home + 0.1
    for _ in range(15):
        executed = controller.command(world, (*goal, 1.0))
        world.advance(50)
    np.testing.assert_allclose(executed[:-1], goal, atol=1e-6)
    np.testing.assert_allclose(world.joint_positions(), goal, atol=2e-3)
    executed = controller.command(world, (*(goal + 3.0), 1.0))
    assert (executed[:-1] <= np.minimum(world.joint_positions() + 0.2, world.arm.upper) + 1e-6).all()
