"""What the coach is told at a look, and what one of its checks may find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

__all__ = ["UNKNOWN", "Answer", "EpisodeFacts", "Facts", "Finding", "Severity", "Tip", "Unknown"]


class Severity(IntEnum):
    HINT = 1  # it slows learning down, or will
    WARNING = 2  # like this nothing will be learned


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """What one episode of practice showed. What nobody knows is None."""

    success: bool  # as it was labelled
    rewarded: bool  # some step was worth more than nothing
    solved: bool | None = None  # as the task judged it, or whoever watched, and not those who label
    value: float | None = None  # its discounted return
    human_share: float = 0.0  # of its steps
    saturated: float | None = None  # share of the policy's action numbers that lie at a limit
    outside: Mapping[str, float] = field(default_factory=dict)  # by observation: share that normalisation cuts off
    versions_behind: int | None = None  # the weights that acted, behind the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known at one look."""

    settings: Mapping[str, object]  # of this run, by dotted key
    num_episodes: int  # online
    env_steps: int
    episodes: Sequence[EpisodeFacts]  # the latest of them, oldest first
    early_human: float | None = None  # human share of the first episodes
    metrics: Mapping[str, float] = field(default_factory=dict)  # the learner's, since the last look
    num_actions: int | None = None  # numbers that the policy draws for one action, or chunk
    best_value: float | None = None  # mean return-to-go of the best episode that is learned from
    lowest_value: float | None = None  # the least return-to-go of any
    largest_reward: float = 0.0  # without its sign
    sources: Mapping[str, float] = field(default_factory=dict)  # of each batch, who acted: demo, human, policy
    updates: int | None = None  # online
    owed: int = 0  # earned by online steps, and not done yet
    unpublished: int | None = None  # updates since the newest weights that the robot may have
    act_s: float | None = None  # lately, on a robot that real time passes for
    learn_s: float | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)  # episodes without labels, by why
    pinned: int | None = None  # version of the weights that somebody holds everybody to

    def lately(self, num: int) -> Sequence[EpisodeFacts]:
        return self.episodes[-num:]

    @property
    def success(self) -> float:
        """Share of the last episodes; 0 before the first."""
        latest = self.lately(20)
        return sum(episode.success for episode in latest) / max(1, len(latest))


@dataclass(frozen=True, slots=True)
class Tip:
    """One thing to try; with the setting that it is about, it is given only where there is such a setting."""

    text: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found."""

    severity: Severity
    message: str
    tips: tuple[Tip, ...]


class Unknown(Enum):
    """What a check says whose facts are missing: nothing for it, and nothing against it."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN

Answer = Finding | Unknown | None  # none: all is well
