"""Settings of the classifier that gives labels. This module loads no torch, so that a wrong setting is refused at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.config.model import Config
from dovetail.labels._rewards import Stage

__all__ = ["ClassifierConfig"]


class ClassifierConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("folder",)

    folder: str
    """Folder written by `dovetail train reward-classifier`."""
    threshold: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Probability from which a frame shows success; null: the threshold that training chose."""
    consecutive: int | None = Field(default=None, ge=1)
    """Number of successful frames in a row that make a success; null: as trained."""
    reward: Literal["success", "progress"] = "success"
    """Reward of steps: success at the end, or the change of the probability at each step."""
    stages: tuple[Stage, ...] = ()
    """Intermediate goals by the probability, with additional rewards."""
    retrain_after: int | None = Field(default=None, ge=1)
    """Retrain in the background after people labeled this many more episodes with at least one correction; null: never."""
