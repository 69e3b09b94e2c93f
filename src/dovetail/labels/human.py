"""Labels by a person: success, failure or discard. They have priority over all other labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dovetail.config.model import Config
from dovetail.core.errors import LabelError, UsageError
from dovetail.core.types import Array, Episode, Labels, Outcome
from dovetail.labels._rewards import discounts_of, end_reward

__all__ = ["HUMAN", "HumanConfig", "HumanLabeler", "Mark", "human_labels"]

HUMAN = "human"
_PRIORITY = 100  # higher than any machine's labels

_JUDGEMENTS = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A reward by a person for a range of steps. It is divided evenly among them."""

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
    """Return a person's labels for an episode of `num_steps` steps with the recorded `outcome`.

    `judgement` is success, failure or aborted (discard: never train on it). `by` names the person and takes the place of a
    version. The last step of a success earns 1, in addition to the marks. `LabelStore.retract` undoes the labels.
    """
    if judgement not in _JUDGEMENTS:
        raise UsageError(f"a person's label must be success, failure or aborted (discard), not {judgement!s}")
    if num_steps < 1:
        raise UsageError(f"episode {episode_id} has no steps to label")
    if outcome is Outcome.ABORTED:
        raise UsageError(f"episode {episode_id} was aborted and cannot be labeled")
    return Labels(
        episode_id=episode_id,
        rewards=_marked(end_reward(num_steps, float(judgement is Outcome.SUCCESS)), marks),
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
                f"a mark from step {mark.first} to {mark.last} does not fit an episode of {len(rewards)} steps"
            )
        if not np.isfinite(mark.reward):
            raise UsageError(f"the reward of a mark must be finite, got {mark.reward}")
        rewards[mark.first : mark.last + 1] += np.float32(mark.reward / (mark.last + 1 - mark.first))
    return rewards


class HumanConfig(Config):
    pass


class HumanLabeler:
    """Entry in a list of labelers that means "ask a person": the episode waits in the labeling queue."""

    Config: ClassVar[type[HumanConfig]] = HumanConfig
    asks_person: ClassVar[bool] = True
    rewards_at_the_end: ClassVar[bool] = True

    def __init__(self, config: HumanConfig | None = None) -> None:
        self._config = config or HumanConfig()

    def label(self, episode: Episode) -> Labels:
        raise LabelError(f"episode {episode.id} waits for a person. Label it in `dovetail console RUN`.")
