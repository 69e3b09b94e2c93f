"""Advantages against hand-computed numbers, and how a rollout records the ends of its episodes."""

import numpy as np
import pytest

from dovetail.core.specs import ArraySpec
from dovetail.learn.rollouts import Moments, RolloutBuffer, explained_variance, gae

REWARDS, VALUES, NEXT = [1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [1.0, 1.5, 2.0]


def advantages(
    *, rewards=REWARDS, values=VALUES, next_values=NEXT, terminated=(), truncated=(), gamma=0.5, lam=0.5
):
    def marks(at):
        return np.isin(np.arange(len(rewards)), list(at))[None]

    found = gae(
        rewards=np.array([rewards], np.float32),
        values=np.array([values], np.float32),
        next_values=np.array([next_values], np.float32),
        terminated=marks(terminated),
        truncated=marks(truncated),
        gamma=gamma,
        lam=lam,
    )
    return found[0].tolist()


def test_gae_within_an_episode():
    # deltas: 1 + .5 * 1 - .5 = 1, 2 + .5 * 1.5 - 1 = 1.75, 3 + .5 * 2 - 1.5 = 2.5; carried by .25
    assert advantages() == [1.0 + 0.25 * 2.375, 1.75 + 0.25 * 2.5, 2.5]


def test_gae_with_a_terminal_step():
    # nothing follows: delta 2 - 1 = 1, and the next episode's advantage stays there
    assert advantages(terminated=[1]) == [1.0 + 0.25 * 1.0, 1.0, 2.5]


def test_gae_with_a_truncation():
    """Regression: `done = terminated | truncated` without a bootstrap. The last observation gives the bootstrap value."""
    of_its_end = [1.0, 4.0, 2.0]
    # delta 2 + .5 * 4 - 1 = 3, and the next episode's advantage stays there
    assert advantages(next_values=of_its_end, truncated=[1]) == [1.0 + 0.25 * 3.0, 3.0, 2.5]
    assert advantages(next_values=of_its_end, truncated=[1]) != advantages(terminated=[1])


def test_gae_bootstraps_the_last_step_unless_terminal():
    assert advantages()[2] == 3.0 + 0.5 * 2.0 - 1.5
    assert advantages(truncated=[2])[2] == 3.0 + 0.5 * 2.0 - 1.5
    assert advantages(terminated=[2])[2] == 3.0 - 1.5


def test_gae_lambda_0_is_td_error_and_1_is_full_return():
    assert advantages(lam=0.0) == [1.0, 1.75, 2.5]
    assert advantages(lam=1.0)[0] == pytest.approx(1.0 + 0.5 * 2.0 + 0.25 * 3.0 + 0.125 * 2.0 - 0.5)


def test_gae_does_not_mix_worlds():
    rng = np.random.default_rng(0)
    shape = (4, 9)
    data = {name: rng.normal(size=shape) for name in ("rewards", "values", "next_values")}
    ends = rng.random(shape)
    data |= {"terminated": ends < 0.15, "truncated": ends > 0.85}
    together = gae(**data, gamma=0.99, lam=0.95)
    for n in range(4):
        alone = gae(**{name: rows[n : n + 1] for name, rows in data.items()}, gamma=0.99, lam=0.95)
        np.testing.assert_array_equal(together[n], alone[0])


def test_gae_is_the_discounted_sum_of_td_errors():
    rng = np.random.default_rng(1)
    rewards, values, next_values = (rng.normal(size=(1, 12)) for _ in range(3))
    terminated, truncated = np.zeros((1, 12), bool), np.zeros((1, 12), bool)
    terminated[0, 3] = truncated[0, 8] = True
    found = gae(
        rewards=rewards,
        values=values,
        next_values=next_values,
        terminated=terminated,
        truncated=truncated,
        gamma=0.9,
        lam=0.8,
    )
    for t in range(12):
        end = next(stop for stop in (3, 8, 11) if stop >= t)
        deltas = [
            rewards[0, k] + 0.9 * next_values[0, k] * (k != 3) - values[0, k]  # only step 3 is a true end
            for k in range(t, end + 1)
        ]
        assert found[0, t] == pytest.approx(sum((0.9 * 0.8) ** k * delta for k, delta in enumerate(deltas)))


def filled(num_envs=2, num_steps=3):
    spec = {"joint_pos": ArraySpec(shape=(2,)), "front": ArraySpec(shape=(4, 4, 3), dtype="uint8")}
    buffer = RolloutBuffer(num_envs=num_envs, num_steps=num_steps, observation=spec, num_drawn=1)
    for t in range(num_steps + 1):
        buffer.add_observations(t, observations_at(num_envs, t))
        if t < num_steps:
            buffer.add_choice(t, drawn=np.full((num_envs, 1), t), log_prob=np.full(num_envs, -t), version=t)
            buffer.add_result(
                t,
                slice(0, num_envs),
                reward=np.arange(num_envs),
                num_executed=np.ones(num_envs),
                terminated=np.arange(num_envs) == t,
            )
    return buffer


def observations_at(num_envs, t):
    return {
        "joint_pos": np.full((num_envs, 2), t, np.float32),
        "front": np.full((num_envs, 4, 4, 3), t, np.uint8),
    }


def test_buffer_returns_what_was_added():
    buffer = filled()
    buffer.add_truncation(
        1, 2, {"joint_pos": np.array([7, 8], np.float32), "front": np.full((4, 4, 3), 9, np.uint8)}
    )
    buffer.add_truncation(
        0, 1, {"joint_pos": np.array([5, 6], np.float32), "front": np.full((4, 4, 3), 3, np.uint8)}
    )
    arrays = buffer.take_arrays()
    assert arrays["observation/joint_pos"][0, :, 0].tolist() == [0, 1, 2, 3]  # T + 1 of them
    assert arrays["observation/front"].dtype == np.uint8
    assert arrays["action"][..., 0].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert arrays["version"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert arrays["reward"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert arrays["terminated"].tolist() == [[True, False, False], [False, True, False]]
    assert arrays["final_at"].tolist() == [1, 5]  # n * T + t, in order
    assert arrays["final/joint_pos"].tolist() == [[5, 6], [7, 8]]
    assert arrays["final/front"][:, 0, 0, 0].tolist() == [3, 9]


def test_buffer_returns_copies_and_clears_truncations():
    buffer = filled()
    buffer.add_truncation(0, 1, {key: values[0] for key, values in observations_at(2, 1).items()})
    first = buffer.take_arrays()
    second = buffer.take_arrays()
    assert second["final_at"].shape == (0,)
    assert second["final/front"].shape == (0, 4, 4, 3)
    first["action"][:] = -1
    assert (second["action"] >= 0).all()


def test_moments_match_all_rows():
    rng = np.random.default_rng(0)
    parts = [rng.normal(5.0, 3.0, size=(n, 2)) for n in (1, 40, 7)]
    moments = Moments(2)
    for part in parts:
        moments.add(part)
    rows = np.concatenate(parts)
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.std, rows.std(0))
    again = Moments(2)
    again.load_array(moments.to_array())
    again.add(parts[0])
    moments.add(parts[0])
    np.testing.assert_array_equal(again.to_array(), moments.to_array())


def test_explained_variance():
    returns = np.array([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(4, 7.0), returns) == 0.0
    assert explained_variance(-returns, returns) == -3.0  # errors twice as large: four times the variance
    assert explained_variance(returns, np.ones(4)) == 0.0
