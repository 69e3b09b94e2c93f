"""The coach: looks at a run now and then, and says in plain words why learning is not going well and what to try.

    coach = Coach()
    look = coach.look(facts)      # after each online episode, or each rollout
    look.begun, look.over         # what to tell now
    coach.current                 # what is still wrong, the worst first

Facts in, words out: nothing here reads a clock, a file or a network. A check whose facts are missing says nothing, not
even that what was wrong is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.core.types import Array
from dovetail.learn._coach_checks import CHECKS
from dovetail.learn._coach_facts import UNKNOWN, EpisodeFacts, Facts, Finding, Severity

__all__ = ["Advice", "Coach", "EpisodeFacts", "Facts", "Look", "Severity", "returns_to_go"]

PATIENCE = 3  # looks in a row that must find something before it is told, or nothing before it is over; of those that know
REMIND = 300  # looks after which what goes on is told again
MAX_TIPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is wrong, in plain words with the numbers seen, and what to try."""

    name: str
    severity: Severity
    message: str
    try_: str

    @staticmethod
    def of(name: str, finding: Finding, settings: Mapping[str, object]) -> Advice:
        tips = [tip for tip in finding.tips if tip.key is None or tip.key in settings][:MAX_TIPS]
        said = [tip.text if tip.key is None else f"{tip.text} ({_setting(tip.key, settings)})" for tip in tips]
        return Advice(name=name, severity=finding.severity, message=finding.message, try_="; ".join(said))

    def to_json(self) -> dict[str, str]:
        severity = self.severity.name.lower()
        return {"name": self.name, "severity": severity, "message": self.message, "try": self.try_}

    @staticmethod
    def from_json(data: Mapping[str, str]) -> Advice:
        severity = Severity[data["severity"].upper()]
        return Advice(name=data["name"], severity=severity, message=data["message"], try_=data["try"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is news after a look."""

    begun: tuple[Advice, ...]
    over: tuple[Advice, ...]


@dataclass(slots=True)
class _Case:
    """One check over time."""

    advice: Advice | None = None  # as it was told last
    num_found: int = 0  # looks in a row
    num_clear: int = 0  # the same
    num_since: int = 0  # it was told


class Coach:
    """Tells a thing once when it has begun, again only after a long while, and that it is over when it is over.

    `known` is what an earlier process of the run has told already.
    """

    def __init__(self, known: Iterable[Advice] = ()) -> None:
        self._cases = {name: _Case() for name in CHECKS}
        for advice in known:
            if advice.name in self._cases:  # not a check that is no more
                self._cases[advice.name].advice = advice

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(CHECKS)

    @property
    def current(self) -> tuple[Advice, ...]:
        told = [case.advice for case in self._cases.values() if case.advice]
        return tuple(sorted(told, key=lambda advice: -advice.severity))

    def look(self, facts: Facts) -> Look:
        begun, over = [], []
        for name, check in CHECKS.items():
            case, finding = self._cases[name], check(facts)
            case.num_since += 1
            if finding is UNKNOWN:
                continue
            case.num_found = case.num_found + 1 if finding else 0
            case.num_clear = 0 if finding else case.num_clear + 1
            if finding and case.num_found >= PATIENCE and (case.advice is None or case.num_since >= REMIND):
                case.advice, case.num_since = Advice.of(name, finding, facts.settings), 0
                begun.append(case.advice)
            elif case.advice and case.num_clear >= PATIENCE:
                over.append(case.advice)
                case.advice = None
        return Look(begun=tuple(begun), over=tuple(over))


def returns_to_go(rewards: Array, discounts: Array, gamma: float) -> Array:
    """What each step was worth, [T]. Behind the last step of a timeout it goes on as it did on average."""
    after = float(rewards.mean()) / (1.0 - gamma) if gamma < 1.0 else 0.0
    values = np.zeros(len(rewards), np.float64)
    for t in reversed(range(len(rewards))):
        after = values[t] = float(rewards[t]) + gamma * float(discounts[t]) * after
    return values


def _setting(key: str, settings: Mapping[str, object]) -> str:
    value = "null" if settings[key] is None else str(settings[key])
    return key if len(value) > 20 else f"{key}, now {value}"
