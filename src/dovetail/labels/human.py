"""Rewards by a person: done, not done, or never to be learned from. What a person says counts above all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.errors import LabelError, UsageError
from dovetail.core.types import Array, Episode, Labels, Outcome
from dovetail.labels._rewards import at_the_end, discounts_of

__all__ = ["HUMAN", "HumanConfig", "HumanLabeler", "Mark", "human_labels"]

HUMAN = "human"
_PRIORITY = 100  # whatever a machine says after it

_WORDS = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A range of steps that a person gave a reward, shared out evenly among them: a longer range pays no more."""

    first: int
    last: int  # included
    reward: float


def human_labels(
    episode_id: str,
    *,
    num_steps: int,
    outcome: Outcome,
    judgement: Outcome,
    by: str,
    marks: Sequence[Mark] = (),
) -> Labels:
    """What a person said of an episode of so many steps that was recorded to end in `outcome`.

    `judgement`: success, failure, or aborted: then it is discarded and never trains. `by`, a name or what else tells
    people apart, stands where a machine's labels have a version. The last step of a success earns 1, beside the marks.
    To undo it, `LabelStore.retract` what was said.
    """
    if judgement not in _WORDS:
        raise UsageError(f"a person says success, failure or aborted (discard), not {judgement!s}")
    if num_steps < 1:
        raise UsageError(f"episode {episode_id} has no steps to label")
    if outcome is Outcome.ABORTED:
        raise UsageError(f"episode {episode_id} was aborted: it never trains, so it gets no labels")
    return Labels(
        episode_id=episode_id,
        rewards=_marked(at_the_end(num_steps, float(judgement is Outcome.SUCCESS)), marks),
        discounts=discounts_of(num_steps, recorded=outcome, decided=judgement),
        success=judgement is Outcome.SUCCESS,
        confidence=1.0,
        labeler=HUMAN,
        version=by,
        priority=_PRIORITY,
        discard=judgement is Outcome.ABORTED,
    )


def _marked(rewards: Array, marks: Sequence[Mark]) -> Array:
    for mark in marks:
        if not 0 <= mark.first <= mark.last < len(rewards):
            raise UsageError(
                f"a mark from step {mark.first} to {mark.last} is not in an episode of {len(rewards)} steps"
            )
        if not np.isfinite(mark.reward):
            raise UsageError(f"the reward of a mark should be a number, got {mark.reward}")
        rewards[mark.first : mark.last + 1] += np.float32(mark.reward / (mark.last + 1 - mark.first))
    return rewards


class HumanConfig(Config):
    pass


class HumanLabeler:
    """Stands in a list of labelers for "ask a person": the episode waits in the queue, and nothing else does."""

    Config: ClassVar[type[HumanConfig]] = HumanConfig
    asks_person: ClassVar[bool] = True
    rewards_at_the_end: ClassVar[bool] = True

    def __init__(self, config: HumanConfig | None = None) -> None:
        self._config = config or HumanConfig()

    def label(self, episode: Episode) -> Labels:
        raise LabelError(f"episode {episode.id} waits for a person: label it in `dovetail console RUN`")
