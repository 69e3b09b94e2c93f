"""push_cube: resets, success and expert."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.core.types import Outcome
from support.rollouts import make, play, reset, run_actions, run_expert

TASK = "push_cube"
ARMS = ("panda", "x5")


@pytest.mark.parametrize("arm", ARMS)
def test_resets_fill_their_regions_and_never_start_solved(arm):
    cubes, marks, starts = [], [], []
    for seed in range(200):
        task, robot = reset(TASK, arm, seed)
        world = robot.world
        assert not task.solved(world)
        assert not task.failed(world)
        assert task.completion(world) < 0.02
        assert world.data.ncon <= 8  # the cube's corners on the table, and nothing else
        cubes.append(world.body_pose("cube")[0][:2])
        marks.append(world.body_pose("mark")[0][:2])
        starts.append(world.tcp_pose()[0])
    assert (np.ptp(cubes, axis=0) >= 0.16).all()
    assert (np.ptp(marks, axis=0) >= 0.16).all()
    assert (np.ptp(starts, axis=0) >= (0.07, 0.07, 0.03)).all()
    apart = np.linalg.norm(np.subtract(cubes, marks), axis=1)
    assert apart.min() >= 0.07 - 1e-9
    assert apart.max() <= 0.14 + 1e-9


def _put_cube(task, world, offset, z=0.02):
    mark = world.body_pose("mark")[0]
    world.set_free_body("cube", (mark[0] + offset, mark[1], z))
    world.forward()


def test_success_is_within_15_mm_at_rest_on_the_table():
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    _put_cube(task, world, 0.0149)
    assert task.solved(world)
    _put_cube(task, world, 0.0151)
    assert not task.solved(world)
    _put_cube(task, world, 0.0, z=0.06)
    assert not task.solved(world)
    _put_cube(task, world, 0.0)
    world.data.qvel[int(world.model.body_dofadr[world.body_id("cube")])] = 0.05
    assert not task.solved(world)


def test_success_needs_its_hold_time():
    task, robot = reset(TASK, "panda", 0)
    _put_cube(task, robot.world, 0.0)
    outcome, executed, _ = play(task, robot, lambda _, __: np.zeros(6, np.float32))
    assert outcome is Outcome.SUCCESS
    assert len(executed) == 3  # true at 0.1 s, so held for 0.2 s at 0.3 s


def test_cube_outside_the_region_is_a_failure():
    task, robot = reset(TASK, "panda", 0)
    robot.world.set_free_body("cube", (0.47, 0.25, 0.02))
    robot.world.forward()
    assert task.failed(robot.world)


@pytest.mark.parametrize("arm", ARMS)
def test_gripper_stays_closed_without_an_action_axis(arm):
    task, robot = reset(TASK, arm, 3)
    assert robot.spec.action.shape == (6,)
    play(task, robot, lambda _, __: np.zeros(6, np.float32))
    assert robot.world.gripper_opening() < 1e-3


@pytest.mark.parametrize("arm", ARMS)
def test_expert_solves_a_few_resets(arm):
    runs = [run_expert(TASK, arm, 100 + seed, 0.3) for seed in range(10)]
    assert all(success for success, _, _ in runs)
    assert np.mean([steps for _, steps, _ in runs]) < 35


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
    for seed in range(3):
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
    assert len(task.state_names) == len(task.read_state(robot.world)) == 16


def test_state_has_push_start_and_relative_tcp():
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    mark, tcp = world.body_pose("mark")[0], world.tcp_pose()[0]
    world.set_free_body("cube", (mark[0] - 0.08, mark[1], 0.02))  # to be pushed along x, 50 mm behind its center
    world.forward()
    state = dict(zip(task.state_names, task.read_state(world), strict=True))
    way = task.reset_rotation @ (state["way_x"], state["way_y"], 0.0)
    np.testing.assert_allclose(way, (1.0, 0.0, 0.0), atol=1e-5)
    start = task.reset_rotation @ (state["start_from_tcp_x"], state["start_from_tcp_y"], 0.0)
    np.testing.assert_allclose(start[:2], (mark[0] - 0.13 - tcp[0], mark[1] - tcp[1]), atol=1e-3)
    np.testing.assert_allclose(state["behind"], mark[0] - 0.08 - tcp[0], atol=1e-6)
    np.testing.assert_allclose(state["aside"], tcp[1] - mark[1], atol=1e-6)


@pytest.mark.parametrize("arm", ARMS)
def test_expert_goal_is_continuous(arm):
    """What a hair's breadth decides, who learns from it sees go either way."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        task, robot = reset(TASK, arm, seed)
        expert, world = task.expert(), robot.world
        expert.reset(rng)

        def choose(observation, step, task=task, world=world, expert=expert):
            cube, quat = world.body_pose("cube")
            here = task.goal(world).position
            for nudge in rng.normal(0.0, 2e-4, (4, 2)):
                world.set_free_body("cube", (*(cube[:2] + nudge), cube[2]), quat)
                world.forward()
                assert np.linalg.norm(task.goal(world).position - here) < 0.02
            world.set_free_body("cube", cube, quat)
            world.forward()
            return expert.act(observation)

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


def test_dense_reward_for_returning_the_cube():
    """The dense reward is not cut off where it began: each step back counts, from the first one on."""
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    mark, cube = (world.body_pose(name)[0][:2] for name in ("mark", "cube"))
    away = (cube - mark) / np.linalg.norm(cube - mark)
    start = float(np.linalg.norm(cube - mark))
    shares = []
    for metres in (0.0, 0.01, 0.03):
        world.set_free_body("cube", (*(cube + metres * away), 0.02))
        world.forward()
        shares.append(task._shares(world)[1])
    per_metre = 1.0 / (start - task.config.tolerance_m)
    assert shares == pytest.approx([0.0, -0.01 * per_metre, -0.03 * per_metre], abs=1e-6)
    assert task.completion(world) >= 0.0
