"""table_cleanup: resets, success and expert."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from dovetail.robots.sim.rotations import quat_from_axis_angle, quat_multiply
from dovetail.tasks.table_cleanup import _THINGS
from support.rollouts import play, reset, run_actions, run_expert

TASK = "table_cleanup"
THINGS = ("cube", "can", "bar")


def _put_away(task, world, *, lid_deg, leave_out=()):
    box = world.body_pose("box")[0]
    for i, name in enumerate(THINGS):
        if name not in leave_out:
            world.set_free_body(name, box + (0.07 * (i - 1), 0.0, 0.026))
    world.data.joint("lid").qpos[0] = math.radians(lid_deg)
    world.forward()


def test_resets_place_objects_apart_and_never_start_solved():
    spots, boxes = {name: [] for name in THINGS}, []
    for seed in range(200):
        task, robot = reset(TASK, "panda", seed)
        world = robot.world
        assert not task.solved(world) and not task.failed(world)
        assert task.completion(world) < 0.1
        here = {name: world.body_pose(name)[0][:2] for name in THINGS}
        assert min(np.linalg.norm(here[a] - here[b]) for a, b in combinations(THINGS, 2)) >= 0.104
        boxes.append(world.body_pose("box")[0][:2])
        # the palm reaches 98 mm to either side, the box's outer wall 78 mm
        assert min(spot[1] for spot in here.values()) - boxes[-1][1] >= 0.176
        for name in THINGS:
            spots[name].append(here[name])
    assert all((np.ptp(where, axis=0) >= (0.26, 0.17)).all() for where in spots.values())
    assert (np.ptp(boxes, axis=0) >= 0.037).all()


def test_lid_and_objects_are_at_rest_after_reset():
    task, robot = reset(TASK, "panda", 0)
    world = robot.world
    before = {name: world.body_pose(name)[0] for name in THINGS}
    world.advance(1000)
    assert math.degrees(task.lid_angle(world)) == pytest.approx(112.0, abs=1.0)
    assert all(np.linalg.norm(world.body_pose(name)[0] - before[name]) < 1e-3 for name in THINGS)


@pytest.mark.parametrize(
    ("lid_deg", "leave_out", "good"),
    [(2.0, (), True), (10.0, (), False), (112.0, (), False), (2.0, ("bar",), False)],
)
def test_success_is_all_inside_and_the_lid_closed(lid_deg, leave_out, good):
    task, robot = reset(TASK, "panda", 1)
    _put_away(task, robot.world, lid_deg=lid_deg, leave_out=leave_out)
    assert task.solved(robot.world) is good


def test_fallen_object_or_early_lid_is_a_failure():
    task, robot = reset(TASK, "panda", 1)
    _put_away(task, robot.world, lid_deg=2.0, leave_out=("can",))
    assert task.failed(robot.world)
    task, robot = reset(TASK, "panda", 1)
    robot.world.set_free_body("cube", (1.2, 0.0, -0.2))
    robot.world.forward()
    assert task.failed(robot.world)


def test_object_behind_the_wall_is_not_inside():
    task, robot = reset(TASK, "panda", 1)
    world = robot.world
    box = world.body_pose("box")[0]
    for offset in ((0.0, 0.10, 0.02), (0.14, 0.0, 0.02), (0.0, 0.0, 0.12)):
        world.set_free_body("cube", box + offset)
        world.forward()
        assert not task.in_box(world, "cube"), offset


@pytest.mark.extended
@pytest.mark.parametrize(("noise", "seeds"), [(0.0, range(5)), (0.5, range(100, 105))])
def test_expert(noise, seeds):
    results = [run_expert(TASK, "panda", seed, noise) for seed in seeds]
    assert all(success for success, _, _ in results)
    assert max(steps for _, steps, _ in results) <= 270


def test_completion_rises():
    task, robot = reset(TASK, "panda", 4)
    expert = task.expert()
    expert.reset(np.random.default_rng(0))
    _, _, completion = play(task, robot, lambda observation, _: expert.act(observation))
    assert np.diff(completion).min() > -0.03
    assert completion[-1] > 0.98


def test_same_seed_same_trajectory():
    first, again = (run_expert(TASK, "panda", 5, 0.3)[2] for _ in range(2))
    assert np.array_equal(first, again)


def test_random_actions_keep_the_state_finite():
    task, robot = reset(TASK, "panda", 6)
    rng = np.random.default_rng(6)
    low, high = robot.spec.action.bounds

    def choose(observation, _):
        assert np.abs(observation.values["task_state"]).max() < 3.2  # turns, in rad
        assert np.abs(robot.world.data.qvel).max() < 60.0
        return rng.uniform(low, high).astype(np.float32)

    play(task, robot, choose)


@pytest.mark.slow
def test_expert_solves_95_of_100():
    assert sum(run_expert(TASK, "panda", seed, 0.3)[0] for seed in range(100)) >= 95


@pytest.mark.slow
def test_blind_replay_fails():
    _, _, actions = run_expert(TASK, "panda", 1000)
    assert sum(run_actions(TASK, "panda", seed, actions) for seed in range(50)) <= 10


def _state(task, world):
    values = task.read_state(world)
    assert values.shape == (len(task.state_names),)
    return dict(zip(task.state_names, values.tolist(), strict=True))


def test_state_has_the_next_object():
    """With three objects on the table, images do not show which one the expert takes next."""
    task, robot = reset(TASK, "panda", 3)
    world = robot.world
    for name in THINGS:
        spot = world.body_pose(name)[0]
        world.place_arm(spot + (0.02, 0.01, 0.1), world.tcp_pose()[1])
        world.forward()
        state = _state(task, world)
        towards = task.in_reset_frame(task._grasp_point(world, _thing(name)) - world.tcp_pose()[0])
        assert [state[f"next_{axis}"] for axis in "xyz"] == pytest.approx(list(towards), abs=1e-5)
        assert state["held"] == 0.0


def test_next_turn_aligns_the_fingers_with_the_object():
    task, robot = reset(TASK, "panda", 3)
    world = robot.world
    spot = world.body_pose("bar")[0] + (0.0, 0.0, 0.1)
    world.place_arm(spot, world.tcp_pose()[1])
    turn = _state(task, world)["next_turn"]
    world.place_arm(spot, quat_multiply(quat_from_axis_angle((0.0, 0.0, 1.0), turn), world.tcp_pose()[1]))
    assert abs(turn) > 0.1
    assert _state(task, world)["next_turn"] == pytest.approx(0.0, abs=0.01)


def test_held_object_is_next_until_it_is_in_the_box():
    task, robot = reset(TASK, "panda", 0)
    expert = task.expert()
    expert.reset(np.random.default_rng(0))
    held = []

    def choose(observation, _):
        state = dict(zip(task.state_names, observation.values["task_state"], strict=True))
        if state["held"]:
            held.append(
                (max(abs(state[f"next_{axis}"]) for axis in "xyz"), math.hypot(state["slot_x"], state["slot_y"]))
            )
        return expert.act(observation)

    play(task, robot, choose)
    assert len(held) > 30
    assert max(aside for aside, _ in held) < 0.03
    assert min(to_slot for _, to_slot in held) < 0.02


def _thing(name):
    return next(thing for thing in _THINGS if thing.name == name)
