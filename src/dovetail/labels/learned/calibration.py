"""Calibrate a network's logits to probabilities, choose a threshold, and measure both. Uses numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.core.types import Array

__all__ = ["Calibration", "Curve", "auc", "choose_threshold", "curve", "fit_calibration", "precision_recall"]

_MAX_ROUNDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """probability = sigmoid(scale * logit + shift)."""

    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, logits: Array) -> Array:
        return _sigmoid(self.scale * np.asarray(logits, np.float64) + self.shift)


def fit_calibration(logits: Array, truth: Array) -> Calibration:
    """Platt scaling (1999): scale and shift by maximum likelihood, on frames that were not used for training.

    The shift is needed because training samples both classes equally often. The targets are (n + 1) / (n + 2) and
    1 / (n + 2) instead of 1 and 0, so separable examples still give a finite result.
    """
    x, yes = np.asarray(logits, np.float64), np.asarray(truth, bool)
    num_yes, num_no = int(yes.sum()), int((~yes).sum())
    target = np.where(yes, (num_yes + 1) / (num_yes + 2), 1 / (num_no + 2))
    design = np.stack([x, np.ones_like(x)], axis=1)  # [N, 2]
    found = np.array([0.0, np.log((num_yes + 1) / (num_no + 1))])
    loss = _loss(design @ found, target)
    for _ in range(_MAX_ROUNDS):  # Newton's method; each step is halved until the loss decreases
        p = _sigmoid(design @ found)
        slope = design.T @ (p - target)
        bend = (design * (p * (1 - p))[:, None]).T @ design + 1e-9 * np.eye(2)
        step = np.linalg.solve(bend, slope)
        better = next(
            (
                (found - part * step, after)
                for part in 0.5 ** np.arange(12)
                if (after := _loss(design @ (found - part * step), target)) < loss - 1e-12
            ),
            None,
        )
        if better is None:
            break
        found, loss = better
    scale, shift = (float(value) for value in found)
    # a negative scale means that the logits are useless: every frame gets the share of successes
    return Calibration(scale=scale, shift=shift) if scale > 0 else Calibration(scale=0.0, shift=_logit(yes.mean()))


def choose_threshold(probabilities: Array, truth: Array, *, precision: float) -> tuple[float, float]:
    """Choose the threshold with the highest recall among those with at least the given precision.

    Returns the threshold and its precision on these examples; if none is precise enough, those of the most precise. The
    threshold lies between two examples, three quarters of the way to the higher one, and is at least 0.5.
    """
    p, yes = np.asarray(probabilities, np.float64), np.asarray(truth, bool)
    levels = np.unique(p)  # sorted
    between = levels[:-1] + 0.75 * np.diff(levels)
    edges = np.unique(np.maximum(np.concatenate([levels[:1], between]), 0.5))
    best: tuple[tuple[float, ...], float, float] | None = None
    for edge in edges:
        predicted = p >= edge
        if not predicted.any():
            continue
        found_precision, found_recall = precision_recall(predicted, yes)
        enough = found_precision >= precision
        rank = (float(enough), found_recall if enough else found_precision, found_precision)
        if best is None or rank >= best[0]:  # the highest of equally good ones
            best = (rank, float(edge), found_precision)
    if best is None:  # nothing is predicted as success
        return 0.5, 0.0
    return best[1], best[2]


def precision_recall(predicted: Array, truth: Array) -> tuple[float, float]:
    """Return precision and recall. Without predicted successes the precision is 0."""
    hits = float(np.sum(predicted & truth))
    return hits / max(1.0, float(np.sum(predicted))), hits / max(1.0, float(np.sum(truth)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Rates at each threshold [K], highest threshold first."""

    thresholds: Array
    false_positive_rate: Array
    recall: Array  # the true positive rate
    precision: Array


def curve(probabilities: Array, truth: Array) -> Curve:
    """Receiver operating characteristic and precision-recall curve; the first threshold is infinite."""
    p, yes = np.asarray(probabilities, np.float64), np.asarray(truth, bool)
    levels = np.unique(p)[::-1]
    hits = np.array([np.sum(yes & (p >= level)) for level in levels], np.float64)
    false = np.array([np.sum(~yes & (p >= level)) for level in levels], np.float64)
    return Curve(
        thresholds=np.concatenate([[np.inf], levels]),
        false_positive_rate=np.concatenate([[0.0], false / max(1, int((~yes).sum()))]),
        recall=np.concatenate([[0.0], hits / max(1, int(yes.sum()))]),
        precision=np.concatenate([[1.0], hits / (hits + false)]),
    )


def auc(probabilities: Array, truth: Array) -> float:
    """Area under the ROC curve; NaN unless both classes occur."""
    p, yes = np.asarray(probabilities, np.float64), np.asarray(truth, bool)
    if not yes.any() or yes.all():
        return float("nan")
    found = curve(p, yes)
    return float(np.trapezoid(found.recall, found.false_positive_rate))


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))  # never overflows


def _logit(share: float) -> float:
    share = min(max(float(share), 1e-6), 1 - 1e-6)
    return float(np.log(share / (1 - share)))


def _loss(x: Array, target: Array) -> float:
    """Cross-entropy, in a form that never overflows."""
    return float(np.sum(np.logaddexp(0.0, x) - target * x))
