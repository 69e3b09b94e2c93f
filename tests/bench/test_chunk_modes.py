"""What the benchmark of chunk modes computes from its trials; and (slow) that a flow policy tolerates a delay."""

import numpy as np
import pytest

from benchmarks._chunk_modes import Trial, _trial, paired_difference, run_trials, trained_flow
from dovetail.core.types import Episode, EpisodeStart, Observation, Outcome, Purpose, Segment
from dovetail.testing.fakes import FakeArm, FakeArmConfig


def trial(success=True, *, seconds=1.0, jump=0.1):
    return Trial(success=success, seconds=seconds, largest_jump=jump, mean_jump=jump / 2, mean_jerk=0.0)


def test_paired_difference_equals_hand_computation():
    one = [trial(s) for s in (1, 1, 1, 1, 0, 0, 1, 1, 1, 1)]
    other = [trial(s) for s in (1, 0, 0, 0, 1, 0, 1, 1, 1, 1)]
    found = paired_difference(one, other)  # three gained, one lost, of ten
    assert found.difference == pytest.approx(20.0)
    error = 1.96 * np.sqrt(4 - 4 / 10) / 10
    assert (found.low, found.high) == (pytest.approx(100 * (0.2 - error)), pytest.approx(100 * (0.2 + error)))
    same = paired_difference(one, one)
    assert same.difference == 0.0
    assert same.low < 0.0 < same.high  # ten equal pairs do not prove equality


def test_jumps_are_measured_between_chunks_without_the_gripper():
    robot = FakeArm(FakeArmConfig()).spec
    executed = np.zeros((6, 7), np.float32)
    executed[:, 0] = [0.0, 0.01, 0.01, -0.01, -0.01, -0.01]  # of a range of 0.04; the border is at tick 3
    executed[:, 6] = [0, 0, 0, 1, 1, 1]
    columns = {
        "executed": executed,
        "chunk_id": np.array([-1, 0, 0, 1, 1, 1]),
    }  # -1: at rest before the first chunk
    start = EpisodeStart(
        id="e", task="t", prompt="", robot=robot, operator="", purpose=Purpose.EVAL, seed=0, config_hash="",
        started_unix_ns=0,
    )  # fmt: skip
    last = Observation(time_ns=0, values={})
    segment = Segment(episode_id="e", first=0, final=True, columns=columns, last_observation=last)
    episode = Episode.of(start, [segment], outcome=Outcome.SUCCESS)
    low, high = robot.action.bounds
    arm = np.array([True] * 6 + [False])
    found = _trial(episode, arm=arm, scale=(high - low)[arm], control_hz=10.0)
    assert found == Trial(
        success=True,
        seconds=0.6,
        largest_jump=pytest.approx(0.5),
        mean_jump=pytest.approx(0.5),
        mean_jerk=pytest.approx(0.5),
    )  # -0.01 - 2 (-0.01) + 0.01 of 0.04


@pytest.mark.slow
def test_flow_policy_trained_on_scripted_demonstrations_tolerates_delay(tmp_path):
    """The shipped recipe, on resets that it was not tuned on."""
    snapshot = trained_flow("pick-place-rtc", cache=tmp_path)
    delayed = {
        mode: run_trials("pick-place-rtc", mode, 8, snapshot, num_resets=30, seed=77)
        for mode in ("rtc", "naive", "sequential")
    }
    assert np.mean([t.success for t in delayed["rtc"]]) >= 0.85
    mean = {mode: np.mean([t.seconds for t in trials]) for mode, trials in delayed.items()}
    jump = {mode: np.mean([t.largest_jump for t in trials]) for mode, trials in delayed.items()}
    assert mean["rtc"] < 0.85 * mean["sequential"]
    assert jump["rtc"] < 0.75 * jump["naive"]
