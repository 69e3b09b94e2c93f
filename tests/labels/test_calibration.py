"""Probabilities, thresholds and curves against numbers worked out by hand."""

import numpy as np
import pytest

from dovetail.labels.learned.calibration import (
    Calibration,
    auc,
    choose_threshold,
    curve,
    fit_calibration,
    precision_recall,
)

P = np.array([0.95, 0.9, 0.8, 0.7, 0.6, 0.2])
TRUE = np.array([True, True, False, True, False, False])


def test_precision_and_recall():
    predicted, truth = np.array([True, True, False, True]), np.array([True, False, True, True])
    assert precision_recall(predicted, truth) == pytest.approx((2 / 3, 2 / 3))
    assert precision_recall(np.zeros(4, bool), truth) == (0.0, 0.0)


def test_auc_is_share_of_correctly_ordered_pairs():
    # of 3 x 3 pairs, only 0.7 stands below a false one, 0.8
    assert auc(P, TRUE) == pytest.approx(8 / 9)
    assert auc(np.array([0.5, 0.5]), np.array([True, False])) == pytest.approx(0.5)
    assert np.isnan(auc(P, np.ones(6, bool)))


def test_curve_has_one_point_per_level():
    found = curve(P, TRUE)
    assert found.recall == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 1, 1, 1])
    assert found.false_positive_rate == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 2 / 3, 1])
    assert found.precision == pytest.approx([1, 1, 1, 2 / 3, 3 / 4, 3 / 5, 1 / 2])


def test_threshold_has_required_precision_and_best_recall():
    # without a mistake: above 0.8, three quarters of the way to 0.9
    assert choose_threshold(P, TRUE, precision=1.0) == pytest.approx((0.875, 1.0))
    # with three of four right, all are found: above 0.6
    assert choose_threshold(P, TRUE, precision=0.7) == pytest.approx((0.675, 0.75))


def test_threshold_is_at_least_half():
    p, truth = np.array([0.3, 0.2, 0.9]), np.array([True, False, True])
    assert choose_threshold(p, truth, precision=0.9)[0] >= 0.5


def test_most_precise_threshold_is_used_if_none_is_precise_enough():
    threshold, precision = choose_threshold(np.array([0.9, 0.8]), np.array([False, True]), precision=0.98)
    assert (threshold, precision) == pytest.approx((0.8, 0.5))


def test_threshold_exists_without_predicted_successes():
    assert choose_threshold(np.array([0.1, 0.2]), np.array([False, True]), precision=0.98) == (0.5, 0.0)


def test_calibrated_probability_is_share_of_successes():
    # at +1, 8 of 10 are true, at -1 one of 10: two numbers to fit, two to fit them with. What is fitted to is
    # (9 + 1) / (9 + 2) for a true one and 1 / (11 + 2) for another.
    logits = np.array([1.0] * 10 + [-1.0] * 10)
    truth = np.array([True] * 8 + [False] * 2 + [True] + [False] * 9)
    found = fit_calibration(logits, truth)
    high = (8 * 10 / 11 + 2 / 13) / 10
    low = (1 * 10 / 11 + 9 / 13) / 10
    assert found(np.array([1.0, -1.0])) == pytest.approx([high, low], abs=1e-6)


def test_overconfident_network_gets_scale_below_one():
    rng = np.random.default_rng(0)
    honest = rng.normal(0, 2, 4000)
    truth = rng.random(4000) < 1 / (1 + np.exp(-honest))
    found = fit_calibration(5 * honest, truth)
    assert found.scale == pytest.approx(0.2, rel=0.15)
    assert found.shift == pytest.approx(0.0, abs=0.15)


def test_separable_examples_give_finite_calibration():
    found = fit_calibration(np.array([8.0, 9.0, -8.0, -9.0]), np.array([True, True, False, False]))
    assert np.isfinite([found.scale, found.shift]).all()
    assert 0.6 < found(np.array([9.0]))[0] < 0.8  # two examples vouch for three quarters, no more


def test_inverted_network_gives_constant_probability():
    found = fit_calibration(np.array([-3.0, -2.0, 2.0, 3.0]), np.array([True, True, False, False]))
    assert found.scale == 0.0
    assert found(np.array([-5.0, 5.0])) == pytest.approx([0.5, 0.5])


def test_calibration_is_a_sigmoid():
    assert Calibration(scale=2.0, shift=-1.0)(np.array([0.5, 1000.0, -1000.0])) == pytest.approx([0.5, 1.0, 0.0])
