"""The settings of a loop that improves a served policy."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from pydantic import Field

from dovetail.config.model import Config

__all__ = ["ImproveConfig"]


class ImproveConfig(Config):
    """What `dovetail run` does around a run with policy `residual`: train and serve its base, then distill and deploy."""

    BASIC: ClassVar[Collection[str]] = ()
    CHANGEABLE: ClassVar[Collection[str]] = ("distill_updates", "distill_settings", "gate_episodes")

    base_recipe: str
    """Recipe or file of the base policy, which is trained first. `policy.base.address` says where it is then served."""
    base_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the base that differ from its recipe, by name: `run.demos: 20`."""
    distill_updates: int = Field(default=2000, ge=1)
    """Updates that fine-tune the base on the successful episodes of the residual run."""
    distill_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the fine-tuning that differ from the base's, by name: `algorithm.lr: 0.0003`."""
    gate_episodes: int = Field(default=200, ge=1)
    """Most episodes of each policy in the comparison that deploys or rejects a candidate."""
    bad_updates: int = Field(default=10, ge=1)
    """Updates of a second candidate, which is trained too little on purpose. The gate should reject it."""
