"""Rewards and discounts for an episode's success, progress or stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from dovetail.config.model import Config
from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.types import Array, Episode, Outcome

__all__ = [
    "Stage",
    "check_labelable",
    "check_stages",
    "discounts",
    "discounts_of",
    "end_reward",
    "interpolate_progress",
    "progress_rewards",
    "stages",
]


def check_labelable(episode: Episode) -> None:
    if Outcome.ABORTED in (episode.outcome, episode.judgement):
        raise UsageError(f"episode {episode.id} was aborted and cannot be labeled")
    if len(episode) == 0:
        raise UsageError(f"episode {episode.id} has no steps to label")


def end_reward(num_steps: int, reward: float) -> Array:
    """Return rewards that are zero before the last step."""
    rewards = np.zeros(num_steps, np.float32)
    rewards[-1] = reward
    return rewards


def progress_rewards(num_steps: int, rows: Sequence[int], progress: Sequence[float]) -> Array:
    """Return the progress that each step added; it is known at some `rows` of the T + 1 observations.

    The progress itself would be a bad reward: its sum is larger for slower episodes.
    """
    return np.diff(interpolate_progress(num_steps, rows, progress)).astype(np.float32)


def interpolate_progress(num_steps: int, rows: Sequence[int], progress: Sequence[float]) -> Array:
    """Interpolate progress, known at some rows, to all T + 1 observations."""
    known: Array = np.interp(np.arange(num_steps + 1), rows, progress)
    return known


class Stage(Config):
    """An intermediate goal with a reward at the step that first reaches it."""

    at_least: float
    """Value of the metric that reaches the stage."""
    reward: float
    """Reward for reaching the stage."""
    metric: str = "completion"
    """One of the task's metrics, such as `grasped`; image labelers have only `completion`, the progress from 0 to 1."""


def check_stages(wanted: Sequence[Stage], names: Collection[str], *, who: str) -> None:
    """Raise UsageError if a stage uses a metric that does not exist."""
    for stage in wanted:
        if stage.metric not in names:
            raise UsageError(
                f"{who} has a stage with metric '{stage.metric}', which does not exist here."
                f"{did_you_mean(stage.metric, names)}"
            )


def stages(num_steps: int, wanted: Sequence[Stage], measured: Mapping[str, Array]) -> Array:
    """Return each stage's reward at the step that first reaches it.

    A metric has T values, one after each step, or T + 1 with the value before the first step. A stage that is reached before
    the first step gives no reward.
    """
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
    """Return discounts for the decided outcome; see `discounts_of`."""
    return discounts_of(len(episode), recorded=episode.outcome, decided=outcome)


def discounts_of(num_steps: int, *, recorded: Outcome, decided: Outcome) -> Array:
    """Return discounts that are 0 after a terminal step.

    A timeout stays a timeout if it is labeled a failure: only the recording stopped, so the value is still bootstrapped.
    """
    values = np.ones(num_steps, np.float32)
    if decided is Outcome.SUCCESS or Outcome.TIMEOUT not in (decided, recorded):
        values[-1] = 0.0
    return values
