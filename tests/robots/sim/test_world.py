"""Physics of the world: motion, contacts and saved states."""

import time

import mujoco
import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.sim import ARMS, DOWN, CartesianDelta, EmptyScene, World
from dovetail.robots.sim.rotations import quat_conjugate, quat_from_rotvec, quat_multiply, quat_to_rotvec


def box(x: float, *, mass: float = 0.08) -> str:
    return (
        f'<body name="box" pos="{x} 0 0.02"><freejoint/>'
        f'<geom name="box" type="box" size="0.015 0.015 0.02" mass="{mass}"/></body>'
    )


@pytest.fixture(params=list(ARMS))
def world(request: pytest.FixtureRequest) -> World:
    return World(arm=ARMS[request.param], scene=EmptyScene())


def test_arm_holds_itself_against_gravity(world: World) -> None:
    before, _ = world.tcp_pose()
    world.advance(2500)
    after, _ = world.tcp_pose()
    assert np.linalg.norm(after - before) < 1e-3
    assert world.time_ns == 5_000_000_000


def test_place_arm_is_exact_fast_and_at_rest(world: World) -> None:
    center = np.array(world.arm.workspace_center)
    rng = np.random.default_rng(0)
    took = []
    for _ in range(30):
        target = center + rng.uniform(-0.06, 0.06, 3)
        quat = quat_multiply(quat_from_rotvec(rng.uniform(-0.2, 0.2, 3)), DOWN)
        start = time.perf_counter()
        world.place_arm(target, quat, gripper=0.5)
        took.append(time.perf_counter() - start)
        position, now = world.tcp_pose()
        assert np.linalg.norm(position - target) <= 1e-4
        assert np.linalg.norm(quat_to_rotvec(quat_multiply(now, quat_conjugate(quat)))) <= 1e-3
        assert world.gripper_opening() == pytest.approx(0.04)
        assert not world.tcp_twist().any()
    assert np.median(took) < 0.01  # 0.7 ms alone; room for a busy machine
    world.advance(100)
    assert np.linalg.norm(world.tcp_pose()[0] - position) < 2e-4


def test_unreachable_pose_raises(world: World) -> None:
    with pytest.raises(RobotError, match=r"cannot reach position \[2\.0, 0\.0, 0\.2\]"):
        world.place_arm((2.0, 0.0, 0.2))


def test_advance_is_a_bare_mj_step(world: World) -> None:
    """Nothing but physics writes positions between resets: the same state and targets give the same bits."""
    controller = CartesianDelta()
    controller.reset(world)
    rng = np.random.default_rng(1)
    for _ in range(20):
        controller.command(world, rng.uniform(controller.low, controller.high))
        twin = mujoco.MjData(world.model)
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(world.model, kind))
        mujoco.mj_getState(world.model, world.data, state, kind)
        mujoco.mj_setState(world.model, twin, state, kind)
        world.advance(50)
        controller.reference_error(world)
        mujoco.mj_step(world.model, twin, 50)
        np.testing.assert_array_equal(world.data.qpos, twin.qpos)
        np.testing.assert_array_equal(world.data.qvel, twin.qvel)


def test_saved_state_replays_exactly(world: World) -> None:
    controller = CartesianDelta()
    controller.reset(world)
    controller.command(world, controller.high)
    world.advance(20)
    saved = world.save_state()
    world.advance(200)
    first = world.data.qpos.copy()
    world.restore_state(saved)
    world.advance(200)
    np.testing.assert_array_equal(world.data.qpos, first)


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("mass", [0.05, 0.1, 0.3])
def test_a_grasped_box_is_lifted_and_does_not_slip_in_ten_seconds(name: str, mass: float) -> None:
    x = ARMS[name].workspace_center[0]
    world = World(arm=ARMS[name], scene=EmptyScene(body=box(x, mass=mass)))
    world.place_arm((x, 0.0, 0.025))
    controller = CartesianDelta()
    controller.reset(world)
    for _ in range(8):
        controller.command(world, (0, 0, 0, 0, 0, 0, 0))
        world.advance(50)
    assert world.grasping("box")
    assert world.contact_force("left_pad", "box") == pytest.approx(world.arm.max_grip_force_n, rel=0.1)
    for _ in range(12):
        controller.command(world, (0, 0, -0.01, 0, 0, 0, 0))  # away along the tool: up
        world.advance(50)
    held = world.body_pose("box")[0] - world.tcp_pose()[0]
    assert world.body_pose("box")[0][2] > 0.08
    for _ in range(100):
        controller.command(world, (0, 0, 0, 0, 0, 0, 0))
        world.advance(50)
    now = world.body_pose("box")[0] - world.tcp_pose()[0]
    assert np.linalg.norm(now - held) < 1e-3


def test_free_bodies_can_be_placed_and_others_not() -> None:
    world = World(arm=ARMS["panda"], scene=EmptyScene(body=box(0.4)))
    world.set_free_body("box", (0.4, 0.2, 0.05), (0, 0, 0, 2))
    world.forward()
    np.testing.assert_allclose(world.body_pose("box")[0], (0.4, 0.2, 0.05))
    np.testing.assert_allclose(world.body_pose("box")[1], (0, 0, 0, 1))
    assert not world.in_contact("box", "table")
    world.advance(400)
    assert world.in_contact("box", "table")
    assert world.contact_force("box", "table") == pytest.approx(0.08 * 9.81, rel=0.02)
    with pytest.raises(RobotError, match="no free joint"):
        world.set_free_body("hand", (0, 0, 0))
    with pytest.raises(RobotError, match="Did you mean 'box'"):
        world.body_pose("bax")


def test_invalid_scene_raises() -> None:
    with pytest.raises(RobotError, match="not well-formed"):
        World(arm=ARMS["panda"], scene=EmptyScene(body="<geom"))
    with pytest.raises(RobotError, match="do not compile"):
        World(arm=ARMS["panda"], scene=EmptyScene(body='<geom type="bowl"/>'))


def test_tcp_twist_is_the_derivative_of_the_pose(world: World) -> None:
    controller = CartesianDelta()
    controller.reset(world)
    controller.command(world, (0.01, -0.015, -0.01, 0.05, 0.0, 0.08, 1))
    world.advance(30)
    p0, q0 = world.tcp_pose()
    world.advance(1)
    (p1, q1), twist = world.tcp_pose(), world.tcp_twist()  # semi-implicit: positions move by the new velocity
    np.testing.assert_allclose((p1 - p0) / 0.002, twist[:3], atol=0.02 * np.linalg.norm(twist[:3]) + 1e-3)
    turned = quat_to_rotvec(quat_multiply(q1, quat_conjugate(q0))) / 0.002
    np.testing.assert_allclose(turned, twist[3:], atol=0.02 * np.linalg.norm(twist[3:]) + 1e-2)
