"""peg_insertion: clearances, resets, success and expert."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.config.plugins import resolve
from dovetail.core.types import Outcome
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig
from dovetail.robots.sim.rotations import quat_conjugate, quat_from_rotvec, quat_multiply, rotate
from support.rollouts import make, play, reset, run_actions, run_expert

TASK = "peg_insertion"
ARMS = ("panda", "x5")
STILL = np.zeros(6, np.float32)


def _put_tool(world, offset, turn=(0.0, 0.0, 0.0)):
    """The tool at a place in the socket's frame, whose z is depth."""
    where, quat = world.body_pose("socket")
    world.set_free_body("tool", where + rotate(quat, offset), quat_multiply(quat, quat_from_rotvec(turn)))
    world.forward()


def test_the_hole_has_1_mm_of_play_on_each_side_and_is_deep_enough():
    _, robot = make(TASK, "panda")
    model, geom = robot.world.model, robot.world.geom_id
    peg = model.geom_size[geom("peg")]
    for axis, (above, below) in enumerate((("wall_front", "wall_back"), ("wall_left", "wall_right"))):
        inner = model.geom_pos[geom(above)][axis] - model.geom_size[geom(above)][axis]
        outer = model.geom_pos[geom(below)][axis] + model.geom_size[geom(below)][axis]
        assert inner - peg[axis] == pytest.approx(0.001, abs=1e-9)
        assert -outer - peg[axis] == pytest.approx(0.001, abs=1e-9)
    ground = model.geom_pos[geom("ground")][2] - model.geom_size[geom("ground")][2]
    assert ground == pytest.approx(0.030)


@pytest.mark.parametrize("arm", ARMS)
def test_resets_reach_30_mm_and_10_degrees_and_never_start_solved(arm):
    sockets, socket_yaws, tips, yaws = [], [], [], []
    for seed in range(200):
        task, robot = reset(TASK, arm, seed)
        world = robot.world
        assert not task.solved(world)
        assert not task.failed(world)
        assert task.completion(world) == 0.0
        assert world.grasping("handle")
        assert np.abs(world.data.qvel).max() < 0.05
        where, quat = world.body_pose("socket")
        sockets.append(where[:2] - world.arm.workspace_center[:2])
        towards = rotate(quat, (1.0, 0.0, 0.0))
        socket_yaws.append(math.degrees(math.atan2(towards[1], towards[0])))
        tips.append(world.body_pose("tool")[0] - where)
        yaws.append(math.degrees(task.fit(world).rotvec[2]))
    for offsets in (np.array(sockets), np.array(tips)[:, :2]):
        assert np.abs(offsets).max() < 0.0305
        assert (offsets.max(axis=0) > 0.027).all()
        assert (offsets.min(axis=0) < -0.027).all()
    heights = np.array(tips)[:, 2]
    assert heights.min() > 0.024
    assert np.ptp(heights) > 0.02
    for angles in (socket_yaws, yaws):
        assert max(map(abs, angles)) < 10.5
        assert max(angles) > 9.0
        assert min(angles) < -9.0


def test_success_is_20_mm_deep_in_the_hole_and_nowhere_else():
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    _put_tool(world, (0.0, 0.0, 0.0205))
    assert task.solved(world)
    _put_tool(world, (0.0, 0.0, 0.0195))
    assert not task.solved(world)
    _put_tool(world, (0.045, 0.0, 0.025))  # beside the socket
    assert not task.solved(world)
    _put_tool(world, (0.0, 0.002, 0.025))  # in a wall
    assert not task.solved(world)
    _put_tool(world, (0.0, 0.0, -0.0005))  # on the face
    assert not task.solved(world)


def test_success_needs_its_hold_time():
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    verdicts = []
    for step in range(1, 5):
        _put_tool(world, (0.0, 0.0, 0.025))
        verdicts.append(task.judge(robot, robot.observe(), num_steps=step).rewards["success"])
        robot.advance(100_000_000)
    assert verdicts == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("arm", ARMS)
def test_friction_holds_the_tool_until_the_fingers_open(arm):
    task, robot = reset(TASK, arm, 1)
    world = robot.world
    before = task.fit(world).position
    for _ in range(20):
        robot.send(STILL)
        robot.advance(100_000_000)
    assert np.linalg.norm(task.fit(world).position - before) < 1e-3
    assert not task.failed(world)
    assert world.model.neq == 1  # the two fingers' coupling: nothing ties the tool to the hand
    world.data.ctrl[world.gripper_ctrl] = 0.04
    robot.advance(500_000_000)
    assert task.failed(world)


