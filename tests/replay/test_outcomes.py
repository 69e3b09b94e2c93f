"""Steps to the end of the episode and its success, as a sample of the replay has them."""

from fractions import Fraction

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import View, Window
from support.joint_arm import fill, make_episode


def actions(num_steps, offset):
    """The observation of step t is offset + t, in hundredths."""
    return np.repeat((offset + 1 + np.arange(num_steps))[:, None] * 0.01, 2, axis=1)


@pytest.fixture
def replay(tmp_path):
    """A success of 7 steps with a takeover, and a failure of 4 steps."""
    replay = fill(
        tmp_path,
        make_episode("a", actions(7, 10), start=(0.1, 0.1), human=(2, 3)),
        make_episode("b", actions(4, 30), start=(0.3, 0.3), success=False),
    )
    yield replay
    replay.close()


def sample(replay, **window):
    into = {
        "observation/joint_pos": np.zeros((300, 2), np.float32),
        "steps_to_end": np.zeros(300, np.int64),
        "success": np.zeros(300, np.bool_),
    }
    replay.sample(into, view=View(), rng=np.random.default_rng(0), window=Window(**window))
    steps = np.rint(100 * into["observation/joint_pos"][:, 0]).astype(int)
    return set(zip(steps.tolist(), into["steps_to_end"].tolist(), into["success"].tolist(), strict=True))


def test_last_step_is_one_step_from_the_end(replay):
    """Also across a takeover, where a new span of rows begins."""
    expected = {(10 + t, 7 - t, True) for t in range(7)} | {(30 + t, 4 - t, False) for t in range(4)}
    assert sample(replay) == expected


def test_policy_steps_are_counted_at_the_policy_rate(replay):
    """With 3 ticks per step, 7 ticks are 3 steps, the last of which is not complete."""
    expected = {(10 + t, [3, 2, 2, 2, 1, 1, 1][t], True) for t in range(7)}
    assert expected < sample(replay, ticks_per_step=3)
    expected = {(10 + t, [5, 4, 3, 3, 2, 2, 1][t], True) for t in range(7)}  # 7 ticks are 4.2 steps
    assert expected < sample(replay, ticks_per_step=Fraction(5, 3))


def test_new_label_changes_the_success(replay, tmp_path):
    _, labels = make_episode("b", actions(4, 30), success=True)
    replay.relabel(labels)
    assert (30, 4, True) in sample(replay)


def test_wrong_type_is_refused(replay):
    with pytest.raises(UsageError, match=r"'steps_to_end' in the replay is int64"):
        replay.sample({"steps_to_end": np.zeros(3, np.float32)}, view=View(), rng=np.random.default_rng(0))
