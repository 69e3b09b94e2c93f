"""An examination that a fault cut short says nothing of the policy."""

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError
from dovetail.core.types import Purpose
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.roles.robot import evaluation_episodes, order_episode
from support.toy_run import TOY


def test_a_fault_is_no_failure_of_the_policy(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    station = build_assembly(load([path]))
    raw = station.task.robot
    observe, num = raw.observe, iter(range(10_000))

    def broken():
        seen = observe()
        if next(num) == 12:
            seen.values["ee_pose"][0] = np.nan
        return seen

    raw.observe = broken
    with pytest.raises(FailureError, match="evaluation episode 1 of 4 was cut short"):
        list(evaluation_episodes(station, None, num_episodes=4, config_hash=""))
    station.close()


def test_examinations_are_calm_unless_chance_is_how_it_searches(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    for noise in (False, True):
        station = build_assembly(load([path], [f"run.eval_noise={str(noise).lower()}", "run.deterministic_share=0.0"]))
        orders = {
            purpose: order_episode(station, purpose=purpose, index=0, config_hash="")
            for purpose in (Purpose.EVAL, Purpose.ONLINE)
        }
        assert orders[Purpose.EVAL].deterministic is not noise
        assert not orders[Purpose.ONLINE].deterministic
        station.close()


def test_noise_differs_between_episodes_and_is_the_same_the_next_time(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    station = build_assembly(load([path], ["run.eval_noise=true"]))
    first, again = (
        [
            episode.column("executed")[0]
            for episode in evaluation_episodes(station, None, num_episodes=3, config_hash="")
        ]
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    station.close()
