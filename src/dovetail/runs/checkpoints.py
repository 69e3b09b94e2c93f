"""What of a learner outlives the process: the weights that it publishes, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dovetail.core.contracts import Actor
from dovetail.core.errors import CheckpointError
from dovetail.core.types import Array, WeightSnapshot
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.learn.learner import Learner
from dovetail.runs.coaching import Coaching
from dovetail.runs.folder import RunFolder
from dovetail.runtime.onpolicy.training import OnPolicy
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.schedule import Schedule
from dovetail.runs.status import RunStatus
from dovetail.weights.store import DiskWeightStore

__all__ = ["Checkpoints"]


class Checkpoints:
    """`publish` as often as the config says, `hand_over` to the robot, `save` and `load`."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        status: RunStatus,
        phases: PhaseTimes,
        schedule: Schedule,
        coaching: Coaching,
        write_progress: Callable[[], None],
    ) -> None:
        self._folder, self._status, self._phases = folder, status, phases
        self._schedule, self._coaching, self._write_progress = schedule, coaching, write_progress
        self._published = -1  # at so many updates
        self.weights = DiskWeightStore(folder.weights)

    # ---- weights

    def publish_when_due(self, learner: Learner) -> None:
        every = self._folder.config.learner.publish_every
        if every is None or learner.num_updates // every > self._published // every:
            self.publish(learner)

    @property
    def has_published(self) -> bool:
        return self._published >= 0

    def publish(self, learner: Learner) -> None:
        self.weights.publish(learner.policy_weights())
        self._published = learner.num_updates

    def is_published(self, learner: Learner) -> bool:
        return self._published == learner.num_updates

    def hand_over(self, actor: Actor, learner: Learner) -> None:
        snapshot = self.weights.latest()  # the pinned version, where somebody has pinned one
        assert snapshot is not None
        updates = self._published - learner.num_warmup_updates
        self._coaching.published(max(self.weights.versions()), snapshot, updates=updates)
        actor.load(snapshot)

    def newest(self) -> WeightSnapshot:
        """What was learned last, whatever is pinned."""
        return self.weights.load(max(self.weights.versions()))

    # ---- checkpoints

    @property
    def _last(self) -> Path:
        return self._folder.checkpoints / "last"

    @property
    def has_checkpoint(self) -> bool:
        return (self._last / "manifest.json").exists()

    def load(self) -> Mapping[str, Array]:
        state, facts = load_checkpoint(self._last)
        if facts.get("config_hash") != self._folder.config_hash:
            raise CheckpointError(f"checkpoint {self._last} belongs to another config than its run folder")
        self._published = int(facts.get("published", -1))
        return state

    def save(self, learner: Learner | OnPolicy) -> None:
        with self._phases.phase("saving"):
            save_checkpoint(self._last, learner.state_dict(), facts=self._facts())
        success = self._schedule.practice_success(self._status)
        if success is not None and self._schedule.is_best(success):
            self.save_best(learner, success=success, by="recent practice")
        self._write_progress()  # so that a kill costs no more of the books than of the learner
        self._folder.event("checkpoint", env_steps=self._status.env_steps, updates=learner.num_updates)

    def save_best(self, learner: Learner | OnPolicy, *, success: float, by: str) -> None:
        best: dict[str, float | str] = {"success": success, "by": by}
        save_checkpoint(self._schedule.best, learner.state_dict(), facts={**self._facts(), **best})
        self._folder.event("best checkpoint", env_steps=self._status.env_steps, **best)

    def _facts(self) -> dict[str, int | float | str]:
        """What is noted with a checkpoint."""
        return {
            "env_steps": self._status.env_steps,
            "config_hash": self._folder.config_hash,
            "published": self._published,
        }
