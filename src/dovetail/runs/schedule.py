"""Scheduled evaluations while a run learns, and which checkpoint is the best so far.

An evaluation is named after the step at which it was due, so that a killed and resumed run makes each exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.config.schema import StopWhenSolved
from dovetail.core.errors import CheckpointError
from dovetail.core.figures import Performance
from dovetail.learn.checkpoint import checkpoint_facts
from dovetail.runs.folder import RunFolder
from dovetail.runs.recent_episodes import RECENT, RecentEpisodes
from dovetail.runs.status import RunStatus

__all__ = ["Schedule", "best_figure", "is_solved", "scheduled_evaluations"]

SUCCESS, RETURN = "success", "return"  # facts of the best checkpoint

_PREFIX = "at-"


class Schedule:
    """`run.eval_every_steps`, and the rule for `checkpoints/best`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._every = folder.config.run.eval_every_steps

    @property
    def num_episodes(self) -> int:
        run = self._folder.config.run
        return run.scheduled_eval_episodes or run.eval_episodes

    def due(self, env_steps: int) -> str | None:
        """The name of the evaluation that is due. If a long episode passed several, only the last is made."""
        if self._every is None or env_steps < self._every:
            return None
        name = f"{_PREFIX}{env_steps // self._every * self._every:08d}"
        return None if (self._folder.path / f"evaluations/{name}.json").exists() else name

    def is_best(self, figure: Mapping[str, float]) -> bool:
        """Whether a figure is at least the best so far: of two equal ones, the later has learned longer."""
        ((name, value),) = figure.items()
        try:
            return value >= float(checkpoint_facts(self._folder.checkpoints / "best")[name])
        except (CheckpointError, KeyError):  # there is none, it is damaged, or another figure decided
            return True

    def recent_figure(self, status: RunStatus) -> dict[str, float]:
        """The figure of the latest unassisted episodes; empty if evaluations are scheduled or episodes are few."""
        if self._every is not None or len(status.recent_success) < RECENT:
            return {}
        if status.has_success is not False:
            return {SUCCESS: status.unassisted_rate(RECENT)}
        value = status.unassisted_return(RECENT)
        return {} if value is None else {RETURN: value}


def best_figure(performance: Performance) -> dict[str, float]:
    """The figure that decides which checkpoint is the best: success, or the return where there is no success."""
    value = performance.value
    return {} if value is None else {SUCCESS if performance.success else RETURN: value}


def is_solved(rule: StopWhenSolved, recent: RecentEpisodes) -> bool:
    """Whether the latest episodes without help are good enough to stop. A return counts only without success."""
    if recent.has_success is not False:
        return recent.unassisted_rate(rule.window) >= rule.success_rate
    value = recent.unassisted_return(rule.window)
    return rule.mean_return is not None and value is not None and value >= rule.mean_return


def scheduled_evaluations(folder: RunFolder) -> list[tuple[float, int, Performance]]:
    """Robot minutes, online steps and figures of each, in order."""
    names = sorted(path.stem for path in (folder.path / "evaluations").glob(f"{_PREFIX}*.json"))
    found = [folder.read_json(f"evaluations/{name}.json") for name in names]
    return [
        (float(facts["robot_minutes"]), int(facts["env_steps"]), Performance.from_json(facts))
        for facts in found
        if facts
    ]
