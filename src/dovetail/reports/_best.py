"""The best checkpoint of a run, if it was better than the weights at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.core.errors import CheckpointError
from dovetail.core.figures import Performance, short
from dovetail.learn.checkpoint import checkpoint_facts
from dovetail.runs.folder import RunFolder
from dovetail.runs.schedule import best_figure

__all__ = ["BestCheckpoint", "better_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """A checkpoint whose own evaluation was better than the one after learning."""

    path: str
    measure: str  # `success` or `return`
    value: float  # in its evaluation
    env_steps: int

    @property
    def command(self) -> str:
        return f"dovetail eval {self.path}"

    def __str__(self) -> str:
        figure = f"{100 * self.value:.0f} %" if self.measure == "success" else f"return {short(self.value)}"
        return f"the checkpoint at {self.env_steps} steps was better in its evaluation: {figure}"

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoint": self.path,
            "measure": self.measure,
            "value": self.value,
            "env_steps": self.env_steps,
            "command": self.command,
        }


def better_checkpoint(folder: RunFolder, after: Mapping[str, Any] | None) -> BestCheckpoint | None:
    """The best checkpoint, if its evaluation was better than `after`. None if recent practice chose it."""
    final = best_figure(Performance.from_json(after)) if after else {}
    path = folder.checkpoints / "best"
    try:
        facts = checkpoint_facts(path)
        ((measure, value),) = final.items()
        if not str(facts["by"]).startswith("evaluation ") or float(facts[measure]) <= value:
            return None
        return BestCheckpoint(
            path=str(path), measure=measure, value=float(facts[measure]), env_steps=int(facts["env_steps"])
        )
    except (CheckpointError, KeyError, ValueError):  # there is none, it is damaged, or another figure decided
        return None
