"""Slow or unavailable labelers: `support.late_labelers:Class`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from dovetail.core.errors import LabelError
from dovetail.core.types import Outcome
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler


class LateConfig(OutcomeConfig):
    away_while: str = ""
    """While this file exists, labeling fails."""


class Late(OutcomeLabeler):
    """Correct labels of a slow labeler."""

    Config: ClassVar = LateConfig
    max_concurrent = 2

    def label(self, episode):
        away = self._config.away_while
        if away and Path(away).exists():
            raise LabelError("no answer")
        return super().label(episode)


class Seer(OutcomeLabeler):
    """Judges every observation as success."""

    threshold = 0.5
    consecutive = 5

    def judge(self, observation):
        return float(observation.values["goal"].size > 0)


class Witness(OutcomeLabeler):
    """Judges from the metrics, not from the outcome."""

    def _outcome(self, episode):
        reached = episode.column("metric/distance").min() < 0.02
        return Outcome.SUCCESS if reached else Outcome.FAILURE
