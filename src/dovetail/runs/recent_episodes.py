"""The latest online episodes of a run or of one arm, and the figures over them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.core.figures import EpisodeScore, Performance
from dovetail.core.types import Labels
from dovetail.episodes.log import EpisodeInfo

__all__ = ["RECENT", "RecentEpisodes"]

RECENT = 20  # episodes in a live figure
_MAX_RECENT = 1000  # episodes that are kept


def _latest() -> deque[float]:
    return deque(maxlen=_MAX_RECENT)


@dataclass(slots=True, kw_only=True)
class RecentEpisodes:
    """One value per episode. NaN: unknown, for example because its labels are not there yet."""

    recent_ids: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    recent_success: deque[float] = field(default_factory=_latest)
    recent_return: deque[float] = field(default_factory=_latest)
    recent_human: deque[float] = field(default_factory=_latest)  # share of the steps
    recent_s: deque[float] = field(default_factory=_latest)  # robot time
    recent_reset_s: deque[float] = field(default_factory=_latest)
    recent_interventions: deque[float] = field(default_factory=_latest)
    has_success: bool | None = None  # None: no episode yet. False: no task of theirs detects success

    def remember(self, info: EpisodeInfo, labels: Labels | None) -> None:
        """Add an online episode. Without labels, its success and return are unknown."""
        self.recent_ids.append(info.id)
        self.remember_score(
            EpisodeScore(
                success=_success(info, labels),
                duration_s=info.duration_s,
                reset_s=info.reset_s,
                interventions=info.num_interventions,
                total_reward=_return(labels),
            ),
            human_share=info.num_human_steps / info.num_steps,
            has_success=info.has_success or (labels is not None and labels.success),
        )

    def remember_score(self, score: EpisodeScore, *, human_share: float, has_success: bool) -> None:
        self.recent_success.append(_nan(score.success))
        self.recent_return.append(_nan(score.total_reward))
        self.recent_human.append(human_share)
        self.recent_s.append(score.duration_s)
        self.recent_reset_s.append(_nan(score.reset_s))
        self.recent_interventions.append(float(score.interventions))
        self.has_success = bool(self.has_success) or has_success

    def forget(self) -> None:
        for values in self._columns():
            values.clear()

    def correct_recent(self, info: EpisodeInfo, labels: Labels | None) -> None:
        """Apply new labels of an episode, if it is recent enough."""
        if info.id in self.recent_ids:
            place = self.recent_ids.index(info.id)
            self.recent_success[place] = _nan(_success(info, labels))
            self.recent_return[place] = _nan(_return(labels))
            self.has_success = bool(self.has_success) or (labels is not None and labels.success)

    def unassisted_rate(self, window: int) -> float:
        """Share of the last `window` episodes that succeeded without intervention. Missing episodes and labels count as
        failures."""
        pairs = list(zip(self.recent_success, self.recent_human, strict=True))[-window:]
        return sum(s for s, share in pairs if not share and not math.isnan(s)) / window

    def unassisted_return(self, window: int) -> float | None:
        """Mean return of the last `window` episodes without intervention; None if there are fewer with a known return."""
        pairs = zip(self.recent_return, self.recent_human, strict=True)
        known = [value for value, share in pairs if not share and not math.isnan(value)][-window:]
        return sum(known) / window if len(known) == window else None

    def performance(self, window: int = RECENT) -> Performance | None:
        """The figures of the latest episodes, with or without help; None before the first with known figures."""
        rows = list(zip(*self._columns(), strict=True))[-window:]
        scores = [_score(row) for row in rows if not (math.isnan(row[0]) and math.isnan(row[1]))]
        return Performance.of(scores) if scores else None

    def _columns(self) -> Sequence[deque[float]]:
        return (
            self.recent_success,
            self.recent_return,
            self.recent_s,
            self.recent_reset_s,
            self.recent_interventions,
            self.recent_human,
        )


def _score(row: tuple[float, ...]) -> EpisodeScore:
    success, total_reward, duration_s, reset_s, interventions, _ = row
    return EpisodeScore(
        success=None if math.isnan(success) else bool(success),
        duration_s=duration_s,
        reset_s=None if math.isnan(reset_s) else reset_s,
        interventions=int(interventions),
        total_reward=None if math.isnan(total_reward) else total_reward,
    )


def _success(info: EpisodeInfo, labels: Labels | None) -> bool | None:
    """By the labels. None if neither the task detects success nor the label reports one."""
    if labels is None or labels.discard or not (info.has_success or labels.success):
        return None
    return labels.success


def _return(labels: Labels | None) -> float | None:
    return None if labels is None or labels.discard else float(labels.rewards.sum())


def _nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
