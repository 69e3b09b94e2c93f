"""The sequential test of pairs of scored episodes: of two policies, is B worse than A by more than a margin?"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.errors import UsageError
from dovetail.core.figures import EpisodeScore
from dovetail.core.sequential_test import SequentialTest, return_test, success_test

__all__ = ["MARGIN_POINTS", "MARGIN_SPREAD", "ScoredPair", "measure_of", "pair_test"]

MARGIN_POINTS = 5.0  # of success
MARGIN_SPREAD = 25.0  # percent of the spread of returns

ScoredPair = tuple[EpisodeScore, EpisodeScore]  # of A and B


def measure_of(scores: Sequence[ScoredPair]) -> str:
    """`success`, or `return` where the environment has no success."""
    known = any(score.success is not None for pair in scores for score in pair)
    return "success" if known else "return"


def pair_test(scores: Sequence[ScoredPair], *, margin_percent: float | None, max_pairs: int) -> SequentialTest:
    """Test all pairs so far. `margin_percent` None: the default of the measure."""
    if not scores:
        raise UsageError("the comparison was stopped before its first pair of episodes ended")
    if measure_of(scores) == "success":
        points = MARGIN_POINTS if margin_percent is None else margin_percent
        pairs = [(bool(a.success), bool(b.success)) for a, b in scores]
        return success_test(pairs, margin=points / 100.0, max_pairs=max_pairs)
    share = (MARGIN_SPREAD if margin_percent is None else margin_percent) / 100.0
    return return_test(*_returns(scores), margin_share=share, max_pairs=max_pairs)


def _returns(scores: Sequence[ScoredPair]) -> tuple[list[float], list[float]]:
    pairs = [(a.total_reward, b.total_reward) for a, b in scores]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < len(pairs):
        raise UsageError("the episodes have neither a success nor a reward, so they cannot be compared")
    return [a for a, _ in known], [b for _, b in known]
