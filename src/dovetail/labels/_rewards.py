"""From a judgement to the numbers that a learner wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.core.types import Array, Episode, Outcome

__all__ = ["at_the_end", "changes", "discounts"]


def at_the_end(num_steps: int, reward: float) -> Array:
    """Nothing before the last step."""
    rewards = np.zeros(num_steps, np.float32)
    rewards[-1] = reward
    return rewards


def changes(num_steps: int, rows: Sequence[int], progress: Sequence[float]) -> Array:
    """What each step added to a progress that is known at some of the T + 1 observations. Never the progress itself:
    summed up, that would pay for dawdling."""
    at_each = np.interp(np.arange(num_steps + 1), rows, progress)
    return np.diff(at_each).astype(np.float32)


def discounts(episode: Episode, *, success: bool) -> Array:
    """0 after a true end. A timeout only stopped the recording, unless it was a success all the same."""
    values = np.ones(len(episode), np.float32)
    if success or episode.outcome is not Outcome.TIMEOUT:
        values[-1] = 0.0
    return values
