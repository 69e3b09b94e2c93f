"""Online episodes of the deployed policy that count for its success rate: without help, and as in evaluations."""

from __future__ import annotations

from dovetail.core.rollback_test import RollbackTest
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.deployment import Deployment
from dovetail.runs.folder import RunFolder

__all__ = ["WatchedEpisodes"]

_MAX_WATCHED = 20_000  # episodes of one deployed version; their ids are in deployment.json


class WatchedEpisodes:
    """`count` observes each such episode once. The expected rate comes from evaluations, so only episodes like these count:

    - a person took no step;
    - the deployed version acted from the first step to the last;
    - there was exploration noise exactly if `run.eval_noise` is set;
    - the base did not act alone at first: episodes with noise may (`actor.probe_share`);
    - the task's own success is not hidden (`labeling.hide_success`).
    """

    def __init__(self, folder: RunFolder) -> None:
        config = folder.config
        self._log, self._labels = EpisodeLog(folder.episodes), LabelStore(folder.labels)
        self._noiseless = not config.run.eval_noise
        probes = getattr(config.actor.config, "probe_share", 0.0) > 0.0
        self._hidden = config.labeling.hide_success or (probes and not self._noiseless)
        self._seen: set[str] = set()
        self._version: int | None = None
        self._num_episodes = -1

    def count(self, deployment: Deployment, *, num_episodes: int) -> RollbackTest | None:
        """Observe new episodes, if their number has changed. Returns the last test; an alarm has rolled back already."""
        version, test = deployment.deployed.version, None
        if self._hidden or (version, num_episodes) == (self._version, self._num_episodes):
            return None
        if version != self._version:
            self._seen = set(deployment.watched)
        self._version, self._num_episodes = version, num_episodes
        for episode_id in self._log.ids():
            success = None if episode_id in self._seen else self._success(episode_id, version)
            if success is None or len(deployment.watched) >= _MAX_WATCHED:
                continue
            test = deployment.observe(success=success, episode_id=episode_id)
            if test is not None and test.alarm:
                break
        return test

    def _success(self, episode_id: str, version: int | None) -> bool | None:
        """Whether the episode succeeded. None: it does not count, or has no labels yet."""
        if not self._counts(self._log.manifest(episode_id), version):
            self._seen.add(episode_id)
            return None
        if (labels := self._labels.current(episode_id)) is None:
            return None
        self._seen.add(episode_id)
        return None if labels.discard else bool(labels.success)

    def _counts(self, info: EpisodeInfo, version: int | None) -> bool:
        acted = {one for one in info.policy_versions if one > 0}  # 0: the arm held
        return (
            info.purpose is Purpose.ONLINE
            and info.outcome is not Outcome.ABORTED
            and info.has_success
            and info.num_human_steps == 0
            and info.deterministic is self._noiseless
            and acted == {version}
        )
