"""The facts that the coach checks, and the findings of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

__all__ = ["UNKNOWN", "EpisodeFacts", "Facts", "Finding", "Result", "Severity", "Tip", "Unknown"]


class Severity(IntEnum):
    HINT = 1  # learning is slower than it could be
    WARNING = 2  # nothing will be learned like this


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """One online episode. None: unknown."""

    success: bool  # as labeled
    rewarded: bool  # some step has a reward above 0
    solved: bool | None = None  # as the task or the operator judged it, independently of the labels
    value: float | None = None  # discounted return
    human_share: float = 0.0  # share of the steps that a person took
    saturated: float | None = None  # share of the policy's action values at a limit
    outside: Mapping[str, float] = field(
        default_factory=dict
    )  # share of each observation that normalization clips
    versions_behind: int | None = None  # versions by which the acting weights were older than the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The state of a run at one check."""

    settings: Mapping[str, object]  # the run's config by dotted key
    num_episodes: int  # online episodes
    env_steps: int
    episodes: Sequence[EpisodeFacts]  # the latest online episodes, oldest first
    early_human: float | None = None  # human share of the first episodes
    metrics: Mapping[str, float] = field(default_factory=dict)  # the learner's, since the last check
    num_actions: int | None = None  # values that the policy samples for one action or chunk
    best_value: float | None = None  # mean return-to-go of the best episode in the training data
    lowest_value: float | None = None  # smallest return-to-go of any
    largest_reward: float = 0.0  # absolute value
    sources: Mapping[str, float] = field(default_factory=dict)  # shares of a batch: demo, human, policy
    updates: int | None = None  # online updates
    owed: int = 0  # updates that online steps have earned and that are not done yet
    unpublished: int | None = None  # updates since the newest weights that the robot may have
    act_s: float | None = None  # recent time spent acting, on a robot in real time
    learn_s: float | None = None  # recent time spent learning
    waiting: Mapping[str, int] = field(default_factory=dict)  # episodes without labels, by reason
    pinned: int | None = None  # version to which the weights are pinned

    def latest(self, num: int) -> Sequence[EpisodeFacts]:
        return self.episodes[-num:]

    @property
    def success(self) -> float:
        """Success rate of the last episodes; 0 before the first."""
        latest = self.latest(20)
        return sum(episode.success for episode in latest) / max(1, len(latest))


@dataclass(frozen=True, slots=True)
class Tip:
    """One thing to try. A tip about a setting is given only to runs that have the setting."""

    text: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that a check has found."""

    severity: Severity
    message: str
    tips: tuple[Tip, ...]


class Unknown(Enum):
    """The result of a check with missing facts."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN

Result = Finding | Unknown | None  # None: no problem
