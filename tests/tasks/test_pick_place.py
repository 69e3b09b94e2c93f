"""pick_place: resets, success and expert."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.core.types import Outcome
from support.rollouts import make, play, reset, run_actions, run_expert

TASK = "pick_place"
ARMS = ("panda", "x5")


@pytest.mark.parametrize("arm", ARMS)
def test_resets_fill_their_regions_and_never_start_solved(arm):
    cubes, trays, starts = [], [], []
    for seed in range(200):
        task, robot = reset(TASK, arm, seed)
        world = robot.world
        assert not task.solved(world)
        assert not task.failed(world)
        assert task.completion(world) < 0.02
        assert world.data.ncon <= 8  # the cube's corners on the table, and nothing else
        cubes.append(world.body_pose("cube")[0][:2])
        trays.append(world.body_pose("tray")[0][:2])
        starts.append(world.tcp_pose()[0])
    assert (np.ptp(cubes, axis=0) >= 0.20).all()
    assert (np.ptp(trays, axis=0) >= (0.11, 0.055)).all()
    assert (np.ptp(starts, axis=0) >= (0.09, 0.09, 0.03)).all()
    # open pads reach 52 mm from the cube's center, the turned tray 79 mm from its own
    assert np.subtract(trays, cubes)[:, 1].min() >= 0.052 + 0.064


def _put_cube(world, offset, height):
    tray = world.body_pose("tray")[0]
    world.set_free_body("cube", (tray[0] + offset, tray[1], height))
    world.forward()


def _settle(robot, action, ticks=5):
    for _ in range(ticks):
        robot.send(np.asarray(action, np.float32))
        robot.advance(100_000_000)


def test_success_is_at_rest_in_the_tray():
    task, robot = reset(TASK, "panda", 0)
    world, still = robot.world, (0, 0, 0, 0, 0, 0, 1)
    _put_cube(world, 0.0, 0.022)
    _settle(robot, still)
    assert task.solved(world)
    _put_cube(world, 0.10, 0.018)  # beside the tray
    _settle(robot, still)
    assert not task.solved(world)
    _put_cube(world, 0.060, 0.041)  # on a wall, or tumbled off it
    assert not task.solved(world)
    _put_cube(world, 0.0, 0.05)  # still falling
    assert not task.solved(world)


def test_success_needs_an_open_gripper_that_is_clear():
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    _put_cube(world, 0.0, 0.022)
    _settle(robot, (0, 0, 0, 0, 0, 0, 0))  # closed, high above
    assert not task.solved(world)
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    tray = world.body_pose("tray")[0]
    world.place_arm((tray[0], tray[1], 0.036), gripper=1.0)  # open, but still round the cube
    robot.reset_reference()
    _put_cube(world, 0.0, 0.022)
    _settle(robot, (0, 0, 0, 0, 0, 0, 1))
    assert task._in_tray(world)
    assert not task.solved(world)


def test_a_cube_out_of_reach_is_a_failure():
    task, robot = reset(TASK, "panda", 0)
    robot.world.set_free_body("cube", (0.46, -0.4, 0.018))
    robot.world.forward()
    assert task.failed(robot.world)


@pytest.mark.parametrize("arm", ARMS)
def test_expert_solves_a_few_resets(arm):
    runs = [run_expert(TASK, arm, 100 + seed, 0.3) for seed in range(10)]
    assert all(success for success, _, _ in runs)
    assert np.mean([steps for _, steps, _ in runs]) < 55


def test_the_cube_is_carried_by_friction_alone():
    """No weld, no mocap: opening the gripper on the way lets the cube fall."""
    task, robot = reset(TASK, "panda", 1)
    assert robot.world.model.nmocap == 0
    expert = task.expert()
    expert.reset(np.random.default_rng(0))
    world, observation = robot.world, robot.observe()
    while not (task._held(world) and world.body_pose("cube")[0][2] > 0.05):
        robot.send(expert.act(observation))
        robot.advance(100_000_000)
        observation = robot.observe()
    _settle(robot, (0, 0, 0, 0, 0, 0, 1))
    assert not task._held(world)
    assert world.body_pose("cube")[0][2] < 0.03


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
        assert completion[0] < 0.2
        assert np.diff(completion).min() > -0.05
        assert completion[-1] > 0.99


def test_expert_takes_over_from_random_states():
    for seed in range(4):
        task, robot = reset(TASK, "panda", seed)
        expert, rng = task.expert(), np.random.default_rng(seed)
        expert.reset(rng)
        low, high = robot.spec.action.bounds
        low[2], high[2] = -0.02, 0.0  # down to the table, then about on it: it hits the cube or not
        outcome, _, completion = play(
            task,
            robot,
            lambda observation, step, e=expert, r=rng, lo=low, hi=high: (
                r.uniform(lo, hi).astype(np.float32) if step < 15 else e.act(observation)
            ),
        )
        assert outcome is Outcome.SUCCESS
        assert completion[-1] > 0.95


@pytest.mark.parametrize("arm", ARMS)
def test_random_actions_keep_state_and_reward_bounded(arm):
    for seed in range(2):
        task, robot = reset(TASK, arm, seed)
        rng, (low, high) = np.random.default_rng(seed), robot.spec.action.bounds
        fastest = 0.0

        def choose(observation, step, rng=rng, low=low, high=high, task=task, robot=robot):
            nonlocal fastest
            assert np.isfinite(observation.values["task_state"]).all()
            assert np.abs(observation.values["task_state"]).max() < 2.0
            fastest = max(fastest, float(np.linalg.norm(task._velocity(robot.world))))
            return rng.uniform(low, high).astype(np.float32)

        play(task, robot, choose)
        assert fastest < 1.0


def test_state_has_a_name_for_each_number():
    task, robot = make(TASK, "panda")
    assert len(task.state_names) == len(task.read_state(robot.world)) == 13


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
