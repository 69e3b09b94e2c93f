"""Evaluations while a run learns, every so many online steps, and which checkpoint was the best so far.

An evaluation is named by the step it was due at, not by the one it was made at: a run that is killed and resumed makes each
exactly once, of the same episodes, whatever of it was lost.
"""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import CheckpointError
from dovetail.core.stats import Rate
from dovetail.learn.checkpoint import checkpoint_facts
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RECENT, RunStatus

__all__ = ["Schedule", "scheduled_evaluations"]

_PREFIX = "at-"


class Schedule:
    """`run.eval_every_steps`, and `checkpoints/best`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._every = folder.config.run.eval_every_steps

    @property
    def num_episodes(self) -> int:
        run = self._folder.config.run
        return run.schedule_episodes or run.eval_episodes

    def due(self, env_steps: int) -> str | None:
        """The name of the evaluation to be made now; those that one long episode went past are not made up for."""
        if self._every is None or env_steps < self._every:
            return None
        name = f"{_PREFIX}{env_steps // self._every * self._every:08d}"
        return None if (self._folder.path / f"evaluations/{name}.json").exists() else name

    @property
    def best(self) -> Path:
        return self._folder.checkpoints / "best"

    def is_best(self, success: float) -> bool:
        """As good as any before it: of two that are as good, the one that learned longer."""
        try:
            return success >= float(checkpoint_facts(self.best)["success"])
        except (CheckpointError, KeyError):  # there is none, or none that could be loaded
            return True

    def practice_success(self, status: RunStatus) -> float | None:
        """What tells the best checkpoint where nothing is evaluated: unassisted success in the latest episodes."""
        if self._every is not None or len(status.recent_success) < RECENT:
            return None
        return float(status.unassisted_rate(RECENT))


def scheduled_evaluations(folder: RunFolder) -> list[tuple[float, int, Rate]]:
    """Robot minutes, online steps and rate of each, in order."""
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
