"""The coach checks a run regularly, explains why learning does not go well, and advises what to try.

    coach = Coach()
    result = coach.check(facts)       # after each online episode, or each rollout
    result.begun, result.over         # new problems, and problems that are over
    coach.current                     # open problems, the worst first

The coach reads no clock, file or network: it depends on the facts only. A check with missing facts has no result, so an open
problem stays open.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.core.types import Array
from dovetail.learn._coach_checks import CHECKS
from dovetail.learn._coach_data_checks import no_success_finding
from dovetail.learn._coach_facts import FEW, UNKNOWN, DemoFacts, EpisodeFacts, Facts, Finding, Offers, Severity

__all__ = [
    "FEW",
    "Advice",
    "Coach",
    "CoachResult",
    "DemoFacts",
    "EpisodeFacts",
    "Facts",
    "Offers",
    "Severity",
    "overrides_of",
    "returns_to_go",
]

PATIENCE = 3  # results in a row with a problem before it is reported, or without it before it is over
REMIND = 300  # checks after which an open problem is reported again
NEVER_SUCCEEDS = "never_succeeds"

_PLAIN = re.compile(r"[A-Za-z_][\w-]*")
_WORDS = {"null", "true", "false"}  # that YAML does not read as text


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A problem: one sentence with its cause, one with the numbers, and a command to try.

    `settings` are the new values in the command, by dotted key.
    """

    name: str
    severity: Severity
    cause: str
    evidence: str
    command: str
    settings: Mapping[str, object] = field(default_factory=dict)

    @staticmethod
    def of(
        name: str,
        finding: Finding,
        facts: Facts,
        *,
        is_valid: Callable[[Sequence[str]], bool] = lambda overrides: True,
    ) -> Advice:
        """Propose the finding's first change that is possible. `is_valid(overrides)` tells whether a config is."""
        possible = [one for one in finding.changes if one is not None]
        chosen = next(one for one in possible if one.command or is_valid(overrides_of(one.settings)))
        return Advice(
            name=name,
            severity=finding.severity,
            cause=finding.cause,
            evidence=finding.evidence,
            command=chosen.command.format(run=shlex.quote(facts.run))
            or _run_command(overrides_of(chosen.settings), facts),
            settings=chosen.settings,
        )

    @property
    def message(self) -> str:
        """Cause and evidence, without a full stop at the end."""
        return f"{self.cause}. {self.evidence}" if self.evidence else self.cause

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "severity": self.severity.name.lower(),
            "message": self.message,
            "try": self.command,
            "cause": self.cause,
            "evidence": self.evidence,
            "settings": dict(self.settings),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Advice:
        """Also from an event of 0.6, which has the message in one piece and a list of things to try."""
        return Advice(
            name=data["name"],
            severity=Severity[data["severity"].upper()],
            cause=data.get("cause", data["message"]),
            evidence=data.get("evidence", ""),
            command=data["try"],
            settings=data.get("settings", {}),
        )


def overrides_of(settings: Mapping[str, object]) -> list[str]:
    """Settings as `key=value`, as the command line reads them."""
    return [f"{key}={_yaml(value)}" for key, value in settings.items()]


def _run_command(overrides: Sequence[str], facts: Facts) -> str:
    name = ["--name", facts.next_name] if facts.next_name else []
    console = ["--console"] if facts.offers.console else []
    return shlex.join(["dovetail", "run", f"{facts.run}/config.yaml", *overrides, *name, *console])


def _yaml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)


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

    `known` are the problems that an earlier process of the run reported. `is_valid(overrides)` tells whether the config
    of the run accepts some settings; advice that it refuses is not given.
    """

    def __init__(
        self,
        known: Iterable[Advice] = (),
        *,
        is_valid: Callable[[Sequence[str]], bool] = lambda overrides: True,
    ) -> None:
        self._is_valid = is_valid
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
            explained = name == NEVER_SUCCEEDS and any(one.name != name for one in self.current)
            if explained and isinstance(finding, Finding):
                finding = None  # other advice says why
            state.num_since += 1
            if finding is UNKNOWN:
                continue
            state.num_found = state.num_found + 1 if finding else 0
            state.num_clear = 0 if finding else state.num_clear + 1
            if finding and state.num_found >= PATIENCE and (state.advice is None or state.num_since >= REMIND):
                state.advice, state.num_since = Advice.of(name, finding, facts, is_valid=self._is_valid), 0
                begun.append(state.advice)
            elif state.advice and state.num_clear >= PATIENCE:
                over.append(state.advice)
                state.advice = None
        return CoachResult(begun=tuple(begun), over=tuple(over))

    def conclude(self, facts: Facts) -> CoachResult:
        """The last check of a run that ends without a success: it gets advice, also if it was too short for other checks."""
        if self.current:
            return CoachResult(begun=(), over=())
        advice = Advice.of(NEVER_SUCCEEDS, no_success_finding(facts), facts, is_valid=self._is_valid)
        self._states[NEVER_SUCCEEDS].advice = advice
        return CoachResult(begun=(advice,), over=())


def returns_to_go(rewards: Array, discounts: Array, gamma: float) -> Array:
    """The discounted return from each step on, [T]. After a timeout, the mean reward is assumed to go on forever."""
    following = float(rewards.mean()) / (1.0 - gamma) if gamma < 1.0 else 0.0
    values = np.zeros(len(rewards), np.float64)
    for t in reversed(range(len(rewards))):
        following = values[t] = float(rewards[t]) + gamma * float(discounts[t]) * following
    return values
