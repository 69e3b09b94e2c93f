"""How often a good policy is rolled back, simulated from its comparison on: at most 1 %, as stated."""

import numpy as np
import pytest

from dovetail.core.rollback_test import rollback_test
from dovetail.core.sequential_test import Answer, success_answer
from dovetail.core.stats import Rate

MAX_PAIRS, MARGIN, NUM_WATCHED = 100, 0.1, 200


def compared(rng, deployed, candidate):
    """The answer, and the candidate's outcomes."""
    a, b = rng.random(MAX_PAIRS) < deployed, rng.random(MAX_PAIRS) < candidate
    answer, num_pairs = Answer.CANNOT_TELL, 0
    while answer is Answer.CANNOT_TELL and num_pairs < MAX_PAIRS:
        num_pairs += 1
        wins, losses = int((b & ~a)[:num_pairs].sum()), int((a & ~b)[:num_pairs].sum())
        answer = success_answer(wins, losses, num_pairs, margin=MARGIN, max_pairs=MAX_PAIRS)
    return answer, b[:num_pairs]


@pytest.mark.parametrize(("deployed", "candidate"), [(0.3, 0.5), (0.5, 0.7), (0.9, 0.9)])
def test_policies_that_keep_their_rate_are_rarely_rolled_back(deployed, candidate):
    """The lower limit of the rate comes from the same comparison that chose the policy, so this includes that choice."""
    rng = np.random.default_rng(22)
    num_deployed = num_alarms = 0
    for _ in range(600):
        answer, outcomes = compared(rng, deployed, candidate)
        if answer is Answer.NOT_WORSE:
            num_deployed += 1
            expected = Rate(successes=int(outcomes.sum()), episodes=len(outcomes)).low
            num_alarms += rollback_test(rng.random(NUM_WATCHED) < candidate, expected_rate=expected).alarm
    assert num_deployed > 300
    # with a true rate of 1 %, more than 13 of 600 happen in 1 of 1000 simulations
    assert num_alarms <= 0.01 * num_deployed + 3.1 * (0.01 * 0.99 * num_deployed) ** 0.5


def test_a_drop_from_90_to_50_percent_is_found():
    """Its comparison had 27 successes in 30 episodes: the lower limit is 74 %."""
    rng = np.random.default_rng(23)
    expected = Rate(successes=27, episodes=30).low
    assert expected == pytest.approx(0.744, abs=0.001)
    found = [rollback_test(rng.random(100) < 0.5, expected_rate=expected).alarm for _ in range(300)]
    assert np.mean(found) > 0.95


def test_worse_candidates_pass_in_at_most_5_percent():
    """A candidate that is worse by exactly the margin is deployed by mistake in at most 5 % of comparisons."""
    rng = np.random.default_rng(24)
    passed = [compared(rng, 0.8, 0.7)[0] is Answer.NOT_WORSE for _ in range(600)]
    assert np.mean(passed) <= 0.05 + 3.1 * (0.05 * 0.95 / 600) ** 0.5
