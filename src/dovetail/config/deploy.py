"""The settings of the gate: when new weights replace those that act on the arm."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.config.model import Config

__all__ = ["DeployConfig"]


class DeployConfig(Config):
    """The arm acts with the deployed weights. New weights are a candidate until a comparison finds them not worse."""

    BASIC: ClassVar[Collection[str]] = ("gate", "every_episodes")
    CHANGEABLE: ClassVar[Collection[str]] = ("gate", "every_episodes", "max_pairs", "margin", "false_alarm_rate")

    gate: Literal["compare", "person"] = "compare"
    """Who deploys a candidate. compare: the comparison, if it is not worse. person: a person, who sees the comparison."""
    every_episodes: int = Field(default=100, ge=1)
    """Online episodes from one decision to the next comparison."""
    max_pairs: int = Field(default=100, ge=10, le=10_000)
    """Most pairs of episodes in a comparison: one of the deployed policy and one of the candidate, on the same reset."""
    margin: float | None = Field(default=10.0, ge=0.1, le=99.0)
    """A candidate that is worse by less counts as not worse: points of success, or percent of the spread of returns where
    the environment has no success. Null: 5 points or 25 percent, as in `dovetail compare`."""
    false_alarm_rate: float = Field(default=0.01, gt=0, le=0.2)
    """Probability with which a deployed policy that keeps its success rate is ever rolled back automatically."""
