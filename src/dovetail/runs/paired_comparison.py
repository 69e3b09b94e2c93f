"""A comparison of deployed policy and candidate during a run, pair by pair, as `deployment.json` stores it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.core.figures import EpisodeScore, Performance
from dovetail.core.sequential_test import Answer, SequentialTest
from dovetail.runs.pair_test import measure_of, pair_test

__all__ = ["PairedComparison", "PlayedPair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPair:
    """One episode of each policy on the same reset: ids and scores of the deployed policy and the candidate."""

    ids: tuple[str, str]
    scores: tuple[EpisodeScore, EpisodeScore]

    def to_json(self) -> dict[str, Any]:
        return {
            "ids": list(self.ids),
            "success": [score.success for score in self.scores],
            "return": [score.total_reward for score in self.scores],
            "duration_s": [score.duration_s for score in self.scores],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PlayedPair:
        values = [value for name in ("success", "return", "duration_s") for value in data[name]]
        if not all(value is None or _is_number(value) for value in values) or len(data["ids"]) != 2:
            raise ValueError("a pair should have two episodes with finite numbers")
        deployed, candidate = (
            EpisodeScore(success=success, total_reward=total_reward, duration_s=duration_s)
            for success, total_reward, duration_s in zip(
                data["success"], data["return"], data["duration_s"], strict=True
            )
        )
        return PlayedPair(ids=(str(data["ids"][0]), str(data["ids"][1])), scores=(deployed, candidate))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """The pairs so far. `number` counts the comparisons of the run, so each one has its own resets."""

    number: int
    max_pairs: int
    margin: float | None
    pairs: tuple[PlayedPair, ...] = ()
    num_resets: int = 0  # that were used

    def with_pairs(self, pairs: Sequence[PlayedPair]) -> PairedComparison:
        """Add pairs in order until the test has an answer; the others do not count."""
        made = self
        for pair in pairs:
            if made.is_finished:
                break
            made = dataclasses.replace(made, pairs=(*made.pairs, pair))
        return made

    @property
    def scores(self) -> list[tuple[EpisodeScore, EpisodeScore]]:
        return [pair.scores for pair in self.pairs]

    @property
    def test(self) -> SequentialTest | None:
        """The test after the pairs so far; None before the first pair."""
        if not self.pairs:
            return None
        return pair_test(self.scores, margin_percent=self.margin, max_pairs=self.max_pairs)

    @property
    def answer(self) -> Answer:
        return Answer.CANNOT_TELL if (test := self.test) is None else test.answer

    @property
    def is_finished(self) -> bool:
        return self.answer is not Answer.CANNOT_TELL or len(self.pairs) >= self.max_pairs

    @property
    def deployed(self) -> Performance:
        return Performance.of([deployed for deployed, _ in self.scores])

    @property
    def candidate(self) -> Performance:
        return Performance.of([candidate for _, candidate in self.scores])

    @property
    def expected_rate(self) -> float | None:
        """The lower limit of the candidate's success rate: the rate of a few episodes is often too high by luck."""
        success = self.candidate.success if self.pairs else None
        return None if success is None else success.low

    def facts(self) -> dict[str, Any]:
        """The result for events: the test, and the figures of both policies."""
        if (test := self.test) is None:
            return {}
        return {
            "measure": measure_of(self.scores),
            **test.to_json(),
            "max_pairs": self.max_pairs,
            "deployed": self.deployed.to_json(),
            "candidate": self.candidate.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "max_pairs": self.max_pairs,
            "margin": self.margin,
            "num_resets": self.num_resets,
            "pairs": [pair.to_json() for pair in self.pairs],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PairedComparison:
        pairs = tuple(PlayedPair.from_json(pair) for pair in data["pairs"])
        known = {name: data[name] for name in ("number", "max_pairs", "margin", "num_resets")}
        counts = [value for name, value in known.items() if name != "margin"]
        if not all(type(value) is int and 0 <= value < 2**31 for value in counts):
            raise ValueError("number, max_pairs and num_resets should be whole numbers")
        if known["margin"] is not None and not _is_number(known["margin"]):
            raise ValueError("margin should be null or a finite number")
        return PairedComparison(**known, pairs=pairs)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
