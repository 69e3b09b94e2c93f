"""What `dovetail bench realtime` computes from what it measures; and, slowly, that a flow policy bears a delay."""

import numpy as np
import pytest

from dovetail.bench import realtime
from dovetail.bench._chunk_modes import MODES, Trial, _trial, paired_difference, run_trials
from dovetail.bench._flow_policies import trained_flow
from dovetail.bench._punctual import plain_loop
from dovetail.core.types import Episode, EpisodeStart, Observation, Outcome, Purpose, Segment
from dovetail.testing.fakes import FakeArm, FakeArmConfig


def trial(success=True, *, seconds=1.0, jump=0.1):
    return Trial(success=success, seconds=seconds, largest_jump=jump, mean_jump=jump / 2, mean_jerk=0.0)


def test_a_paired_difference_by_hand():
    one = [trial(s) for s in (1, 1, 1, 1, 0, 0, 1, 1, 1, 1)]
    other = [trial(s) for s in (1, 0, 0, 0, 1, 0, 1, 1, 1, 1)]
    found = paired_difference(one, other)  # three gained, one lost, of ten
    assert found.difference == pytest.approx(20.0)
    error = 1.96 * np.sqrt(4 - 4 / 10) / 10
    assert (found.low, found.high) == (pytest.approx(100 * (0.2 - error)), pytest.approx(100 * (0.2 + error)))
    same = paired_difference(one, one)
    assert same.difference == 0.0
    assert same.low < 0.0 < same.high  # ten pairs that agree prove nothing


def test_jumps_are_those_where_chunks_meet_and_grippers_may_snap():
    robot = FakeArm(FakeArmConfig()).spec
    executed = np.zeros((6, 7), np.float32)
    executed[:, 0] = [0.0, 0.01, 0.01, -0.01, -0.01, -0.01]  # of a range of 0.04; the border is at tick 3
    executed[:, 6] = [0, 0, 0, 1, 1, 1]
    columns = {"executed": executed, "chunk_id": np.array([-1, 0, 0, 1, 1, 1])}  # it starts from rest
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


def test_the_plain_loop_counts_its_ticks():
    found = plain_loop(200, seconds=0.2)
    assert found["ticks"] == 40
    assert 0.0 <= found["lateness_p50_ms"] <= found["lateness_p99_ms"] <= found["lateness_max_ms"]


def test_aims_are_judged_on_the_modes_that_they_name():
    found = {(mode, delay): [trial()] * 10 for mode in MODES for delay in (0, 8)}
    found["sequential", 8] = [trial(seconds=2.0)] * 10
    found["naive", 8] = [trial(jump=0.4)] * 10
    rows = {row.name.partition(" [")[0]: row for row in realtime._verdicts("r", found)}
    assert [name for name, row in rows.items() if row.met is not None] == [
        "r, rtc: success at delay 8 minus at 0",
        "r: rtc's episodes shorter, delay 8",
        "r: rtc's largest jump, delay 8",
        "r: rtc's mean jump, delay 8",
    ]
    assert all(row.met for row in rows.values() if row.met is not None)
    found["rtc", 8] = [trial(success=False, seconds=1.9, jump=0.3)] * 10
    assert not any(row.met for row in realtime._verdicts("r", found) if row.met is not None)


@pytest.mark.slow
def test_a_flow_policy_trained_on_scripted_demonstrations_bears_a_delay(tmp_path):
    """The recipe as shipped, resets that nobody tuned on."""
    snapshot, _ = trained_flow("pick-place-rtc", cache=tmp_path)
    delayed = {
        mode: run_trials("pick-place-rtc", mode, 8, snapshot, num_resets=30, seed=77)
        for mode in ("rtc", "naive", "sequential")
    }
    assert np.mean([t.success for t in delayed["rtc"]]) >= 0.85
    mean = {mode: np.mean([t.seconds for t in trials]) for mode, trials in delayed.items()}
    jump = {mode: np.mean([t.largest_jump for t in trials]) for mode, trials in delayed.items()}
    assert mean["rtc"] < 0.85 * mean["sequential"]
    assert jump["rtc"] < 0.75 * jump["naive"]
