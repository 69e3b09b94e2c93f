"""cap_tightening: resets, success and expert."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.rollouts import make, play, reset, run_actions, run_expert

TASK = "cap_tightening"
ARMS = ("panda", "x5")


def _turn_cap(task, world, angle):
    world.data.joint("cap_turn").qpos[0] = angle
    world.data.joint("cap_screw").qpos[0] = angle * 0.003 / (2 * math.pi)
    world.forward()


@pytest.mark.parametrize("arm", ARMS)
def test_resets_fill_their_ranges_and_never_start_solved(arm):
    bottles, starts, turns, marks, yaws = [], [], [], [], []
    for seed in range(200):
        task, robot = reset(TASK, arm, seed)
        world = robot.world
        assert not task.solved(world)
        assert task.completion(world) < 0.15
        bottles.append(world.body_pose("bottle")[0][:2])
        starts.append(world.tcp_pose()[0])
        turns.append(math.degrees(task.remaining(world)))
        marks.append(math.atan2(world.data.body("cap").xmat[3], world.data.body("cap").xmat[0]))
        yaws.append(math.atan2(*np.asarray(task.reset_rotation)[[1, 0], 0]))
    assert (np.ptp(bottles, axis=0) >= 0.057).all()
    assert (np.ptp(starts, axis=0) >= 0.057).all()
    assert np.ptp(np.unwrap(yaws)) >= math.radians(19)
    assert np.ptp(marks) >= math.radians(350)
    assert min(turns) >= 190 and max(turns) <= 215 and np.ptp(turns) >= 24


def test_success_needs_the_marked_angle():
    task, robot = reset(TASK, "panda", 0)
    world, wanted = robot.world, task.remaining(robot.world)
    for off_deg, good in ((0, True), (7.5, True), (-7.5, True), (9, False), (-9, False), (-360, False)):
        _turn_cap(task, world, wanted + math.radians(off_deg))
        assert task.solved(world) is good, off_deg
    assert wanted - math.radians(8) >= math.pi


def test_marks_are_aligned_at_success():
    task, robot = reset(TASK, "panda", 3)
    world = robot.world
    _turn_cap(task, world, task.remaining(world))
    cap, collar = world.data.body("cap").xmat, world.data.body("collar").xmat
    assert np.allclose(cap.reshape(3, 3)[:, 0], collar.reshape(3, 3)[:, 0], atol=1e-6)


def test_the_cap_holds_its_angle_and_screws_down():
    task, robot = reset(TASK, "panda", 1)
    world = robot.world
    world.advance(500)
    assert abs(task.angle(world)) < 1e-3
    _, _, actions = run_expert(TASK, "panda", 1)
    assert actions[0].shape == (7,)
    sunk = float(world.data.joint("cap_screw").qpos[0])
    assert sunk == pytest.approx(task.angle(world) * 0.003 / (2 * math.pi), abs=5e-4)


def test_expert_regrasps_at_the_end_of_the_wrist_range():
    task, robot = reset(TASK, "panda", 2)
    world = robot.world
    joints = world.joint_positions().copy()
    joints[-1] = 2.2  # little room is left to turn
    world.place_joints(joints)
    robot.reset_reference()
    task.reset_rotation = world.data.site("tcp").xmat.reshape(3, 3).copy()
    expert = task.expert()
    expert.reset(np.random.default_rng(0))
    outcome, _, _ = play(task, robot, lambda observation, _: expert.act(observation))
    assert outcome == "success"


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_expert(arm, noise):
    results = [run_expert(TASK, arm, seed, noise) for seed in range(8)]
    assert all(success for success, _, _ in results)
    assert max(steps for _, steps, _ in results) < 100


def test_completion_rises():
    task, robot = reset(TASK, "panda", 4)
    expert = task.expert()
    expert.reset(np.random.default_rng(0))
    _, _, completion = play(task, robot, lambda observation, _: expert.act(observation))
    assert np.diff(completion).min() > -0.03
    assert completion[-1] > 0.95


def test_same_seed_same_trajectory():
    first, again = (run_expert(TASK, "panda", 5, 0.3)[2] for _ in range(2))
    assert np.array_equal(first, again)


def test_state_is_finite_and_small_under_random_actions():
    task, robot = reset(TASK, "panda", 6)
    rng = np.random.default_rng(6)
    low, high = robot.spec.action.bounds

    def choose(observation, _):
        assert np.abs(observation.values["task_state"]).max() < 7.0
        return rng.uniform(low, high).astype(np.float32)

    play(task, robot, choose)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_expert_solves_95_of_100(arm):
    assert sum(run_expert(TASK, arm, seed, 0.3)[0] for seed in range(100)) >= 95


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_blind_replay_fails(arm):
    _, _, actions = run_expert(TASK, arm, 1000)
    assert sum(run_actions(TASK, arm, seed, actions) for seed in range(50)) <= 10


def test_spec_names_the_state():
    task, robot = make(TASK, "panda")
    assert robot.spec.observation["task_state"].names == task.state_names
