"""Wilson intervals against published values."""

import pytest

from dovetail.core.stats import Rate


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [  # worked out by hand from (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), z = 1.96
        (95, 100, 0.8883, 0.9785),
        (100, 100, 0.9630, 1.0),
        (0, 20, 0.0, 0.1611),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_wilson_interval_matches_known_values(successes, episodes, low, high):
    rate = Rate(successes=successes, episodes=episodes)
    assert rate.low == pytest.approx(low, abs=1e-4)
    assert rate.high == pytest.approx(high, abs=1e-4)
    assert rate.to_json()["rate"] == successes / episodes
