"""The store's role in a run: keeps episodes, labels and replay, counts what was done, and writes metrics and advice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from dovetail.core.abilities import CachesFeatures
from dovetail.core.contracts import Replay
from dovetail.core.types import Array, Episode, Labels, WeightSnapshot
from dovetail.learn.metrics import MetricsLog
from dovetail.policies.trainable import TrainablePolicy
from dovetail.rewards.retraining import make_retraining
from dovetail.runs.assembly.build import is_on_policy
from dovetail.runs.assembly.fleet import Fleet
from dovetail.runs.coaching import Coaching, LearnerView
from dovetail.runs.curves import Curves
from dovetail.runs.experience import EpisodeRecord, Experience, image_codec
from dovetail.runs.folder import RunFolder
from dovetail.runs.ingest import DemoCounts, EpisodeIngest
from dovetail.runs.labeling import AsksLabelers, LabelDispatcher
from dovetail.runs.offers import offers_of
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.status import RunStatus

__all__ = ["EpisodeStore"]


class EpisodeStore:
    """`commit` an episode, then `add` it: it is labeled, replayed and counted in `status`.

    `cached(id)` returns an episode that is still in memory.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        fleet: Fleet,
        policy: TrainablePolicy,
        labelers: AsksLabelers,
        status: RunStatus,
        phases: PhaseTimes,
        cached: Callable[[str], Episode | None] = lambda episode_id: None,
    ) -> None:
        config, observation = folder.config, policy.spec.observation
        self.status = status
        self.metrics = MetricsLog(
            folder.logs, wandb=config.run.wandb, name=folder.path.name, config=config.model_dump(mode="json")
        )
        self.coaching = Coaching(
            folder,
            status=status,
            metrics=self.metrics,
            policy=policy,
            real_time=fleet.assembly.real_time,
            offers=offers_of(fleet.assembly, policy),
        )
        self.experience = Experience(
            folder,
            labelers=labelers,
            replay=fleet.replay(folder.replay, policy),
            cameras=tuple(key for key, spec in observation.items() if len(spec.shape) >= 3),
            codec=image_codec(config.images),
            encoder=policy if isinstance(policy, CachesFeatures) and policy.feature_specs else None,
            replays_online=not is_on_policy(config),
            cached=cached,
        )
        self.ingest = EpisodeIngest(
            folder,
            experience=self.experience,
            status=status,
            coaching=self.coaching,
            phases=phases,
            demo_observations=fleet.demo_observations(policy),
        )
        self.curves = Curves(folder, metrics=self.metrics, status=status, phases=phases)
        self._retraining = make_retraining(folder, labelers.labelers)

    @property
    def replay(self) -> Replay:
        return self.experience.replay

    @property
    def dispatcher(self) -> LabelDispatcher:
        return self.experience.dispatcher

    def recover(self, *, on_added: Callable[[int, int], None] = lambda done, total: None) -> list[EpisodeRecord]:
        """Load the episodes of earlier processes; see `Experience.recover`."""
        return self.ingest.recover(on_added=on_added)

    def commit(self, episode: Episode) -> None:
        """Store an episode for good. It counts once it is added."""
        self.experience.commit(episode)

    def add(self, episode: Episode) -> Labels | None:
        """Have a committed episode labeled, replay and count it. None: its labels come later."""
        return self.ingest.add(episode)

    def apply_new_labels(self) -> int:
        """Apply new labels of any process; return the number of episodes that changed. Never waits."""
        num_changed = self.ingest.apply_new_labels()
        if self._retraining is not None:
            self._retraining.poll()
        return num_changed

    def demo_counts(self, robots: Collection[str] | None = None) -> DemoCounts:
        return self.ingest.demo_counts(robots)

    def demonstrated(self) -> Mapping[str, Array]:
        demos = self.ingest.demos
        return {key: np.concatenate([demo[key] for demo in demos]) for key in demos[0]} if demos else {}

    def env_steps(self) -> int:
        return self.status.env_steps

    def published(self, newest: int, served: WeightSnapshot, *, updates: int) -> None:
        """Note the newest version, its number of online updates, and the version that robots act with."""
        self.coaching.published(newest, served, updates=updates)

    def coach(self, learner: LearnerView) -> None:
        self.coaching.check(learner, self.replay)

    def write_metrics(self, group: str, values: Mapping[str, float], *, step: int) -> None:
        self.metrics.write(group, values, step=step)

    def close(self) -> None:
        if self._retraining is not None:
            self._retraining.close()
        self.experience.close()
        self.metrics.close()
