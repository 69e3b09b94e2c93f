"""An examination that a fault cut short says nothing of the policy."""

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError
from dovetail.runtime.build import build_station
from dovetail.runtime.evaluate import evaluation_episodes
from toy_run import TOY


def test_a_fault_is_no_failure_of_the_policy(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    station = build_station(load([path]))
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
