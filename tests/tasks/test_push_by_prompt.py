"""push_by_prompt: only the words tell which cube to push."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail.core.types import Outcome
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig
from dovetail.tasks.push_by_prompt import PushByPrompt, PushByPromptConfig
from support.rollouts import make, play, reset, run_actions, run_expert

TASK = "push_by_prompt"
ARMS = ("panda", "x5")


def start(seed, **settings):
    task = PushByPrompt(PushByPromptConfig(**settings))
    robot = SimRobot(SimRobotConfig(arm="panda"), task=task)
    task.reset(robot, rng=np.random.default_rng(seed))
    return task, robot


@pytest.mark.parametrize("arm", ARMS)
def test_resets_draw_both_cubes_and_start_neither_solved_nor_failed(arm):
    prompts = []
    for seed in range(100):
        task, robot = reset(TASK, arm, seed)
        assert not task.solved(robot.world)
        assert not task.failed(robot.world)
        assert robot.world.data.ncon <= 16  # the corners of two cubes on the table, and nothing else
        prompts.append(task.prompt)
    assert set(prompts) == {"push the red cube to the mark", "push the blue cube to the mark"}
    assert 35 <= sum("red" in prompt for prompt in prompts) <= 65


def test_scene_and_state_are_the_same_for_both_prompts():
    for seed in range(5):
        (red, red_robot), (blue, blue_robot) = (start(seed, cubes=(color,)) for color in ("red", "blue"))
        assert (red.prompt, blue.prompt) == ("push the red cube to the mark", "push the blue cube to the mark")
        ours, others = (robot.observe().values for robot in (red_robot, blue_robot))
        assert ours.keys() == others.keys()
        for key, value in ours.items():
            np.testing.assert_array_equal(value, others[key])


def test_state_has_a_name_for_each_number():
    task, robot = make(TASK, "panda")
    assert len(task.state_names) == len(task.read_state(robot.world)) == 29


def put(task, world, color):
    mark = world.body_pose("mark")[0]
    world.set_free_body(color, (mark[0], mark[1], 0.02))
    world.forward()


@pytest.mark.parametrize("color", ["red", "blue"])
def test_named_cube_on_the_mark_is_success_and_the_other_one_failure(color):
    other = {"red": "blue", "blue": "red"}[color]
    task, robot = start(0, cubes=(color,))
    put(task, robot.world, color)
    assert play(task, robot, lambda *_: np.zeros(6, np.float32))[0] is Outcome.SUCCESS
    task, robot = start(0, cubes=(color,))
    put(task, robot.world, other)
    assert task.metrics(robot.world)["other_cube_on_mark"] == 1.0
    assert play(task, robot, lambda *_: np.zeros(6, np.float32))[0] is Outcome.FAILURE


def test_swapped_prompt_names_the_other_cube():
    task, robot = start(0, cubes=("red",), swap_prompt=True)
    assert task.prompt == "push the blue cube to the mark"
    put(task, robot.world, "red")
    assert task.solved(robot.world)


@pytest.mark.parametrize("arm", ARMS)
def test_expert_solves_a_few_resets(arm):
    runs = [run_expert(TASK, arm, 100 + seed, 0.3) for seed in range(10)]
    assert all(success for success, _, _ in runs)


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


@pytest.mark.parametrize("layout", ["one_process", pytest.param("processes", marks=pytest.mark.extended)])
def test_recorded_prompt_names_the_cube_that_the_expert_pushed(tmp_path, layout):
    run = dovetail.collect(
        "push-by-prompt", {"run.demos": 6, "actor.layout": layout}, name="words", runs_dir=tmp_path
    )
    prompts = set()
    for episode in run.episodes:
        assert episode.info.outcome is Outcome.SUCCESS
        prompts.add(episode.info.prompt)
        states = episode.arrays()["observation/task_state"]
        moved = {color: distance_moved(states, color) for color in ("red", "blue")}
        assert max(moved, key=moved.get) in episode.info.prompt
    assert len(prompts) == 2


def distance_moved(states, color):
    places = [PushByPrompt.state_names.index(f"{color}_mark_from_cube_{axis}") for axis in "xy"]
    return np.linalg.norm(states[-1, places] - states[0, places])
