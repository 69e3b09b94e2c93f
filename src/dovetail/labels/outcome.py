"""Rewards by how the episode ended: what the task said, or what the operator said over it."""

from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode, Labels, Outcome

__all__ = ["OutcomeConfig", "OutcomeLabeler"]


class OutcomeConfig(Config):
    success_reward: float = 1.0
    """Given at the last step of a success."""
    failure_reward: float = 0.0
    """Given at the last step of a failure; a timeout is not one."""
    step_penalty: float = Field(default=0.0, ge=0.0)
    """Taken off at every step, so that sooner is better."""
    dense: bool = False
    """Use the sum of the task's own reward components instead of the two rewards above."""
    operator_wins: bool = True
    """The operator's judgement, where there is one, overrules the task's verdict."""


class OutcomeLabeler:
    """Sparse by default: the outcome at the last step, nothing before it.

    Success and failure are true ends: nothing comes after, the discount is 0. A timeout only stopped the
    recording: its discount stays 1 and the value of the last observation counts.
    """

    Config: ClassVar[type[OutcomeConfig]] = OutcomeConfig

    def __init__(self, config: OutcomeConfig | None = None) -> None:
        self._config = config or OutcomeConfig()
        settings = hashlib.sha256(self._config.model_dump_json().encode()).hexdigest()[:8]
        self._version = f"1-{settings}"  # other settings, other labels

    def label(self, episode: Episode) -> Labels:
        outcome = self._outcome(episode)
        num_steps = len(episode)
        if num_steps == 0:
            raise UsageError(f"episode {episode.id} has no steps to label")
        rewards = self._dense(episode) if self._config.dense else self._sparse(num_steps, outcome)
        discounts = np.ones(num_steps, np.float32)
        # a timeout that a person calls a failure is still a timeout: what could have followed keeps its value
        timeout = Outcome.TIMEOUT in (outcome, episode.outcome)
        if outcome is Outcome.SUCCESS or not timeout:
            discounts[-1] = 0.0
        return Labels(
            episode_id=episode.id,
            rewards=rewards - np.float32(self._config.step_penalty),
            discounts=discounts,
            success=outcome is Outcome.SUCCESS,
            confidence=1.0,
            labeler="outcome",
            version=self._version,
        )

    def _outcome(self, episode: Episode) -> Outcome:
        """Who decides how it ended. An abort, or an operator's wish to discard, is not up for overruling."""
        if Outcome.ABORTED in (episode.outcome, episode.judgement):
            raise UsageError(f"episode {episode.id} was aborted: it never trains, so it gets no labels")
        if self._config.operator_wins and episode.judgement is not None:
            return episode.judgement
        return episode.outcome

    def _sparse(self, num_steps: int, outcome: Outcome) -> Array:
        rewards = np.zeros(num_steps, np.float32)
        if outcome is Outcome.SUCCESS:
            rewards[-1] = self._config.success_reward
        elif outcome is Outcome.FAILURE:
            rewards[-1] = self._config.failure_reward
        return rewards

    def _dense(self, episode: Episode) -> Array:
        names = sorted(name for name in episode.segments[0].columns if name.startswith("reward/"))
        if not names:
            raise UsageError(f"episode {episode.id} of task '{episode.task}' has no reward components for `dense`")
        total: Array = np.stack([episode.column(name) for name in names]).sum(axis=0).astype(np.float32)
        return total
