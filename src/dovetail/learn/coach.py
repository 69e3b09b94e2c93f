"""The coach checks a run regularly, explains why learning does not go well, and advises what to try.

    coach = Coach()
    result = coach.check(facts)       # after each online episode, or each rollout
    result.begun, result.over         # new problems, and problems that are over
    coach.current                     # open problems, the worst first

The coach reads no clock, file or network: it depends on the facts only. A check with missing facts has no result, so an open
problem stays open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.core.types import Array
from dovetail.learn._coach_checks import CHECKS
from dovetail.learn._coach_facts import UNKNOWN, EpisodeFacts, Facts, Finding, Severity

__all__ = ["Advice", "Coach", "CoachResult", "EpisodeFacts", "Facts", "Severity", "returns_to_go"]

PATIENCE = 3  # results in a row with a problem before it is reported, or without it before it is over
REMIND = 300  # checks after which an open problem is reported again
MAX_TIPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A problem with the numbers behind it, and what to try."""

    name: str
    severity: Severity
    message: str
    try_: str

    @staticmethod
    def of(name: str, finding: Finding, settings: Mapping[str, object]) -> Advice:
        tips = [tip for tip in finding.tips if tip.key is None or tip.key in settings][:MAX_TIPS]
        texts = [tip.text if tip.key is None else f"{tip.text} ({_setting(tip.key, settings)})" for tip in tips]
        return Advice(name=name, severity=finding.severity, message=finding.message, try_="; ".join(texts))

    def to_json(self) -> dict[str, str]:
        severity = self.severity.name.lower()
        return {"name": self.name, "severity": severity, "message": self.message, "try": self.try_}

    @staticmethod
    def from_json(data: Mapping[str, str]) -> Advice:
        severity = Severity[data["severity"].upper()]
        return Advice(name=data["name"], severity=severity, message=data["message"], try_=data["try"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachResult:
    """What changed at one check."""

    begun: tuple[Advice, ...]
    over: tuple[Advice, ...]


@dataclass(slots=True)
class _CheckState:
    """One check over time."""

    advice: Advice | None = None  # the open problem, as reported
    num_found: int = 0  # results in a row with a problem
    num_clear: int = 0  # results in a row without one
    num_since: int = 0  # checks since the last report


class Coach:
    """Reports a problem once, again after a long time, and when it is over.

    `known` are the problems that an earlier process of the run reported.
    """

    def __init__(self, known: Iterable[Advice] = ()) -> None:
        self._states = {name: _CheckState() for name in CHECKS}
        for advice in known:
            if advice.name in self._states:  # an older version may have had other checks
                self._states[advice.name].advice = advice

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(CHECKS)

    @property
    def current(self) -> tuple[Advice, ...]:
        advice = [state.advice for state in self._states.values() if state.advice]
        return tuple(sorted(advice, key=lambda advice: -advice.severity))

    def check(self, facts: Facts) -> CoachResult:
        begun, over = [], []
        for name, check in CHECKS.items():
            state, finding = self._states[name], check(facts)
            state.num_since += 1
            if finding is UNKNOWN:
                continue
            state.num_found = state.num_found + 1 if finding else 0
            state.num_clear = 0 if finding else state.num_clear + 1
            if finding and state.num_found >= PATIENCE and (state.advice is None or state.num_since >= REMIND):
                state.advice, state.num_since = Advice.of(name, finding, facts.settings), 0
                begun.append(state.advice)
            elif state.advice and state.num_clear >= PATIENCE:
                over.append(state.advice)
                state.advice = None
        return CoachResult(begun=tuple(begun), over=tuple(over))


def returns_to_go(rewards: Array, discounts: Array, gamma: float) -> Array:
    """The discounted return from each step on, [T]. After a timeout, the mean reward is assumed to go on forever."""
    following = float(rewards.mean()) / (1.0 - gamma) if gamma < 1.0 else 0.0
    values = np.zeros(len(rewards), np.float64)
    for t in reversed(range(len(rewards))):
        following = values[t] = float(rewards[t]) + gamma * float(discounts[t]) * following
    return values


def _setting(key: str, settings: Mapping[str, object]) -> str:
    value = "null" if settings[key] is None else str(settings[key])
    return key if len(value) > 20 else f"{key}, now {value}"
