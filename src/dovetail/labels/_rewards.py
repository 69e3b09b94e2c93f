"""From a judgement to the numbers that a learner wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode, Outcome

__all__ = ["at_the_end", "changes", "check_labelable", "discounts", "discounts_of"]


def check_labelable(episode: Episode) -> None:
    if Outcome.ABORTED in (episode.outcome, episode.judgement):
        raise UsageError(f"episode {episode.id} was aborted: it never trains, so it gets no labels")
    if len(episode) == 0:
        raise UsageError(f"episode {episode.id} has no steps to label")


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


def discounts(episode: Episode, outcome: Outcome) -> Array:
    """0 after a true end, by who decides how it ended: see `discounts_of`."""
    return discounts_of(len(episode), recorded=episode.outcome, decided=outcome)


def discounts_of(num_steps: int, *, recorded: Outcome, decided: Outcome) -> Array:
    """0 after a true end. A timeout that is called a failure is still one: it only stopped the recording, and what could
    have followed keeps its value."""
    values = np.ones(num_steps, np.float32)
    if decided is Outcome.SUCCESS or Outcome.TIMEOUT not in (decided, recorded):
        values[-1] = 0.0
    return values
