"""The test that rolls a deployed policy back: evidence worked out by hand, and its false-alarm rate by simulation."""

import numpy as np
import pytest

from dovetail.core.rollback_test import rollback_test
from dovetail.core.stats import Rate


def test_evidence_of_two_failures_is_the_mean_of_the_likelihood_ratios():
    """p0 = 0.8 and q = 0.7, 0.6, 0.4, 0.2: a failure multiplies by 1.5, 2, 3 and 4."""
    found = rollback_test([False, False], expected_rate=0.8)
    assert found.evidence == pytest.approx((1.5**2 + 2**2 + 3**2 + 4**2) / 4)
    assert (found.num_episodes, found.num_successes, found.alarm) == (2, 0, False)


def test_evidence_falls_with_successes_but_an_alarm_stays():
    outcomes = [False] * 5
    assert rollback_test(outcomes, expected_rate=0.8).alarm  # (1.5^5 + 2^5 + 3^5 + 4^5) / 4 = 326 > 100
    assert rollback_test(outcomes + [True] * 50, expected_rate=0.8).alarm
    assert not rollback_test([True] * 50 + outcomes[:2], expected_rate=0.8).alarm


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95])
def test_false_alarms_are_rarer_than_stated_however_long_it_runs(rate):
    rng = np.random.default_rng(0)
    runs = rng.random((1000, 300)) < rate
    alarms = sum(rollback_test(outcomes, expected_rate=rate, false_alarm_rate=0.05).alarm for outcomes in runs)
    assert alarms <= 0.05 * len(runs) + 3 * np.sqrt(0.05 * 0.95 * len(runs))


def test_a_policy_that_became_20_points_worse_is_found():
    rng = np.random.default_rng(0)
    runs = rng.random((200, 150)) < 0.7
    alarms = sum(rollback_test(outcomes, expected_rate=0.9, false_alarm_rate=0.01).alarm for outcomes in runs)
    assert alarms >= 180


def test_rate_of_a_short_comparison_raises_false_alarms_but_its_lower_limit_does_not():
    """The gate measures the rate in about 20 episodes. As it is, the alarms would be 20 times as frequent as stated."""
    rng = np.random.default_rng(0)
    estimated, limited = 0, 0
    for _ in range(200):
        rate = Rate(successes=int((rng.random(21) < 0.9).sum()), episodes=21)
        outcomes = rng.random(200) < 0.9
        estimated += rollback_test(outcomes, expected_rate=rate.rate).alarm
        limited += rollback_test(outcomes, expected_rate=rate.low).alarm
    assert estimated >= 20
    assert limited <= 2
