"""How far labelers agree on which episodes were a success: counts, Cohen's kappa, precision and recall."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.labels._lines import LabelRecord
from dovetail.labels.human import HUMAN

__all__ = ["Agreement", "agreements", "verdicts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Two labelers on the episodes that both have judged: the four counts of a confusion matrix."""

    first: str
    second: str
    both_success: int
    both_failure: int
    only_first: int  # called a success by the first alone
    only_second: int

    @property
    def num_episodes(self) -> int:
        return self.both_success + self.both_failure + self.only_first + self.only_second

    @property
    def share(self) -> float | None:
        """Of the episodes on which they agree."""
        return _ratio(self.both_success + self.both_failure, self.num_episodes)

    @property
    def kappa(self) -> float | None:
        """Cohen's: 1 if they always agree, 0 if no more often than by chance. None where chance alone would agree on
        everything, because both gave all episodes the same verdict: then agreeing shows nothing."""
        n = self.num_episodes
        first = self.both_success + self.only_first
        second = self.both_success + self.only_second
        # whole numbers, times n squared: that chance agrees on everything is then told exactly
        by_chance = first * second + (n - first) * (n - second)
        return _ratio((self.both_success + self.both_failure) * n - by_chance, n * n - by_chance)

    @property
    def precision(self) -> float | None:
        """Of what the first calls a success, the share that is one to the second."""
        return _ratio(self.both_success, self.both_success + self.only_first)

    @property
    def recall(self) -> float | None:
        """Of the successes of the second, the share that the first has found."""
        return _ratio(self.both_success, self.both_success + self.only_second)


def verdicts(history: Iterable[LabelRecord]) -> dict[str, bool]:
    """What each labeler said last of an episode and has not taken back, in whatever version or priority.

    A person who discards an episode says neither success nor failure.
    """
    said: dict[str, bool] = {}
    for record in history:
        if record.retracted:
            continue
        said.pop(record.labels.labeler, None)
        if not record.labels.discard:
            said[record.labels.labeler] = record.labels.success
    return said


def agreements(episodes: Sequence[Mapping[str, bool]]) -> list[Agreement]:
    """Of every two labelers that have judged an episode in common; a person comes second, as who knows."""
    names = sorted({name for said in episodes for name in said}, key=lambda name: (name == HUMAN, name))
    found = []
    for first, second in itertools.combinations(names, 2):
        pairs = [(said[first], said[second]) for said in episodes if first in said and second in said]
        if pairs:
            found.append(
                Agreement(
                    first=first,
                    second=second,
                    both_success=pairs.count((True, True)),
                    both_failure=pairs.count((False, False)),
                    only_first=pairs.count((True, False)),
                    only_second=pairs.count((False, True)),
                )
            )
    return found


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
