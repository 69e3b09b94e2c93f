"""From a network's number to a probability that means what it says, and to a threshold; and how good both are.

numpy alone: what is worked out here can be worked out by hand.
"""

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
    """Platt's scaling (1999): temperature and shift by maximum likelihood, on frames that nothing was trained on.

    A shift too, because training sees both kinds equally often and life does not. What is fitted to is not quite 0 and 1
    but what so many examples can vouch for, (n + 1) / (n + 2): examples that are told apart without a mistake still give
    a finite answer.
    """
    x, yes = np.asarray(logits, np.float64), np.asarray(truth, bool)
    num_yes, num_no = int(yes.sum()), int((~yes).sum())
    target = np.where(yes, (num_yes + 1) / (num_yes + 2), 1 / (num_no + 2))
    design = np.stack([x, np.ones_like(x)], axis=1)  # [N, 2]
    found = np.array([0.0, np.log((num_yes + 1) / (num_no + 1))])
    loss = _loss(design @ found, target)
    for _ in range(_MAX_ROUNDS):  # Newton, each step halved until it helps
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
    # where examples say that higher is less likely there is nothing to calibrate: all get the share there was
    return Calibration(scale=scale, shift=shift) if scale > 0 else Calibration(scale=0.0, shift=_logit(yes.mean()))


def choose_threshold(probabilities: Array, truth: Array, *, precision: float) -> tuple[float, float]:
    """Where to say yes: no less precise than wanted, and then as seldom wrong about a true one as that allows.

    Returns the threshold and the precision that it has here; where none is precise enough, those of the most precise.
    It lies between two examples, three quarters of the way to the higher one, so that neither decides by a hair and what
    is in doubt is a no; and never below a half.
    """
    p, yes = np.asarray(probabilities, np.float64), np.asarray(truth, bool)
    levels = np.unique(p)  # sorted
    between = levels[:-1] + 0.75 * np.diff(levels)
    edges = np.unique(np.maximum(np.concatenate([levels[:1], between]), 0.5))
    best: tuple[tuple[float, ...], float, float] | None = None
    for edge in edges:
        said = p >= edge
        if not said.any():
            continue
        found_precision, found_recall = precision_recall(said, yes)
        enough = found_precision >= precision
        rank = (float(enough), found_recall if enough else found_precision, found_precision)
        if best is None or rank >= best[0]:  # of equals the strictest
            best = (rank, float(edge), found_precision)
    if best is None:  # it never says yes
        return 0.5, 0.0
    return best[1], best[2]


def precision_recall(said: Array, truth: Array) -> tuple[float, float]:
    """Of those it said yes to, how many are; of those that are, how many it said yes to. None said: precision 0."""
    hits = float(np.sum(said & truth))
    return hits / max(1.0, float(np.sum(said))), hits / max(1.0, float(np.sum(truth)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What each threshold would give, from the strictest on: [K]."""

    thresholds: Array
    false_positive_rate: Array
    recall: Array  # the true positive rate
    precision: Array


def curve(probabilities: Array, truth: Array) -> Curve:
    """Receiver operating characteristic, and precision against recall; it begins where nothing is said yes to."""
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
    """How often a true one stands above a false one, ties counted half; NaN where there are not both."""
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
