"""Noise of the scripted expert: independent or correlated in time."""

import numpy as np

from support.rollouts import reset


def deviations(noise_correlation_s: float, num: int = 4000) -> np.ndarray:
    """What is added to where the expert would go, in shares of the limits, with the arm standing still."""
    task, robot = reset("push_cube", "panda", 0)
    observation, (_, high) = robot.observe(), robot.spec.action.bounds
    before, task.config = task.config, task.config.model_copy(update={"noise_correlation_s": noise_correlation_s})
    try:
        calm, noisy = task.expert(), task.expert()
        calm.reset(np.random.default_rng(1), noise=0.0)
        noisy.reset(np.random.default_rng(1), noise=0.05)
        noisy._pace = 1.0
        start = calm.act(observation)[:6]
        return np.array([(noisy.act(observation)[:6] - start) / high[:6] for _ in range(num)])[:, 1:]
    finally:
        task.config = before


def test_without_correlation_noise_is_independent():
    task, _ = reset("push_cube", "panda", 0)
    rng, expert = np.random.default_rng(7), task.expert()
    expert.reset(np.random.default_rng(7), noise=0.3)
    rng.random()  # the pace
    for _ in range(3):
        np.testing.assert_array_equal(expert._noise_sample(6), rng.normal(0.0, 1.0, 6))


def test_correlated_noise_has_the_same_variance():
    quick, slow = deviations(0.0), deviations(1.0)
    correlation = [np.corrcoef(d[:-1, -1], d[1:, -1])[0, 1] for d in (quick, slow)]
    assert abs(correlation[0]) < 0.1
    assert abs(correlation[1] - np.exp(-0.1)) < 0.05  # ten ticks a second, one second
    assert 0.5 < slow[:, -1].std() / quick[:, -1].std() < 2.0
