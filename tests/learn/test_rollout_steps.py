"""Rollouts as TensorDicts: what belongs to a step, values across the ends of episodes, advantages by hand."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from dovetail.core.specs import ArraySpec
from dovetail.learn.batches import rollout_batch
from dovetail.learn.rollout_steps import rollout_advantages, rollout_steps, rollout_values
from dovetail.learn.rollouts import RolloutBuffer

N, T = 2, 3


def make_rollout(*, horizon=1):
    """Observation n, t is 10 n + t. World 0 terminates after step 1; world 1 is truncated after step 0 at observation 7."""
    buffer = RolloutBuffer(
        num_envs=N, num_steps=T, observation={"x": ArraySpec(shape=(1,))}, num_drawn=2, horizon=horizon
    )
    for t in range(T + 1):
        buffer.add_observations(t, {"x": np.array([[t], [10 + t]], np.float32)})
        if t == T:
            break
        log_prob = np.full((N, horizon) if horizon > 1 else N, -1.0, np.float32)
        buffer.add_choice(t, drawn=np.full((N, 2), t, np.float32), log_prob=log_prob, version=4)
        buffer.add_result(
            t,
            slice(0, N),
            reward=np.array([1.0, 2.0], np.float32),
            num_executed=np.array([horizon, 1]),
            terminated=np.array([t == 1, False]),
        )
    buffer.add_truncation(1, 0, {"x": np.array([7.0], np.float32)})
    return rollout_batch(buffer.take_arrays(), device=torch.device("cpu"))


def test_steps_are_a_tensordict_of_worlds_and_steps():
    rollout = make_rollout()
    assert isinstance(rollout, TensorDict)
    steps = rollout_steps(rollout)
    assert steps.batch_size == (N, T)
    assert steps["observation", "x"].squeeze(-1).tolist() == [[0, 1, 2], [10, 11, 12]]  # without the last one
    assert steps["truncated"].tolist() == [[False] * 3, [True, False, False]]
    assert steps["terminated"].tolist() == [[False, True, False], [False] * 3]
    row = steps.flatten()[4]
    assert (row["observation", "x"].item(), row["action"].tolist(), row["version"].item()) == (11.0, [1.0, 1.0], 4)


def test_value_after_a_truncated_step_is_of_its_own_last_observation():
    values, after = rollout_values(make_rollout(), lambda seen: 2.0 * seen["x"].squeeze(-1))
    assert values.tolist() == [[0, 2, 4], [20, 22, 24]]
    assert after.tolist() == [[2, 4, 6], [14, 24, 26]]


@pytest.mark.parametrize(("horizon", "discounts"), [(1, (0.5, 0.5)), (2, (0.25, 0.5))])
def test_advantages_by_hand(horizon, discounts):
    """Without lambda: reward + gamma^k V' - V, where k actions were executed, and no V' after a terminated step."""
    rollout = make_rollout(horizon=horizon)
    values, after = rollout_values(rollout, lambda seen: 2.0 * seen["x"].squeeze(-1))
    found = rollout_advantages(rollout_steps(rollout), values, after, gamma=0.5, lam=0.0)
    first, second = discounts
    expected = [
        [1 + first * 2 - 0, 1 - 2, 1 + first * 6 - 4],
        [2 + second * 14 - 20, 2 + second * 24 - 22, 2 + second * 26 - 24],
    ]
    assert found.tolist() == expected
    whole = rollout_advantages(rollout_steps(rollout), values, after, gamma=0.5, lam=1.0)
    assert whole[0, 1].item() == expected[0][1]  # nothing flows back across the end of an episode
    assert whole[0, 0].item() == pytest.approx(expected[0][0] + first * expected[0][1])
    assert whole[1, 0].item() == expected[1][0]
