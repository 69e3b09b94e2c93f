"""The learner's role in a run: behavior cloning, updates from the replay, published weights and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from dovetail.core.contracts import Algorithm, ReplayReader
from dovetail.core.streams import stream
from dovetail.core.types import Array, WeightSnapshot
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.learner import Learner
from dovetail.policies.device import find_device
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.fleet import Fleet
from dovetail.runs.assembly.policy_components import save_components
from dovetail.runs.assembly.policy_rate import ticks_of_step
from dovetail.runs.checkpoints import Checkpointable, Checkpoints, WeightPublisher
from dovetail.runs.folder import RunFolder
from dovetail.runs.skipped_updates import report_skipped_updates
from dovetail.weights.store import DiskWeightStore

__all__ = ["LearnerInputs", "RunLearner"]

Trained = TypeVar("Trained", bound=Checkpointable)


class LearnerInputs(Protocol):
    """What the learner needs from the store."""

    def demonstrated(self) -> Mapping[str, Array]:
        """Observations of the demonstrations by key, and `action`, [T, ...]; empty if there are none."""

    def env_steps(self) -> int:
        """Online steps that were taken in this run."""


class RunLearner:
    """`clone` the demonstrations, `start` or resume learning, then `publish` and `save` what was learned.

    `fleet()` and `replay(policy)` are called when they are needed. `policy` is the one that learns, if it is already built.
    `timed(name)` measures how long an activity takes.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        fleet: Callable[[], Fleet],
        store: LearnerInputs,
        replay: Callable[[TrainablePolicy], ReplayReader],
        publisher: WeightPublisher,
        policy: TrainablePolicy | None = None,
        timed: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
    ) -> None:
        self._folder, self._config, self._fleet = folder, folder.config, fleet
        self._store, self._replay, self._publisher, self._timed = store, replay, publisher, timed
        self._cloned: WeightSnapshot | None = None
        self.policy = policy
        self.learner: Checkpointable | None = None
        self.checkpoints = Checkpoints(folder)
        self.published_at = -1  # number of updates of the newest published weights
        self.saved_at = -1  # the same of the newest checkpoint of this process
        self.num_saved = 0  # checkpoints of this process
        self.kept_at = 0  # number of updates of the newest checkpoint that is kept

    # ---- learning

    def clone(self, *, on_update: Callable[[], None] = lambda: None) -> int:
        """Clone the demonstrations with a new policy; return the version of its weights."""
        policy, config = self._fleet().trainable(), self._config
        save_components(policy, self._folder.components)  # before versions that refer to them
        policy.fit_normalizer(self._store.demonstrated())
        cloning = config.learner.cloning
        settings = ImitationConfig(
            batch_size=cloning.batch_size,
            lr=cloning.lr,
            lr_decay_updates=config.learner.bc_updates if cloning.lr_decay else None,
            max_grad_norm=cloning.max_grad_norm,
        )
        algorithm = Imitation(settings, policy=policy, seed=config.run.seed)
        learner = self.make_learner(algorithm, policy, stream_name="cloning")
        with report_skipped_updates(self._folder, learner):
            learner.warm_up(config.learner.bc_updates, on_update=on_update)
        components = policy.weights()
        version = self._publisher.publish(components, keep=True)
        self._cloned = WeightSnapshot(version=version, components=components, hashes={})
        return version

    def start(self, start_from: int | None, *, make: Callable[[Algorithm, TrainablePolicy], Trained]) -> Trained:
        """Make the learner, from the checkpoint if there is one, or else from a version of weights, or from scratch."""
        policy = self.policy or self._fleet().trainable()
        self.policy = policy
        save_components(policy, self._folder.components)
        demonstrated = self._store.demonstrated()
        if demonstrated:
            policy.fit_normalizer(demonstrated)
        if start_from is not None and not self.checkpoints.exists:
            policy.load(self._weights(start_from))
        learner = make(self._fleet().algorithm(policy), policy)
        if self.checkpoints.exists:
            state, facts = self.checkpoints.load()
            learner.load_state_dict(state)
            self.published_at = int(facts.get("published", -1))
        self.learner = learner
        return learner

    def make_learner(
        self, algorithm: Algorithm, policy: TrainablePolicy, *, stream_name: str = "learner"
    ) -> Learner:
        """A learner from the replay. `stream_name` is the key of its random numbers."""
        learner = self._config.learner
        return Learner(
            algorithm=algorithm,
            replay=self._replay(policy),
            robot=self._fleet().robot(policy),
            rng=stream(self._config.run.seed, stream_name),
            utd=learner.utd,
            start_after_steps=learner.start_after_steps,
            num_ahead=learner.prefetch,
            max_bad_updates=learner.max_bad_updates,
            device=find_device(self._config.device),
            ticks_per_step=ticks_of_step(self._config, self._fleet().assembly.robot.spec),
        )

    def _weights(self, version: int) -> WeightSnapshot:
        if self._cloned is not None and self._cloned.version == version:
            return self._cloned
        return DiskWeightStore(self._folder.weights).load(version)

    # ---- weights

    @property
    def has_published(self) -> bool:
        return self.published_at >= 0

    @property
    def is_published(self) -> bool:
        return self.learner is not None and self.published_at == self.learner.num_updates

    def is_due(self, learner: Checkpointable) -> bool:
        """Whether `learner.publish_every` updates were done; always if that is not set."""
        every = self._config.learner.publish_every
        return every is None or learner.num_updates // every > self.published_at // every

    def publish(self, *, keep: bool = False) -> int:
        """Publish the learned weights; with `keep`, also to disk."""
        assert self.learner is not None
        with self._timed("publishing"):
            version = self._publisher.publish(self.learner.policy_weights(), keep=keep)
        self.published_at = self.learner.num_updates
        return version

    # ---- checkpoints

    def save(self) -> None:
        """Save a checkpoint. Its weights are on disk before it."""
        learner = self.learner
        assert learner is not None
        if not self._publisher.writes_every_version:
            self.publish(keep=True)
        facts = self._facts()
        with self._timed("saving"):
            self.checkpoints.save(learner.state_dict(), facts)
        self.saved_at = learner.num_updates
        self.num_saved += 1
        self._folder.event("checkpoint", env_steps=facts["env_steps"], updates=learner.num_updates)

    def keep_if_due(self) -> None:
        """Save a checkpoint that is kept, if `run.checkpoint_every_updates` divides the number of updates."""
        learner, every = self.learner, self._config.run.checkpoint_every_updates
        if (
            learner is None
            or every is None
            or learner.num_updates in (0, self.kept_at)
            or learner.num_updates % every
        ):
            return
        self.kept_at = learner.num_updates
        self.checkpoints.keep(learner.state_dict(), self._facts(), num_updates=learner.num_updates)

    def save_best(self, figure: Mapping[str, float], by: str) -> None:
        """Save the present state as the best. A process that was restarted has the same state in its last checkpoint.

        `figure` is the success rate, or the mean return where there is no success: see `best_figure`.
        """
        learner = self.learner
        if learner is not None and learner.healthy:
            self.checkpoints.save_best(learner.state_dict(), self._facts(), figure=figure, by=by)
        elif learner is None and self.checkpoints.exists:
            state, facts = self.checkpoints.load()
            self.checkpoints.save_best(state, facts, figure=figure, by=by)

    def _facts(self) -> dict[str, int | float | str]:
        return {"env_steps": self._store.env_steps(), "published": self.published_at}
