"""Abilities of labelers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from dovetail.core.specs import RobotSpec
from dovetail.core.types import Observation

__all__ = [
    "AsksAgain",
    "AsksPerson",
    "ChecksMetrics",
    "ChecksRobot",
    "DecidesSuccess",
    "JudgesObservations",
    "RepeatsOutcome",
    "RewardsAtEnd",
    "SlowLabeler",
]


@runtime_checkable
class JudgesObservations(Protocol):
    """A labeler that judges a single observation, fast enough for the control loop."""

    def judge(self, observation: Observation) -> float:
        """Return the probability that the observation shows success."""


@runtime_checkable
class DecidesSuccess(Protocol):
    """A labeler with calibrated values for ending an episode early."""

    @property
    def threshold(self) -> float:
        """Probability from which an observation counts as success."""

    @property
    def consecutive(self) -> int:
        """Number of successful observations in a row that end an episode."""


@runtime_checkable
class SlowLabeler(Protocol):
    """A labeler that may take seconds. It is called on other threads."""

    @property
    def max_concurrent(self) -> int:
        """Number of episodes that it labels at the same time."""


@runtime_checkable
class ChecksRobot(Protocol):
    """A labeler that needs something of the robot, such as a camera."""

    def check(self, robot: RobotSpec) -> None:
        """Raise UsageError for a robot that it cannot label. Called before anything moves."""


@runtime_checkable
class ChecksMetrics(Protocol):
    """A labeler that may read the task's metrics."""

    reads_metrics: bool

    def check_metrics(self, names: Collection[str]) -> None:
        """Raise UsageError if the task does not measure what this labeler reads."""


@runtime_checkable
class RewardsAtEnd(Protocol):
    """A labeler whose reward may be zero before the last step, so that running episodes can be learned from."""

    rewards_at_the_end: bool


@runtime_checkable
class AsksPerson(Protocol):
    """A labeler that stands for a person in the console. It comes last. Class attribute."""

    asks_person: bool


@runtime_checkable
class RepeatsOutcome(Protocol):
    """A labeler that only repeats what the task or the operator decided. Class attribute."""

    repeats_outcome: bool


@runtime_checkable
class AsksAgain(Protocol):
    """A labeler that stores its answers and can ignore the stored ones."""

    def ask_again(self) -> None:
        """Ask about every episode from now on; new answers replace stored ones."""
