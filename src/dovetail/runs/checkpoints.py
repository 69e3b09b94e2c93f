"""Published weights and checkpoints: the files of a run that a learner writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dovetail.core.errors import CheckpointError
from dovetail.core.types import Array, WeightSnapshot
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore

__all__ = ["Checkpointable", "Checkpoints", "Components", "DiskPublisher", "WeightPublisher"]

Components = Mapping[str, Mapping[str, Array]]


class Checkpointable(Protocol):
    """A learner whose weights are published and whose state is saved: `Learner` or `OnPolicy`."""

    healthy: bool  # False after a failed update; the state must not be saved

    @property
    def num_updates(self) -> int: ...

    def policy_weights(self) -> Components: ...

    def state_dict(self) -> Mapping[str, Array]: ...

    def load_state_dict(self, state: Mapping[str, Array]) -> None: ...


class WeightPublisher(Protocol):
    """Gives new weights to the robots of a run."""

    @property
    def writes_every_version(self) -> bool:
        """Whether each published version is on disk, or only those with `keep`."""

    def publish(self, components: Components, *, keep: bool = False) -> int:
        """Publish a new version and return its number."""


class DiskPublisher:
    """Writes every version to the run's folder, and holds the newest in memory for a robot in this process."""

    writes_every_version = True

    def __init__(self, folder: Path) -> None:
        self._disk = DiskWeightStore(folder)
        self._newest: WeightSnapshot | None = None

    def publish(self, components: Components, *, keep: bool = False) -> int:
        version = self._disk.publish(components)
        self._newest = WeightSnapshot(version=version, components=components, hashes=self._disk.hashes(version))
        return version

    def newest(self) -> WeightSnapshot:
        """The version that was published last, even if another is pinned."""
        if self._newest is None:
            self._newest = self._disk.load(max(self._disk.versions()))
        return self._newest

    def served(self) -> WeightSnapshot:
        """The version for the robot: the pinned one, or else the newest."""
        pinned = self._disk.pinned()
        return self.newest() if pinned is None else self._disk.load(pinned)


class Checkpoints:
    """`checkpoints/last`, from which a run resumes, `checkpoints/best`, and those that are kept."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._last, self._best = folder.checkpoints / "last", folder.checkpoints / "best"

    @property
    def exists(self) -> bool:
        return (self._last / "manifest.json").exists()

    def load(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """The state of the learner, and the facts that were saved with it."""
        state, facts = load_checkpoint(self._last)
        if facts.get("config_hash") != self._folder.config_hash:
            raise CheckpointError(f"checkpoint {self._last} belongs to another config than its run folder")
        return state, facts

    def save(self, state: Mapping[str, Array], facts: Mapping[str, int | float | str]) -> None:
        save_checkpoint(self._last, state, facts={**facts, "config_hash": self._folder.config_hash})

    def keep(
        self, state: Mapping[str, Array], facts: Mapping[str, int | float | str], *, num_updates: int
    ) -> None:
        """Save `checkpoints/update-N`, which is not overwritten."""
        path = self._folder.checkpoints / f"update-{num_updates:08d}"
        save_checkpoint(path, state, facts={**facts, "config_hash": self._folder.config_hash})

    def save_best(
        self,
        state: Mapping[str, Array],
        facts: Mapping[str, int | float | str],
        *,
        figure: Mapping[str, float],
        by: str,
    ) -> None:
        best = {**facts, "config_hash": self._folder.config_hash, **figure, "by": by}
        save_checkpoint(self._best, state, facts=best)
