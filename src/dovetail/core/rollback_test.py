"""A sequential test of a deployed policy: does it succeed less often than it did in its comparison?

For success rate p0 and a lower one q, each episode multiplies the evidence by q / p0 (success) or (1 - q) / (1 - p0)
(failure). If the true rate is p0 or more, the expected factor is at most 1, so the evidence ever reaches 1 / alpha with a
probability of at most alpha (Ville's inequality), however often and long it is looked at. The evidence is the mean over
several q.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["RollbackTest", "rollback_test"]

_DROPS = (0.1, 0.2, 0.4, 0.6)  # q = p0 - drop; those that leave no q are 0.01
_SMALLEST, _LARGEST = 0.01, 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackTest:
    """The evidence after some episodes. `alarm`: it has reached 1 / false_alarm_rate at some time."""

    num_episodes: int
    num_successes: int
    expected_rate: float
    false_alarm_rate: float
    evidence: float  # the largest so far
    alarm: bool


def rollback_test(
    outcomes: Iterable[bool], *, expected_rate: float, false_alarm_rate: float = 0.01
) -> RollbackTest:
    """Test episodes without help, in order, against the success rate that the policy is expected to have."""
    p0 = min(max(expected_rate, _SMALLEST), _LARGEST)
    rates = [max(p0 - drop, _SMALLEST / 2) for drop in _DROPS]
    evidence, largest, num_episodes, num_successes = [1.0] * len(rates), 1.0, 0, 0
    for success in outcomes:
        num_episodes, num_successes = num_episodes + 1, num_successes + bool(success)
        factors = [q / p0 if success else (1.0 - q) / (1.0 - p0) for q in rates]
        evidence = [e * factor for e, factor in zip(evidence, factors, strict=True)]
        largest = max(largest, sum(evidence) / len(evidence))
    return RollbackTest(
        num_episodes=num_episodes,
        num_successes=num_successes,
        expected_rate=expected_rate,
        false_alarm_rate=false_alarm_rate,
        evidence=largest,
        alarm=largest >= 1.0 / false_alarm_rate,
    )
