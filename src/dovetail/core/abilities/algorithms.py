"""Abilities of algorithms."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["LearnsFromRunning", "LearnsOnPolicy", "Shards"]


@runtime_checkable
class LearnsFromRunning(Protocol):
    """An algorithm that may learn from an episode before it has ended."""

    learns_from_running: bool


@runtime_checkable
class LearnsOnPolicy(Protocol):
    """An algorithm that learns from rollouts of the current policy, without a replay. Class attribute."""

    rollout_settings: Any


@runtime_checkable
class Shards(Protocol):
    """An algorithm that can divide its networks over several processes (FSDP)."""

    def check_shard(self) -> None:
        """Raise UsageError for settings that cannot be sharded."""

    def shard(self) -> None: ...
