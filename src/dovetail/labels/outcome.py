"""Labels from the outcome of an episode: the task's verdict or the operator's judgement."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode, Labels, Outcome
from dovetail.labels._rewards import Stage, check_labelable, check_stages, discounts, end_reward, stages

__all__ = ["OutcomeConfig", "OutcomeLabeler"]


class OutcomeConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("success_reward",)

    success_reward: float = 1.0
    """Reward at the last step of a success."""
    failure_reward: float = 0.0
    """Reward at the last step of a failure. A timeout is not a failure."""
    step_penalty: float = Field(default=0.0, ge=0.0)
    """Subtracted from the reward of every step, so that faster episodes earn more."""
    dense: bool = False
    """Use the sum of the task's reward components instead of the two rewards above."""
    success_is_terminal: bool = True
    """No reward follows a success. False: the value of the last observation is bootstrapped, for a task that continues after
    success until its time limit."""
    stages: tuple[Stage, ...] = ()
    """Intermediate goals by the task's metrics, with additional rewards."""
    timeout_confidence: float = Field(default=1.0, ge=0.0, le=1.0)
    """Confidence that an episode without a verdict at the time limit is no success. Below labeling.min_confidence, the
    next labeler is asked."""
    operator_wins: bool = True
    """The operator's judgement, if there is one, overrides the task's verdict."""


class OutcomeLabeler:
    """By default rewards are sparse: only the last step has one.

    Success and failure are terminal: the discount is 0. A timeout only stops the recording: its discount stays 1, so the
    value of the last observation is bootstrapped.
    """

    Config: ClassVar[type[OutcomeConfig]] = OutcomeConfig
    repeats_outcome: ClassVar[bool] = True

    def __init__(self, config: OutcomeConfig | None = None) -> None:
        self._config = config or OutcomeConfig()

    @property
    def version(self) -> str:
        """Depends on all settings."""
        new = {"success_is_terminal"} if self._config.success_is_terminal else set()  # 0.6 did not have it
        new |= {"timeout_confidence"} if self._config.timeout_confidence == 1.0 else set()
        settings = self._config.model_dump_json(exclude=new)
        return f"1-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"

    def label(self, episode: Episode) -> Labels:
        check_labelable(episode)
        outcome = self._outcome(episode)
        rewards = self._dense(episode) if self._config.dense else self._sparse(len(episode), outcome)
        if self._config.stages:
            rewards = rewards + stages(len(episode), self._config.stages, _metrics(episode))
        return Labels(
            episode_id=episode.id,
            rewards=rewards - np.float32(self._config.step_penalty),
            discounts=self._discounts(episode, outcome),
            success=outcome is Outcome.SUCCESS,
            confidence=self._config.timeout_confidence if outcome is Outcome.TIMEOUT else 1.0,
            labeler="outcome",
            version=self.version,
        )

    @property
    def rewards_at_the_end(self) -> bool:
        """Whether all rewards before the last step are zero."""
        return not (self._config.dense or self._config.stages or self._config.step_penalty)

    @property
    def reads_metrics(self) -> bool:
        return bool(self._config.stages)

    def check_metrics(self, names: Collection[str]) -> None:
        """Raise UsageError if the task does not measure a stage's metric."""
        check_stages(self._config.stages, names, who="labeler 'outcome'")

    def _outcome(self, episode: Episode) -> Outcome:
        if self._config.operator_wins and episode.judgement is not None:
            return episode.judgement
        return episode.outcome

    def _sparse(self, num_steps: int, outcome: Outcome) -> Array:
        config = self._config
        earned = {Outcome.SUCCESS: config.success_reward, Outcome.FAILURE: config.failure_reward}
        return end_reward(num_steps, earned.get(outcome, 0.0))

    def _discounts(self, episode: Episode, outcome: Outcome) -> Array:
        if outcome is Outcome.SUCCESS and not self._config.success_is_terminal:
            return np.ones(len(episode), np.float32)
        return discounts(episode, outcome)

    def _dense(self, episode: Episode) -> Array:
        names = sorted(name for name in episode.segments[0].columns if name.startswith("reward/"))
        if not names:
            raise UsageError(
                f"episode {episode.id} of task '{episode.task}' has no reward components, which `dense` needs"
            )
        total: Array = np.stack([episode.column(name) for name in names]).sum(axis=0).astype(np.float32)
        return total


def _metrics(episode: Episode) -> dict[str, Array]:
    columns = episode.segments[0].columns
    return {name.removeprefix("metric/"): episode.column(name) for name in columns if name.startswith("metric/")}
