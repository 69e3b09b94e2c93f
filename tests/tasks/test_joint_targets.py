"""The experts with joint targets instead of Cartesian deltas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.config.plugins import resolve
from dovetail.core.types import Outcome
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig
from support.rollouts import play


@pytest.mark.parametrize("arm", ["panda", "x5"])
@pytest.mark.parametrize("name", ["push_cube", "pick_place", "cap_tightening", "charger", "peg_insertion"])
def test_expert(name, arm):
    kind: Any = resolve("task", name)
    task = kind(kind.Config())
    robot = SimRobot(SimRobotConfig(arm=arm, action="joint"), task=task)
    expert = task.expert()
    for noise in (0.0, 0.3):  # without noise, nothing shakes an arm loose that friction or a hole's rim holds
        for seed in range(3):
            task.reset(robot, rng=np.random.default_rng(seed))
            expert.reset(np.random.default_rng([seed, 1]), noise=noise)
            outcome, _, _ = play(task, robot, lambda observation, _: expert.act(observation))
            assert outcome is Outcome.SUCCESS, (noise, seed)
