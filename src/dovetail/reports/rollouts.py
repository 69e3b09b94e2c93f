"""The rollouts of an on-policy run, as its report shows them."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.reports.learning_curve import CurveEpisode
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import read_rollouts

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
            for number, success in enumerate(line["success"], start=1):
                curve.append(CurveEpisode(end_minutes=minutes + number * share, success=success, human_share=0.0))
            minutes = line["robot_minutes"]
        return RolloutHistory(env_steps=lines[-1]["env_steps"] if lines else 0, robot_minutes=minutes, curve=curve)
