"""The rollouts of an on-policy run, as its report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.reports.learning_curve import CurveEpisode
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import line_scores, read_rollouts

__all__ = ["RolloutHistory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHistory:
    """All rollouts of a run; empty for algorithms that use a replay."""

    env_steps: int
    robot_minutes: float
    curve: list[CurveEpisode]

    @staticmethod
    def read(folder: RunFolder) -> RolloutHistory:
        lines = read_rollouts(folder.path)
        curve, minutes = [], 0.0
        for line in lines:
            # the time at which an episode ended is not stored: spread them over the rollout
            share = (line["robot_minutes"] - minutes) / max(len(line["success"]), 1)
            for number, score in enumerate(line_scores(line, control_hz=_control_hz(line)), start=1):
                curve.append(CurveEpisode(end_minutes=minutes + number * share, score=score, human_share=0.0))
            minutes = line["robot_minutes"]
        return RolloutHistory(env_steps=lines[-1]["env_steps"] if lines else 0, robot_minutes=minutes, curve=curve)


def _control_hz(line: Mapping[str, Any]) -> float:
    """The control rate: total steps of the run per second of robot time."""
    return float(line["env_steps"] / max(60.0 * line["robot_minutes"], 1e-9))
