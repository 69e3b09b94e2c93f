"""Optimizer settings of single components, and how a learning rate changes with the number of updates."""

from __future__ import annotations

import math
from typing import Any, Protocol

__all__ = ["OptimizerSettings", "lr_factor", "optimizer_group"]


class OptimizerSettings(Protocol):
    """`learner.optimizers.NAME`."""

    @property
    def type(self) -> str: ...
    @property
    def lr(self) -> float | None: ...
    @property
    def weight_decay(self) -> float | None: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def schedule(self) -> str: ...
    @property
    def warmup_updates(self) -> int: ...
    @property
    def decay_updates(self) -> int | None: ...


def lr_factor(settings: OptimizerSettings, update: int) -> float:
    """The share of the learning rate at an update, counted from 0."""
    if update < settings.warmup_updates:
        return (update + 1) / settings.warmup_updates
    if settings.decay_updates is None:
        return 1.0
    progress = min((update - settings.warmup_updates) / (settings.decay_updates - settings.warmup_updates), 1.0)
    return 1.0 - progress if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


def optimizer_group(settings: OptimizerSettings) -> dict[str, Any]:
    """The entries of a parameter group of torch's Adam that differ from those of the algorithm."""
    group: dict[str, Any] = {"betas": settings.betas, "decoupled_weight_decay": settings.type == "adamw"}
    for name, value in (("lr", settings.lr), ("weight_decay", settings.weight_decay)):
        if value is not None:
            group[name] = value
    return group
