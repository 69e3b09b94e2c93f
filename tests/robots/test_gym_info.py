"""Metrics and parts of the reward that a Gymnasium environment reports in `info`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.robots._gym_info import InfoMetrics
from dovetail.robots.gym import GymRobot, GymRobotConfig


def test_names_stay_the_same_within_an_episode_and_missing_numbers_are_nan():
    metrics = InfoMetrics()
    assert metrics.read({"metrics": {"depth": 1.0}}, first=True) == {"depth": 1.0}
    later = metrics.read({"metrics": {"force": np.float32(2.0)}, "rewards": {"reach": 0.5}}, first=False)
    assert later.keys() == {"depth"} and math.isnan(later["depth"])
    again = metrics.read({"metrics": {"force": 3.0}, "rewards": {"reach": True}}, first=True)
    assert math.isnan(again.pop("depth"))
    assert again == {"force": 3.0, "reward/reach": 1.0}


@pytest.mark.parametrize("odd", ["text", None, [1.0, 2.0], np.zeros(3), {"a": 1.0}, object()])
def test_values_that_are_no_numbers_are_left_out(odd):
    info = {"metrics": {"odd": odd, "good": np.array([4])}, "rewards": {"odd": odd}}
    found = InfoMetrics().read(info, first=True)
    assert found == {"good": 4.0}
    if not isinstance(odd, dict):
        assert InfoMetrics().read({"metrics": odd, "rewards": odd}, first=True) == {}


def test_an_infinite_number_is_unknown():
    found = InfoMetrics().read({"metrics": {"a": math.inf}}, first=True)
    assert math.isnan(found["a"])


def test_at_most_forty_names_are_recorded():
    many = {f"m{number}": 1.0 for number in range(100)}
    metrics = InfoMetrics()
    assert len(metrics.read({"metrics": many}, first=True)) == 40
    assert len(metrics.read({"metrics": {"other": 1.0}}, first=True)) == 40


def test_parts_of_the_reward_are_not_added_to_it():
    robot, clock = GymRobot(GymRobotConfig(id="support.spring_env:Spring-v0")), SimulatedClock()
    clock.on_advance(robot.advance)
    robot.task.reset(robot, rng=np.random.default_rng(0))
    robot.send(np.array([0.5], np.float32))
    clock.sleep_until(clock.now_ns() + round(NS_PER_S / robot.spec.control_hz))
    verdict = robot.task.judge(robot, robot.observe(), num_steps=1)
    parts = [value for name, value in verdict.metrics.items() if name.startswith("reward/")]
    assert len(parts) == 2
    assert verdict.reward == pytest.approx(sum(parts)) == pytest.approx(robot.reward)
    assert verdict.metrics.keys() == {"reward/distance", "reward/effort", "speed", "is_success"}
    assert not robot.task.spec.has_success
