"""From a judgement to the numbers that a learner wants."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from dovetail.config.model import Config
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.types import Array, Episode, Outcome

__all__ = [
    "Stage",
    "at_each",
    "at_the_end",
    "changes",
    "check_labelable",
    "check_stages",
    "discounts",
    "discounts_of",
    "stages",
]


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
    return np.diff(at_each(num_steps, rows, progress)).astype(np.float32)


def at_each(num_steps: int, rows: Sequence[int], progress: Sequence[float]) -> Array:
    """Progress at all of the T + 1 observations, from what is known of some."""
    known: Array = np.interp(np.arange(num_steps + 1), rows, progress)
    return known


class Stage(Config):
    """Something on the way that is worth a reward when it is first reached, whatever comes after."""

    at_least: float
    """Where the measure has to be."""
    reward: float
    metric: str = "completion"
    """What is measured: one of the task's metrics, such as `grasped` or `num_in_box`. A labeler that looks at pictures
    knows its own `completion` only: how far, from 0 to 1, it thinks that the task has come."""


def check_stages(wanted: Sequence[Stage], names: Collection[str], *, who: str) -> None:
    """Refuse stages that are told by what nobody measures."""
    for stage in wanted:
        if stage.metric not in names:
            raise UsageError(
                f"{who} has a stage of metric '{stage.metric}', which nobody measures here."
                f"{did_you_mean(stage.metric, names)}"
            )


def stages(num_steps: int, wanted: Sequence[Stage], measured: Mapping[str, Array]) -> Array:
    """Each stage's reward at the step that first reached it. A measure has T values, after each step, or T + 1, the first
    of them before any: what was so from the beginning is not earned."""
    check_stages(wanted, measured, who="the reward")
    rewards = np.zeros(num_steps, np.float32)
    for stage in wanted:
        values = np.asarray(measured[stage.metric])
        reached = np.flatnonzero(values >= stage.at_least)
        step = int(reached[0]) - (len(values) - num_steps) if len(reached) else -1
        if step >= 0:
            rewards[step] += np.float32(stage.reward)
    return rewards


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
