"""charger: clearances, orientation, success and expert."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.core.types import Outcome
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig
from dovetail.robots.sim.rotations import quat_from_rotvec, quat_multiply, rotate
from dovetail.tasks.charger import Charger
from support.rollouts import make, play, reset, run_actions, run_expert

TASK = "charger"
ARMS = ("panda", "x5")


def _put_tool(world, offset, turn=(0.0, 0.0, 0.0)):
    """The plug at a place in the socket's frame, whose z is depth."""
    where, quat = world.body_pose("socket")
    world.set_free_body("tool", where + rotate(quat, offset), quat_multiply(quat, quat_from_rotvec(turn)))
    world.forward()


def test_each_slot_has_less_than_1_mm_of_play_on_each_side():
    task, robot = make(TASK, "panda")
    model, geom = robot.world.model, robot.world.geom_id
    center, half = model.geom_pos[geom("blade_a")], model.geom_size[geom("blade_a")]
    middle, end, side = geom("middle"), geom("end_a"), geom("side_a")
    plays = (
        center[0] - half[0] - (model.geom_pos[middle][0] + model.geom_size[middle][0]),
        model.geom_pos[end][0] - model.geom_size[end][0] - (center[0] + half[0]),
        model.geom_pos[side][1] - model.geom_size[side][1] - half[1],
    )
    assert plays == pytest.approx((0.0008, 0.0008, 0.0008), abs=1e-9)
    assert task.clearance_m == 0.0008


@pytest.mark.parametrize("arm", ARMS)
def test_resets_reach_30_mm_and_10_degrees_and_never_start_solved(arm):
    sockets, tips, yaws = [], [], []
    for seed in range(200):
        task, robot = reset(TASK, arm, seed)
        world = robot.world
        assert not task.solved(world)
        assert not task.failed(world)
        assert task.completion(world) == 0.0
        assert world.grasping("handle")
        where = world.body_pose("socket")[0]
        sockets.append(where[:2] - world.arm.workspace_center[:2])
        tips.append((world.body_pose("tool")[0] - where)[:2])
        yaws.append(math.degrees(task.fit(world).rotvec[2]))
    for offsets in (np.array(sockets), np.array(tips)):
        assert np.abs(offsets).max() < 0.0305
        assert (offsets.max(axis=0) > 0.027).all()
        assert (offsets.min(axis=0) < -0.027).all()
    assert max(map(abs, yaws)) < 10.5
    assert max(yaws) > 9.0
    assert min(yaws) < -9.0


def test_success_is_both_blades_12_mm_deep_in_their_own_slots():
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    _put_tool(world, (0.0, 0.0, 0.0125))
    assert task.solved(world)
    _put_tool(world, (0.0, 0.0, 0.0115))
    assert not task.solved(world)
    _put_tool(world, (0.020, 0.0, 0.015))  # one blade in the other's slot
    assert not task.solved(world)
    _put_tool(world, (0.0, 0.0, 0.015), (0.0, 0.0, math.radians(10.0)))
    assert not task.solved(world)
    _put_tool(world, (0.0, 0.0, 0.0125), (0.0, math.radians(5.0), 0.0))  # one blade deep, the other less
    assert not task.solved(world)


@pytest.mark.parametrize(("turn_deg", "enters"), [(0.0, True), (8.0, False), (-8.0, False)])
def test_plug_rotated_by_8_degrees_does_not_fit(turn_deg, enters):
    still = {"start_range_m": 0.0, "start_yaw_deg": 0.0, "start_tilt_deg": 0.0, "socket_range_m": 0.0}
    task = Charger(Charger.Config(**still, start_height_m=(0.015, 0.015)))
    robot = SimRobot(SimRobotConfig(arm="x5"), task=task)
    task.reset(robot, rng=np.random.default_rng(0))
    turn, down = np.zeros(6, np.float32), np.zeros(6, np.float32)
    turn[5], down[2] = math.radians(turn_deg) / 4, 0.003
    play(task, robot, lambda _, step: turn if step < 4 else down)
    assert task.solved(robot.world) is enters
    assert (task.metrics(robot.world)["depth_mm"] > 2.0) is enters


@pytest.mark.parametrize("arm", ARMS)
def test_expert_solves_a_few_resets(arm):
    runs = [run_expert(TASK, arm, 100 + seed, 0.3) for seed in range(10)]
    assert all(success for success, _, _ in runs)
    assert np.mean([steps for _, steps, _ in runs]) < 35


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_seed_gives_the_same_episode(arm):
    first, second = (run_expert(TASK, arm, 7, 0.5)[2] for _ in range(2))
    assert np.array_equal(first, second)


def test_completion_rises_while_the_expert_acts():
    for seed in range(3):
        task, robot = reset(TASK, "panda", seed)
        expert = task.expert()
        expert.reset(np.random.default_rng(0))
        outcome, _, completion = play(task, robot, lambda observation, _, e=expert: e.act(observation))
        assert outcome is Outcome.SUCCESS
        assert completion[0] < 0.4
        assert np.diff(completion).min() > -0.05
        assert completion[-1] > 0.97


@pytest.mark.parametrize("arm", ARMS)
def test_random_actions_keep_state_and_reward_bounded(arm):
    for seed in range(2):
        task, robot = reset(TASK, arm, seed)
        rng, (low, high) = np.random.default_rng(seed), robot.spec.action.bounds
        low[2] = 0.0 if seed else low[2]

        def choose(observation, step, rng=rng, low=low, high=high, robot=robot):
            assert np.isfinite(observation.values["task_state"]).all()
            assert np.abs(observation.values["task_state"]).max() < 2.0
            assert np.abs(robot.world.data.qvel).max() < 15.0
            return rng.uniform(low, high).astype(np.float32)

        play(task, robot, choose)


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
