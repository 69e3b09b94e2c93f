"""Scheduled evaluations while a run learns, and which checkpoint is the best so far.

An evaluation is named after the step at which it was due, so that a killed and resumed run makes each exactly once.
"""

from __future__ import annotations

from dovetail.core.errors import CheckpointError
from dovetail.core.stats import Rate
from dovetail.learn.checkpoint import checkpoint_facts
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RECENT, RunStatus

__all__ = ["Schedule", "scheduled_evaluations"]

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

    def is_best(self, success: float) -> bool:
        """Whether a success rate is at least the best so far: of two equal ones, the later has learned longer."""
        try:
            return success >= float(checkpoint_facts(self._folder.checkpoints / "best")["success"])
        except (CheckpointError, KeyError):  # there is none, or it is damaged
            return True

    def recent_rate(self, status: RunStatus) -> float | None:
        """Unassisted success rate of the latest episodes; None if evaluations are scheduled or episodes are few."""
        if self._every is not None or len(status.recent_success) < RECENT:
            return None
        return float(status.unassisted_rate(RECENT))


def scheduled_evaluations(folder: RunFolder) -> list[tuple[float, int, Rate]]:
    """Robot minutes, online steps and success rate of each, in order."""
    names = sorted(path.stem for path in (folder.path / "evaluations").glob(f"{_PREFIX}*.json"))
    found = [folder.read_json(f"evaluations/{name}.json") for name in names]
    return [
        (
            float(facts["robot_minutes"]),
            int(facts["env_steps"]),
            Rate(successes=facts["successes"], episodes=facts["episodes"]),
        )
        for facts in found
        if facts
    ]
