"""The answers of the sequential test are right as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.core.sequential_test import Answer, return_test, success_answer, success_score, success_test

MARGIN, MAX_PAIRS = 0.05, 200


def played(
    rate_a: float, rate_b: float, rng: np.random.Generator, *, dependence: float = 0.0
) -> tuple[Answer, int]:
    """Compare two policies with these success rates. `dependence` 1: resets alone decide, -1: the opposite resets."""
    u, v = rng.random((2, MAX_PAIRS))
    v = np.where(rng.random(MAX_PAIRS) < abs(dependence), u if dependence > 0 else 1.0 - u, v)
    a, b = u < rate_a, v < rate_b
    wins, losses = np.cumsum(b & ~a).tolist(), np.cumsum(a & ~b).tolist()
    for num_pairs in range(1, MAX_PAIRS + 1):
        counts = wins[num_pairs - 1], losses[num_pairs - 1], num_pairs
        answer = success_answer(*counts, margin=MARGIN, max_pairs=MAX_PAIRS)
        if answer is not Answer.CANNOT_TELL:
            break
    return answer, num_pairs


def policies(difference: float, rng: np.random.Generator) -> list[tuple[float, float]]:
    """200 pairs of policies, both between 60 and 90 %."""
    lower = rng.uniform(0.6, 0.9 - abs(difference), 200)
    return [
        (float(p), float(p + difference)) if difference > 0 else (float(p - difference), float(p)) for p in lower
    ]


def test_200_policies_worse_by_10_points_rarely_pass() -> None:
    rng = np.random.default_rng(0)
    answers = [played(a, b, rng)[0] for a, b in policies(-0.10, rng)]
    assert answers.count(Answer.NOT_WORSE) <= 0.05 * 200
    assert answers.count(Answer.WORSE) > 0


def test_200_policies_better_by_10_points_pass_within_200_episodes() -> None:
    rng = np.random.default_rng(1)
    results = [played(a, b, rng) for a, b in policies(0.10, rng)]
    assert sum(answer is Answer.NOT_WORSE for answer, _ in results) >= 0.90 * 200
    assert np.mean([num_pairs for _, num_pairs in results]) < 0.7 * MAX_PAIRS  # it stops early


@pytest.mark.extended
@pytest.mark.parametrize("dependence", [-0.9, 0.0, 0.9])
@pytest.mark.parametrize("rate_a", [0.55, 0.8, 0.97])
def test_both_errors_stay_below_5_percent_at_the_margin(rate_a: float, dependence: float) -> None:
    """The hardest case: B is worse by exactly the margin. 1000 comparisons, so 5 % are seen as at most 6.8 %."""
    rng = np.random.default_rng(2)
    answers = [played(rate_a, rate_a - MARGIN, rng, dependence=dependence)[0] for _ in range(1000)]
    most = 1000 * (0.05 + 2.6 * math.sqrt(0.05 * 0.95 / 1000))
    assert answers.count(Answer.NOT_WORSE) <= most
    assert answers.count(Answer.WORSE) <= most


def test_success_score_equals_numbers_worked_out_by_hand() -> None:
    # no unequal pair in 100: the difference -0.05 needs P(loss) = 0.05, so the variance is 100 (0.05 - 0.0025) = 4.75
    assert success_score(0, 0, 100, difference=-0.05) == pytest.approx((5 - 0.5) / math.sqrt(4.75))
    # at a difference of 0 the unequal pairs are divided equally: McNemar's test with its continuity correction
    assert success_score(15, 5, 100, difference=0.0) == pytest.approx((10 - 0.5) / math.sqrt(20))
    assert success_score(5, 15, 100, difference=0.0) == pytest.approx(-(10 - 0.5) / math.sqrt(20))


def test_pairs_that_always_agree_pass_after_131() -> None:
    """Without any unequal pair, the score reaches the bound 1.96 sqrt(200 / n) at n = 131."""
    for num_pairs, answer in ((130, Answer.CANNOT_TELL), (131, Answer.NOT_WORSE)):
        assert success_test([(True, True)] * num_pairs, margin=0.05, max_pairs=200).answer is answer


def test_interval_agrees_with_the_answer() -> None:
    rng = np.random.default_rng(3)
    for rates in ((0.9, 0.5), (0.6, 0.9), (0.8, 0.75)):
        pairs = [(bool(a), bool(b)) for a, b in rng.random((150, 2)) < rates]
        test = success_test(pairs, margin=MARGIN, max_pairs=MAX_PAIRS)
        assert test.low is not None and test.high is not None
        assert test.low < test.difference < test.high
        expected = (
            Answer.NOT_WORSE if test.low > -MARGIN else Answer.WORSE if test.high < -MARGIN else Answer.CANNOT_TELL
        )
        assert test.answer is expected


def test_policy_that_always_fails_is_found_within_35_pairs() -> None:
    assert success_test([(True, False)] * 35, margin=MARGIN, max_pairs=MAX_PAIRS).answer is Answer.WORSE


@pytest.mark.parametrize(
    ("shift", "answer"), [(1.0, Answer.NOT_WORSE), (0.0, Answer.NOT_WORSE), (-1.0, Answer.WORSE)]
)
def test_returns_of_the_same_resets_are_compared(shift: float, answer: Answer) -> None:
    rng = np.random.default_rng(4)
    resets = rng.normal(-200.0, 50.0, 100)
    a, b = resets + rng.normal(0.0, 1.0, 100), resets + rng.normal(0.0, 1.0, 100) + 50.0 * shift
    test = return_test(a, b, margin_share=0.25, max_pairs=200)
    assert test.answer is answer
    assert test.margin == pytest.approx(0.25 * 50.0 * math.sqrt(2 / math.pi), rel=0.2)  # of a normal distribution


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_returns_worse_by_the_margin_rarely_pass(shared: float) -> None:
    rng = np.random.default_rng(5)
    passed = 0
    for _ in range(200):
        reset = rng.normal(size=(100, 1)) * math.sqrt(shared)
        a, b = (reset + rng.normal(size=(100, 2)) * math.sqrt(1.0 - shared)).T
        b = b - 0.25 * math.sqrt(2 / math.pi)
        tests = (return_test(a[:n], b[:n], margin_share=0.25, max_pairs=100) for n in range(10, 101, 5))
        passed += (
            next((one.answer for one in tests if one.answer is not Answer.CANNOT_TELL), None) is Answer.NOT_WORSE
        )
    assert passed <= 200 * 0.05 + 2.6 * math.sqrt(200 * 0.05 * 0.95)


def test_equal_constant_returns_are_not_worse_and_lower_ones_are() -> None:
    same = return_test([3.0] * 20, [3.0] * 20, margin_share=0.25, max_pairs=200)
    lower = return_test([3.0] * 20, [2.0] * 20, margin_share=0.25, max_pairs=200)
    assert (same.answer, lower.answer) == (Answer.NOT_WORSE, Answer.WORSE)


def test_few_returns_give_no_answer() -> None:
    assert return_test([0.0] * 9, [9.0] * 9, margin_share=0.25, max_pairs=200).answer is Answer.CANNOT_TELL
