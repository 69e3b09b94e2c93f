"""A sequential test of two policies: is B worse than A by more than a margin?

    for pair in pairs:
        outcomes.append(pair)
        test = success_test(outcomes, margin=0.05, max_pairs=200)
        if test.answer is not Answer.CANNOT_TELL:
            break

Pairs of episodes are added one at a time, and the test is made after each. Only the difference within a pair counts, so the
two episodes of a pair may depend on each other, as they do after the same reset. Pairs must not depend on other pairs.

At a difference of exactly the margin, the sum of (difference + margin) over n pairs is a random walk without drift. By the
reflection principle it leaves the bound z(1 - e / 2) * sqrt(variance * max_pairs) on one side within `max_pairs` pairs with
probability e. So "not worse" is wrong in at most e of all cases, and so is "worse", however often the test is made. This is
the group-sequential boundary of O'Brien and Fleming with a look after each pair.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "ERROR_RATE",
    "Answer",
    "SequentialTest",
    "return_test",
    "success_answer",
    "success_score",
    "success_test",
]

ERROR_RATE = 0.05
MIN_RETURN_PAIRS = 10  # fewer say too little about the spread
_PRECISION = 1e-4  # of the bounds of a difference


class Answer(enum.StrEnum):
    NOT_WORSE = "not worse"  # by more than the margin
    WORSE = "worse"  # by more than the margin
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTest:
    """The result after some pairs. The interval holds all differences that the test has not ruled out.

    It covers the true difference in at least 1 - 2 * `error_rate` of all comparisons, even though they stop early.
    """

    answer: Answer
    num_pairs: int
    difference: float  # B minus A: success rate or mean return
    low: float | None  # None: too few pairs
    high: float | None
    margin: float  # in the unit of the difference
    error_rate: float

    def to_json(self) -> dict[str, Any]:
        names = ("num_pairs", "difference", "low", "high", "margin", "error_rate")
        return {"answer": self.answer.value, **{name: getattr(self, name) for name in names}}


def success_test(
    pairs: Sequence[tuple[bool, bool]], *, margin: float, max_pairs: int, error_rate: float = ERROR_RATE
) -> SequentialTest:
    """Test pairs (A succeeded, B succeeded). `margin` is a difference of success rates, between 0 and 1."""
    n = len(pairs)
    wins = sum(b and not a for a, b in pairs)
    losses = sum(a and not b for a, b in pairs)
    bound = _bound(n, max_pairs, error_rate)

    def score(difference: float) -> float:
        return success_score(wins, losses, n, difference=difference)

    return SequentialTest(
        answer=success_answer(wins, losses, n, margin=margin, max_pairs=max_pairs, error_rate=error_rate),
        num_pairs=n,
        difference=(wins - losses) / n,
        low=_crossing(lambda difference: score(difference) < bound),
        high=_crossing(lambda difference: score(difference) <= -bound),
        margin=margin,
        error_rate=error_rate,
    )


def success_answer(
    wins: int, losses: int, num_pairs: int, *, margin: float, max_pairs: int, error_rate: float = ERROR_RATE
) -> Answer:
    """The answer of `success_test` alone, from the number of pairs in which only B succeeded, and only A."""
    score = success_score(wins, losses, num_pairs, difference=-margin)
    return _answer(score, _bound(num_pairs, max_pairs, error_rate))


def success_score(wins: int, losses: int, num_pairs: int, *, difference: float) -> float:
    """How far the pairs lie above a true difference, in standard deviations under that difference (Tango's score).

    `wins`: only B succeeded. The variance follows from the most likely share of unequal pairs under the true difference.
    Half a pair is subtracted, because sums of pairs are whole numbers.
    """
    excess = wins - losses - num_pairs * difference
    excess = math.copysign(max(0.0, abs(excess) - 0.5), excess)
    if excess == 0.0:
        return 0.0
    # P(loss) = q and P(win) = q + difference maximize the likelihood where this quadratic is zero
    equal = num_pairs - wins - losses
    a = 2.0 * num_pairs
    b = -(wins + losses) * (1.0 - difference) + 2.0 * (losses + equal) * difference
    c = -losses * difference * (1.0 - difference)
    q = (-b + math.sqrt(max(0.0, b * b - 4.0 * a * c))) / (2.0 * a)
    q = min(max(q, 0.0, -difference), (1.0 - difference) / 2.0)
    variance = num_pairs * (2.0 * q + difference - difference * difference)
    return excess / math.sqrt(variance) if variance > 0.0 else math.copysign(math.inf, excess)


def return_test(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    margin_share: float,
    max_pairs: int,
    error_rate: float = ERROR_RATE,
) -> SequentialTest:
    """Test pairs of returns. The margin is a share of the spread: the mean absolute deviation of a policy's returns from
    their mean, averaged over both policies. It is estimated from the same pairs, and its uncertainty is part of the test."""
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    n = len(first)
    difference = second - first
    margins = margin_share * (np.abs(first - first.mean()) + np.abs(second - second.mean())) / 2.0
    bound, mean = _bound(n, max_pairs, error_rate), float(np.mean(difference))
    reach = bound * _standard_error(difference) if n >= MIN_RETURN_PAIRS else None
    return SequentialTest(
        answer=Answer.CANNOT_TELL if reach is None else _answer(_mean_score(difference + margins), bound),
        num_pairs=n,
        difference=mean,
        low=None if reach is None else mean - reach,
        high=None if reach is None else mean + reach,
        margin=float(np.mean(margins)),
        error_rate=error_rate,
    )


def _mean_score(values: npt.NDArray[np.float64]) -> float:
    mean, error = float(np.mean(values)), _standard_error(values)
    if error == 0.0:
        return math.inf if mean >= 0.0 else -math.inf
    return mean / error


def _standard_error(values: npt.NDArray[np.float64]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _bound(num_pairs: int, max_pairs: int, error_rate: float) -> float:
    """The score that decides: high at first, falling to that of one test with half the error rate after the last pair."""
    return NormalDist().inv_cdf(1.0 - error_rate / 2.0) * math.sqrt(max_pairs / num_pairs)


def _answer(score: float, bound: float) -> Answer:
    if score >= bound:
        return Answer.NOT_WORSE
    return Answer.WORSE if score <= -bound else Answer.CANNOT_TELL


def _crossing(is_above: Callable[[float], bool]) -> float:
    """The smallest difference from which on the condition holds. Bisection between -1 and 1."""
    low, high = -1.0, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2.0
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2.0
