"""Results of on-policy rollouts, stored in the run's events, because their episodes are seldom recorded.

A killed run resumes from its checkpoint and repeats the rollouts after it. So a line replaces all earlier lines with as many
or more steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.figures import EpisodeScore
from dovetail.core.types import Array
from dovetail.runs.folder import RunFolder, read_events

__all__ = ["RolloutResult", "finished_episodes", "line_scores", "read_rollouts", "record_rollout"]

_EVENT = "practice"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """Metrics of one rollout and its update, and one value per episode that ended in it."""

    metrics: Mapping[str, float]
    episodes: Mapping[
        str, Array
    ]  # success (NaN: none), length, at_limit, reward/<component>, metric/<name>: [K] each

    @property
    def returns(self) -> Array:
        rewards = [values for name, values in self.episodes.items() if name.startswith("reward/")]
        return np.sum(rewards, axis=0) if rewards else np.zeros(0, np.float32)

    def means(self) -> dict[str, float]:
        """Means over the episodes; empty if none ended."""
        if not len(self.returns):
            return {}
        means = {name: float(values.mean()) for name, values in self.episodes.items()}
        return {"return": float(self.returns.mean())} | {n: m for n, m in means.items() if not math.isnan(m)}

    def scores(self, *, control_hz: float) -> list[EpisodeScore]:
        """One score per episode. A simulated world is reset in no robot time."""
        return _scores(self.episodes.get("success", ()), self.episodes.get("length", ()), self.returns, control_hz)


def record_rollout(folder: RunFolder, result: RolloutResult, *, env_steps: int, robot_minutes: float) -> None:
    """Add a line to the events. `env_steps` and `robot_minutes` are totals of the run."""
    seconds = {name: result.metrics[name] for name in ("collect_s", "update_s") if name in result.metrics}
    rewards = {name: mean for name, mean in result.means().items() if name.startswith("reward/")}
    folder.event(
        _EVENT,
        env_steps=env_steps,
        robot_minutes=robot_minutes,
        success=[None if math.isnan(one) else bool(one) for one in result.episodes.get("success", ())],
        length=[int(one) for one in result.episodes.get("length", ())],
        returns=[float(one) for one in result.returns],
        **seconds,
        **rewards,
    )


def read_rollouts(run: Path) -> list[dict[str, Any]]:
    """The lines that were not replaced, oldest first."""
    kept: list[dict[str, Any]] = []
    for line in read_events(run, _EVENT):
        while kept and kept[-1]["env_steps"] >= line["env_steps"]:
            kept.pop()
        kept.append(line)
    return kept


def finished_episodes(run: Path, *, env_steps: int, control_hz: float) -> Iterator[EpisodeScore]:
    """Scores of the episodes in the first `env_steps` steps. A checkpoint of these steps repeats the rest."""
    for line in read_rollouts(run):
        if line["env_steps"] <= env_steps:
            yield from line_scores(line, control_hz=control_hz)


def line_scores(line: Mapping[str, Any], *, control_hz: float) -> list[EpisodeScore]:
    """Scores of the episodes of one line of the events."""
    mean = sum(value for name, value in line.items() if name.startswith("reward/"))
    success = [math.nan if one is None else float(one) for one in line["success"]]
    # old lines have the mean return only, and no lengths
    returns = line.get("returns") or [mean] * len(success)
    return _scores(success, line.get("length") or [0] * len(success), returns, control_hz)


def _scores(
    success: Iterable[float], length: Iterable[float], returns: Iterable[float], control_hz: float
) -> list[EpisodeScore]:
    return [
        EpisodeScore(
            success=None if math.isnan(solved) else bool(solved),
            duration_s=float(num_steps) / control_hz,
            reset_s=0.0,
            total_reward=float(total),
        )
        for solved, num_steps, total in zip(success, length, returns, strict=True)
    ]
