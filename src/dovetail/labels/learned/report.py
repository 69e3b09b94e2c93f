"""Scores of a classifier by frame and by episode, on training and on held-out episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dovetail.core.types import Array
from dovetail.labels.learned.calibration import auc, precision_recall
from dovetail.labels.learned.frames import UNSURE, YES
from dovetail.labels.learned.training import Trained, ends_in_success

__all__ = ["Mistake", "Score", "frames_of", "mistakes", "scores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Precision, recall and area under the ROC curve for `num` frames or episodes."""

    what: str  # "frames" or "episodes"
    held_out: bool
    num: int
    num_true: int
    precision: float
    recall: float
    auc: float
    errors: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A misclassified frame with its probability."""

    episode: int  # index
    frame: int  # index among the episode's frames
    probability: float
    truth: bool
    held_out: bool

    @property
    def off_by(self) -> float:
        return abs(self.probability - float(self.truth))


def scores(trained: Trained) -> list[Score]:
    """Return scores by episode and by frame, held-out ones first."""
    held = set(trained.held_out)
    sides = {True: sorted(held), False: [n for n in range(len(trained.episodes)) if n not in held]}
    found = []
    for what in ("episodes", "frames"):
        for is_held, places in sides.items():
            p, truth, predicted = (
                _by_episode(trained, places) if what == "episodes" else _by_frame(trained, places)
            )
            precision, recall = precision_recall(predicted, truth)
            found.append(
                Score(
                    what=what,
                    held_out=is_held,
                    num=len(truth),
                    num_true=int(truth.sum()),
                    precision=precision,
                    recall=recall,
                    auc=auc(p, truth),
                    errors=int((predicted != truth).sum()),
                )
            )
    return found


def frames_of(trained: Trained, places: Sequence[int]) -> tuple[Array, Array]:
    """Return probabilities and truth of the frames of some episodes, without unsure ones."""
    p, truth, _ = _by_frame(trained, places)
    return p, truth


def mistakes(trained: Trained, *, most: int) -> list[Mistake]:
    """Return misclassified frames, the worst first, then the frames nearest to the threshold.

    There is at most one frame per episode and class, so that one long mistake does not fill the page.
    """
    worst: dict[tuple[int, bool], Mistake] = {}
    held = set(trained.held_out)
    for place, (one, p) in enumerate(zip(trained.episodes, trained.probabilities, strict=True)):
        for frame in np.flatnonzero(one.truth != UNSURE):
            mistake = Mistake(
                episode=place,
                frame=int(frame),
                probability=float(p[frame]),
                truth=bool(one.truth[frame] == YES),
                held_out=place in held,
            )
            key = (place, mistake.truth)
            if key not in worst or mistake.off_by > worst[key].off_by:
                worst[key] = mistake
    wrong = [one for one in worst.values() if (one.probability >= trained.threshold) != one.truth]
    right = [one for one in worst.values() if (one.probability >= trained.threshold) == one.truth]
    ordered = sorted(wrong, key=lambda one: -one.off_by) + sorted(right, key=lambda one: -one.off_by)
    return ordered[:most]


def _by_frame(trained: Trained, places: Sequence[int]) -> tuple[Array, Array, Array]:
    sure = [trained.episodes[place].truth != UNSURE for place in places]
    p = np.concatenate([trained.probabilities[place][keep] for place, keep in zip(places, sure, strict=True)])
    truth = np.concatenate(
        [trained.episodes[place].truth[keep] == YES for place, keep in zip(places, sure, strict=True)]
    )
    return p, truth, p >= trained.threshold


def _by_episode(trained: Trained, places: Sequence[int]) -> tuple[Array, Array, Array]:
    """Classify episodes by their last frames, as the labeler does."""
    number = trained.config.consecutive
    p = np.array([trained.probabilities[place][-number:].min() for place in places])
    truth = np.array([trained.episodes[place].success for place in places])
    predicted = np.array(
        [
            ends_in_success(trained.probabilities[place], threshold=trained.threshold, consecutive=number)
            for place in places
        ]
    )
    return p, truth, predicted