@pytest.mark.parametrize("arm", ARMS)
def test_expert_solves_a_few_resets(arm):
    runs = [run_expert(TASK, arm, 100 + seed, 0.3) for seed in range(10)]
    assert all(success for success, _, _ in runs)
    assert np.mean([steps for _, steps, _ in runs]) < 30
    assert runs[0][2][0].shape == (6,)  # the gripper is no part of the action


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_seed_gives_the_same_episode(arm):
    first, second = (run_expert(TASK, arm, 7, 0.5)[2] for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("arm", ARMS)
def test_completion_rises_while_the_expert_acts(arm):
    for seed in range(3):
        task, robot = reset(TASK, arm, seed)
        expert = task.expert()
        expert.reset(np.random.default_rng(0))
        _, _, completion = play(task, robot, lambda observation, _, e=expert: e.act(observation))
        assert completion[0] < 0.4
        assert np.diff(completion).min() > -0.05
        assert completion[-1] > 0.97


@pytest.mark.parametrize("arm", ARMS)
def test_expert_takes_over_after_random_actions(arm):
    for seed in range(3):
        task, robot = reset(TASK, arm, seed)
        expert, rng = task.expert(), np.random.default_rng(seed)
        expert.reset(rng)
        high = robot.spec.action.bounds[1]
        push = np.array((rng.uniform(-0.5, 0.5), rng.uniform(-0.5, 0.5), 0.8, 0, 0, rng.uniform(-0.3, 0.3)))
        push = (push * high).astype(np.float32)
        outcome, _, _ = play(
            task,
            robot,
            lambda observation, step, e=expert, wrong=push: wrong if step < 10 else e.act(observation),
        )
        assert outcome is Outcome.SUCCESS


@pytest.mark.parametrize("arm", ARMS)
def test_random_actions_keep_state_and_reward_bounded(arm):
    for seed in range(3):
        task, robot = reset(TASK, arm, seed)
        rng, (low, high) = np.random.default_rng(seed), robot.spec.action.bounds
        if seed == 2:
            low[2] = 0.0  # always down: grinding about on the socket and the table

        def choose(observation, step, rng=rng, low=low, high=high, robot=robot):
            assert np.isfinite(observation.values["task_state"]).all()
            assert np.abs(observation.values["task_state"]).max() < 2.0
            assert np.abs(robot.world.data.qvel).max() < 15.0
            return rng.uniform(low, high).astype(np.float32)

        play(task, robot, choose)


def test_state_points_from_the_tip_to_the_hole_in_the_reset_frame():
    task, robot = reset(TASK, "panda", 4)
    world = robot.world
    state = task.read_state(world)
    assert state.shape == (len(task.state_names),)
    way = world.body_pose("socket")[0] - world.body_pose("tool")[0]
    assert task.reset_rotation @ state[:3] == pytest.approx(way, abs=1e-6)
    assert state[9] == 0.0
    _put_tool(world, (0.0, 0.0, 0.015))
    assert task.read_state(world)[9] == pytest.approx(0.015, abs=1e-6)
    assert task.read_state(world)[3:6] == pytest.approx((0.0, 0.0, 0.0), abs=1e-6)


# ---- a socket whose reported position has an error


def _make_hidden(offset_m):
    kind = resolve("task", TASK)
    task = kind(kind.Config(hidden_offset_m=offset_m))
    return task, SimRobot(SimRobotConfig(arm="panda", max_step_m=0.01, max_lead_m=0.01), task=task)


def _reported_offset(task, world):
    """The reported offset of the socket from the tip, in the socket's frame."""
    return rotate(quat_conjugate(world.body_pose("socket")[1]), task.reset_rotation @ task.read_state(world)[:3])


def test_hidden_offset_moves_the_reported_socket():
    task, robot = _make_hidden(0.002)
    plain, plain_robot = make(TASK, "panda")
    offsets = []
    for seed in range(40):
        task.reset(robot, rng=np.random.default_rng(seed))
        plain.reset(plain_robot, rng=np.random.default_rng(seed))
        for body in ("socket", "tool"):  # the worlds are equal; only the reported state differs
            assert robot.world.body_pose(body)[0] == pytest.approx(plain_robot.world.body_pose(body)[0], abs=1e-9)
        offsets.append(_reported_offset(task, robot.world) + task.fit(robot.world).position)
        robot.send(np.array((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), np.float32))
        robot.advance(100_000_000)
        after = _reported_offset(task, robot.world) + task.fit(robot.world).position
        assert after == pytest.approx(offsets[-1], abs=1e-6)  # constant within an episode
    offsets = np.array(offsets)
    assert np.abs(offsets[:, :2]).max() <= 0.002 + 1e-6
    assert (offsets[:, :2].max(axis=0) > 0.0015).all()
    assert (offsets[:, :2].min(axis=0) < -0.0015).all()
    assert np.abs(offsets[:, 2]).max() < 1e-6


def test_expert_slides_to_the_true_socket():
    task, robot = _make_hidden(0.002)
    for seed in range(5):
        task.reset(robot, rng=np.random.default_rng(seed))
        expert = task.expert()
        expert.reset(np.random.default_rng(0))
        outcome, _, _ = play(task, robot, lambda observation, _, e=expert: e.act(observation))
        assert outcome is Outcome.SUCCESS
    # put down beside the hole it is pushed on, 1 mm below the face, where the plain task's expert would lift it
    _put_tool(robot.world, (0.002, -0.002, -0.0002))
    sliding = task._goal_for(robot.world, np.array((0.0, 0.0, 0.001)), speed=0.2)
    assert task.goal(robot.world).position == pytest.approx(sliding.position, abs=1e-9)
    _put_tool(robot.world, (0.010, 0.0, -0.0002))  # too far off to slide there
    assert (task.goal(robot.world).position - sliding.position)[2] > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_expert_solves_95_of_100(arm):
    assert sum(run_expert(TASK, arm, seed, 0.3)[0] for seed in range(1000, 1100)) >= 95


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_blind_replay_fails(arm):
    success, _, actions = run_expert(TASK, arm, 500, 0.3)
    assert success
    assert sum(run_actions(TASK, arm, seed, actions) for seed in range(2000, 2050)) <= 10
