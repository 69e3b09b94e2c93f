"""The facts that the coach checks, and the findings of a check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

__all__ = [
    "FEW",
    "MANY",
    "UNKNOWN",
    "Change",
    "DemoFacts",
    "EpisodeFacts",
    "Facts",
    "Finding",
    "Offers",
    "Result",
    "Severity",
    "Unknown",
]

FEW, MANY = 10, 20  # episodes: enough to suspect a problem, enough to compare
_GOING_WELL = 0.9  # success rate above which some oddities are ignored


class Severity(IntEnum):
    HINT = 1  # learning is slower than it could be
    WARNING = 2  # nothing will be learned like this


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """One online episode. None: unknown."""

    success: bool  # as labeled
    rewarded: bool  # some step has a reward above 0
    solved: bool | None = None  # as the task or the operator judged it, independently of the labels
    timeout: bool | None = None
    failed: bool | None = None  # the task ended it as a failure
    total: float | None = None  # sum of the labels' rewards
    task_total: float | None = None  # sum of the task's own rewards
    value: float | None = None  # discounted return
    human_share: float = 0.0  # share of the steps that a person took
    first_help: float | None = None  # share of the episode before a person first took over; None: no help
    saturated: float | None = None  # share of the policy's action values at a limit
    human_saturated: float | None = None  # share of the person's steps with an axis at a limit
    clipped: Mapping[str, float] = field(
        default_factory=dict
    )  # share of steps that the safety filter changed, by limit
    clip_ratio: float | None = None  # clipped actions, relative to what the filter left of them
    outside: Mapping[str, float] = field(
        default_factory=dict
    )  # share of each observation that normalization clips
    versions_behind: int | None = None  # versions by which the acting weights were older than the newest
    unused_reward: bool | None = None  # the task rewarded single steps, and the labels did not
    period_s: float | None = None  # median time between two observations
    late: float | None = None  # share of ticks that took 1.5 periods or more
    delay_ticks: float | None = None  # ticks until a command shows in the observations


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFacts:
    """The demonstrations in the training data."""

    num: int = 0
    explained: Mapping[str, float] = field(default_factory=dict)
    """Share of the variance of their actions that observations explain. "" are the policy's inputs; another key is that
    observation added to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What robot, task and operator of this run can do, so that advice proposes nothing else."""

    expert: bool = False  # the task has a scripted expert
    person: bool = False  # a person demonstrates and takes over
    success: bool = True  # the task distinguishes success from failure
    inputs: tuple[str, ...] = ()  # observations that the policy reads
    observations: tuple[str, ...] = ()  # low-dimensional observations of the robot
    cameras: tuple[str, ...] = ()  # images of the robot
    control_hz: float | None = None
    console: bool = False  # the operator needs the console
    real_time: bool = False  # a real arm, next to which a person may stand

    @property
    def demos(self) -> bool:
        return self.expert or self.person


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The state of a run at one check."""

    settings: Mapping[str, object]  # the run's config by dotted key
    num_episodes: int  # online episodes
    env_steps: int
    episodes: Sequence[EpisodeFacts]  # the latest online episodes, oldest first
    run: str = "RUN"  # path of the run folder
    next_name: str | None = None  # of a new run that follows the advice
    offers: Offers = field(default_factory=Offers)
    demos: DemoFacts = field(default_factory=DemoFacts)
    early_human: float | None = None  # human share of the first episodes
    early_totals: Sequence[float] = ()  # returns of the first episodes; empty until there are enough
    num_successes: int = 0  # of all online episodes
    num_alone: int = 0  # of these, without help
    metrics: Mapping[str, float] = field(default_factory=dict)  # the learner's, since the last check
    num_actions: int | None = None  # values that the policy samples for one action or chunk
    best_value: float | None = None  # mean return-to-go of the best episode in the training data
    lowest_value: float | None = None  # smallest return-to-go of any
    highest_value: float | None = None  # largest return-to-go of any
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

    def number(self, key: str) -> float | None:
        """A setting that is a number."""
        value = self.settings.get(key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @property
    def success(self) -> float:
        """Success rate of the last episodes; 0 before the first."""
        latest = self.latest(MANY)
        return sum(episode.success for episode in latest) / max(1, len(latest))

    @property
    def totals(self) -> list[float]:
        """Returns of the last episodes."""
        return [one.total for one in self.latest(MANY) if one.total is not None]

    @property
    def return_rises(self) -> bool | None:
        """Whether the last episodes returned more than the first ones; None if it is not known yet."""
        early, latest = self.early_totals, self.totals
        if len(early) < FEW or len(latest) < FEW or self.num_episodes < 2 * len(early):
            return None
        mean = sum(early) / len(early)
        spread = math.sqrt(sum((one - mean) ** 2 for one in early) / len(early))
        return sum(latest) / len(latest) > mean + max(0.25 * spread, 1e-9)

    @property
    def going_well(self) -> bool:
        """By success or, in a task without success, by the return: it rises, or nothing is known yet."""
        return self.success >= _GOING_WELL if self.offers.success else self.return_rises is not False

    @property
    def result(self) -> str:
        """How the last episodes went, in words with numbers."""
        totals = self.totals
        if self.offers.success or not totals:
            return f"{100 * self.success:.0f} % of the last {len(self.latest(MANY))} episodes succeeded"
        return f"the mean return of the last {len(totals)} episodes is {sum(totals) / len(totals):.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to try: new values of settings, or another command."""

    settings: Mapping[str, object] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that a check has found. The first of `changes` that is possible in this run becomes the advice."""

    severity: Severity
    cause: str
    evidence: str
    changes: Sequence[Change | None]


class Unknown(Enum):
    """The result of a check with missing facts."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN

Result = Finding | Unknown | None  # None: no problem
