"""Agreement of labelers on the success of episodes: counts, Cohen's kappa, precision and recall."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.labels._label_file import LabelRecord
from dovetail.labels.human import HUMAN

__all__ = ["Agreement", "agreements", "verdicts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Confusion matrix of two labelers on the episodes that both have labeled."""

    first: str
    second: str
    both_success: int
    both_failure: int
    only_first: int  # success according to the first labeler only
    only_second: int

    @property
    def num_episodes(self) -> int:
        return self.both_success + self.both_failure + self.only_first + self.only_second

    @property
    def share(self) -> float | None:
        """Share of the episodes on which they agree."""
        return _ratio(self.both_success + self.both_failure, self.num_episodes)

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa: 1 if they always agree, 0 if they agree as often as by chance.

        None if both gave all episodes the same label, because then agreement by chance is certain.
        """
        n = self.num_episodes
        first = self.both_success + self.only_first
        second = self.both_success + self.only_second
        # integers, multiplied by n squared, so that certain agreement by chance is detected exactly
        by_chance = first * second + (n - first) * (n - second)
        return _ratio((self.both_success + self.both_failure) * n - by_chance, n * n - by_chance)

    @property
    def precision(self) -> float | None:
        """Share of the first labeler's successes that are successes of the second."""
        return _ratio(self.both_success, self.both_success + self.only_first)

    @property
    def recall(self) -> float | None:
        """Share of the second labeler's successes that are successes of the first."""
        return _ratio(self.both_success, self.both_success + self.only_second)


def verdicts(history: Iterable[LabelRecord]) -> dict[str, bool]:
    """Return the last success label of each labeler, of any version or priority, without retracted ones.

    A labeler that discarded the episode has none.
    """
    success: dict[str, bool] = {}
    for record in history:
        if record.retracted:
            continue
        success.pop(record.labels.labeler, None)
        if not record.labels.discard:
            success[record.labels.labeler] = record.labels.success
    return success


def agreements(episodes: Sequence[Mapping[str, bool]]) -> list[Agreement]:
    """Return the agreement of every two labelers with common episodes; `human`, as the reference, comes second."""
    names = sorted({name for labels in episodes for name in labels}, key=lambda name: (name == HUMAN, name))
    found = []
    for first, second in itertools.combinations(names, 2):
        pairs = [(labels[first], labels[second]) for labels in episodes if first in labels and second in labels]
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
