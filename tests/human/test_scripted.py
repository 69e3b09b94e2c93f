"""The scripted operator: watched episodes, takeovers, release and verdicts."""

import numpy as np
import pytest

from dovetail.core.types import Event, Observation
from dovetail.human.scripted import Demonstrator, ScriptedConfig, ScriptedOperator

SEEN = Observation(time_ns=0, values={})


class Expert:
    """Reports scripted progress."""

    def __init__(self):
        self.now, self.noise = 0.0, None

    def reset(self, rng, *, noise=0.0):
        self.noise = noise

    def act(self, observation):
        return np.ones(7, np.float32)

    def progress(self, observation):
        return self.now


class Task:
    def __init__(self):
        self.the_expert = Expert()

    def expert(self):
        return self.the_expert


def make(**config):
    task = Task()
    operator = ScriptedOperator(
        ScriptedConfig(**{"watched_share": 1.0, "stuck_after_steps": 5, **config}), task=task
    )
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator, task.the_expert


def test_stuck_policy_is_taken_over_and_gets_control_back():
    operator, _ = make(min_takeover_steps=3, max_takeover_steps=3)
    acting = [operator.poll(SEEN).action is not None for _ in range(16)]
    # five ticks of patience, three of correction, and the policy gets its patience again
    assert acting == [False] * 5 + [True] * 3 + [False] * 5 + [True] * 3


def test_policy_with_progress_is_not_taken_over():
    operator, expert = make()
    for tick in range(30):
        expert.now = 0.02 * tick
        assert operator.poll(SEEN).action is None


def test_finished_task_gives_success_event():
    operator, expert = make(watched_share=0.0)
    assert operator.poll(SEEN).event is None
    expert.now = 1.0
    assert operator.poll(SEEN).event is Event.SUCCESS


@pytest.mark.parametrize(("minutes", "expected"), [(0.0, 0.5), (5.0, 0.25), (10.0, 0.0), (99.0, 0.0)])
def test_watched_share_falls_with_robot_time(minutes, expected):
    operator, _ = make(watched_share=0.5, fade_out_minutes=10.0)
    watched = 0
    for episode in range(400):
        operator.reset(rng=np.random.default_rng(episode), robot_minutes=minutes)
        watched += any(operator.poll(SEEN).action is not None for _ in range(7))
    assert watched / 400 == pytest.approx(expected, abs=0.07)


def test_takeover_lengths_are_random_within_limits():
    operator, _ = make(min_takeover_steps=8, max_takeover_steps=20)
    lengths = set()
    for episode in range(40):
        operator.reset(rng=np.random.default_rng(episode), robot_minutes=0.0)
        acting = [operator.poll(SEEN).action is not None for _ in range(5 + 21)]
        lengths.add(acting[5:].index(False))  # of the first correction
    assert min(lengths) >= 8
    assert max(lengths) <= 20
    assert len(lengths) > 5


def test_demonstrator_acts_in_every_tick():
    task = Task()
    teacher = Demonstrator(task=task, noise=0.4)
    teacher.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert task.the_expert.noise == 0.4
    assert all(teacher.poll(SEEN).action is not None for _ in range(5))
    task.the_expert.now = 1.0
    assert teacher.poll(SEEN).event is Event.SUCCESS


class OneArmExpert(Expert):
    """Takes over the first three axes, or the last four after `swap`."""

    swap = False

    def takeover_axes(self, observation):
        mask = np.arange(7) < 3
        return ~mask if self.swap else mask


def test_expert_that_takes_over_one_arm_keeps_it_during_the_takeover():
    task = Task()
    task.the_expert = OneArmExpert()
    config = ScriptedConfig(
        watched_share=1.0, stuck_after_steps=2, min_takeover_steps=3, max_takeover_steps=3, min_progress=0.03
    )
    operator = ScriptedOperator(config, task=task)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    masks = []
    for _ in range(8):
        polled = operator.poll(SEEN)
        if polled.action is not None:
            masks.append(polled.axes.tolist())
            task.the_expert.swap = True
    first, second = (np.arange(7) < 3).tolist(), (np.arange(7) >= 3).tolist()
    assert masks == [first] * 3 + [second] * len(masks[3:])
    assert len(masks) > 3
