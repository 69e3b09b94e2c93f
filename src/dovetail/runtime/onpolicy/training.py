"""The training loop of on-policy algorithms: collect a rollout from N simulated worlds, update, publish, repeat.

    training = OnPolicy(config, algorithm=algorithm, control_hz=10.0)
    while training.env_steps < budget:
        result = training.step()          # one iteration: one rollout, one update, one new version of the weights

The same loop is synchronous or asynchronous: a collector in this process starts when `step` calls it, a collector in
another process (`algorithm.asynchronous`) works during the update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch

from dovetail.config.schema import DEFAULT_SECTIONS, PluginSection, RunConfig
from dovetail.core.abilities import ConfiguresNormalization, NeedsVerdict
from dovetail.core.errors import CheckpointError, FailureError, UsageError
from dovetail.core.figures import EpisodeScore
from dovetail.core.types import Array
from dovetail.learn.batches import rollout_batch
from dovetail.learn.finite import BadUpdates, SkippedUpdate
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.policies.device import find_device
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import RolloutResult, finished_episodes
from dovetail.runs.skipped_updates import report_skipped_updates
from dovetail.runs.status import RunStatus
from dovetail.runtime.onpolicy.collector import ProcessCollector, build_collector, collector_settings

__all__ = ["OnPolicy", "check_on_policy"]


_NOT_LEARNED = ("episode/", "worlds/")  # arrays of a rollout that are not for the update


class RolloutSource(Protocol):
    """A collector in this process or in another one. The weights given to `load` must not change afterwards."""

    def load(self, weights: Mapping[str, Mapping[str, Array]], *, version: int) -> None: ...

    def collect(self) -> dict[str, Array] | None: ...

    def close(self) -> None: ...


class OnPolicy:
    """An algorithm and its source of rollouts. The first step builds the worlds."""

    def __init__(
        self,
        config: RunConfig,
        *,
        algorithm: OnPolicyAlgorithm,
        control_hz: float,
        should_stop: Callable[[], bool] = lambda: False,
        folder: RunFolder | None = None,
    ) -> None:
        check_on_policy(config)
        self._control_hz = control_hz
        self._config, self._algorithm, self._should_stop = config, algorithm, should_stop
        self._rollouts = algorithm.rollout_settings
        self._folder = folder  # for events and recorded episodes
        self._source: RolloutSource | None = None
        self._worlds: dict[str, Array] = {}  # their state, see Collector
        self._bad = BadUpdates(config.learner.max_bad_updates)
        self.healthy = True  # False after a failed update; the state must not be saved
        self.num_updates = 0  # also the version of the weights
        self.env_steps = 0
        self.num_ended = 0  # episodes

    def begin(self, status: RunStatus) -> None:
        """Set the counts in `status`; after a resume, also its recent episodes."""
        self._update_status(status)
        self._restore_recent(status)

    def iterate(self, status: RunStatus) -> RolloutResult | None:
        """`step`, count it in `status`, and report skipped updates; None if the run is to end."""
        if self._should_stop():
            return None
        with report_skipped_updates(self._folder, self):
            result = self.step()
        if result is not None:
            self._update_status(status, result)
        return result

    def step(self) -> RolloutResult | None:
        """One rollout and one update; None if the run is to end."""
        began_s = time.monotonic()
        if self._source is None:
            self._source = self._start()
        rollout = self._source.collect()
        if rollout is None:
            return None
        collected_s = time.monotonic()
        learned = {name: array for name, array in rollout.items() if not name.startswith(_NOT_LEARNED)}
        metrics = self._update(rollout_batch(learned, device=find_device(self._config.device)))
        self.num_updates += 1
        self.env_steps += int(rollout["num_executed"].sum())
        self._worlds = {name: values for name, values in rollout.items() if name.startswith("worlds/")}
        self._source.load(self._algorithm.policy_weights(), version=self.num_updates)
        waited = {"collect_s": collected_s - began_s, "update_s": time.monotonic() - collected_s}
        episodes = {n.removeprefix("episode/"): v for n, v in rollout.items() if n.startswith("episode/")}
        self.num_ended += len(episodes.get("success", ()))
        return RolloutResult(
            metrics={**metrics, "reward_std": float(rollout["reward"].std()), **waited}, episodes=episodes
        )

    @property
    def num_skipped_updates(self) -> int:
        return self._bad.count

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._algorithm.policy_weights()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _start(self) -> RolloutSource:
        settings = collector_settings(
            self._config, self._rollouts, num_rollouts=self.num_updates, folder=self._folder
        )
        source: RolloutSource
        if self._rollouts.asynchronous:
            source = ProcessCollector(settings, self._worlds, should_stop=self._should_stop)
        else:
            source = build_collector(settings, self._worlds)
        source.load(self._algorithm.policy_weights(), version=self.num_updates)
        return source

    def _update_status(self, status: RunStatus, result: RolloutResult | None = None) -> None:
        status.env_steps = status.done = self.env_steps
        status.episodes, status.updates = self.num_ended, self.num_updates
        status.robot_minutes = self.env_steps / self._control_hz / 60.0
        if result is not None:
            status.metrics |= result.metrics
            for score in result.scores(control_hz=self._control_hz):
                _remember(status, score)

    def _restore_recent(self, status: RunStatus) -> None:
        """Recent episodes decide whether the task is solved and which checkpoint is the best."""
        if self._folder is None:
            return
        status.forget()
        for score in finished_episodes(self._folder.path, env_steps=self.env_steps, control_hz=self._control_hz):
            _remember(status, score)

    def _update(self, rollout: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
        """A skipped update counts as an update: its rollout was collected, and a version follows it."""
        metrics: Mapping[str, float] = {}
        try:
            metrics = self._algorithm.update(rollout)
        except SkippedUpdate as reason:
            try:
                self._bad.add(reason, number=self.num_updates)
            except FailureError:
                self.healthy = False
                raise
        except BaseException:  # also an interrupt: the update is incomplete
            self.healthy = False
            raise
        bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if bad:
            self.healthy = False
            raise FailureError(f"learning failed at update {self.num_updates}: {bad}. Try a lower learning rate")
        return {**metrics, "skipped_updates": float(self._bad.count)}

    # ---- checkpoints: a resumed run continues exactly, also in the middle of episodes

    def state_dict(self) -> dict[str, Array]:
        return {
            "practice/counters": np.array(
                [self.num_updates, self.env_steps, self.num_ended, self._bad.count], np.int64
            ),
            **{f"practice/{name}": values for name, values in self._worlds.items()},
            **{f"algorithm/{name}": value for name, value in self._algorithm.state_dict().items()},
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        try:
            num_updates, env_steps, num_ended, *num_skipped = (int(n) for n in state["practice/counters"])
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"this is not a checkpoint of an on-policy algorithm: {error}") from error
        self._algorithm.load_state_dict(
            {name.removeprefix("algorithm/"): v for name, v in state.items() if name.startswith("algorithm/")}
        )
        self.close()  # the worlds belong to the previous state
        self.num_updates, self.env_steps, self.num_ended = num_updates, env_steps, num_ended
        self._worlds = {
            n.removeprefix("practice/"): v for n, v in state.items() if n.startswith("practice/worlds/")
        }
        if "practice/num_episodes" in state:  # old format: each world starts its next episode
            self._worlds = {"worlds/num_episodes": state["practice/num_episodes"]}
        self._bad.count = sum(num_skipped)  # old checkpoints do not have it


def _remember(status: RunStatus, score: EpisodeScore) -> None:
    status.remember_score(score, human_share=0.0, has_success=score.success is not None)


def check_on_policy(config: RunConfig, *, has_demos: bool = False) -> None:
    """Refuse settings that on-policy learning would ignore. `has_demos`: the run has demonstrations, imported or not."""
    labeler = PluginSection.parse("labeler", DEFAULT_SECTIONS["labels"][0])
    if config.labels != [labeler]:
        raise UsageError(
            "on-policy learning uses the task's own reward at every tick: remove `labels` and set task.reward"
        )
    if config.task is not None and isinstance(config.task.config, NeedsVerdict):
        raise UsageError(
            f"on-policy learning uses the task's own reward, and task '{config.task.type}' has none: use another algorithm"
        )
    if config.labeling.hide_success:
        raise UsageError("on-policy learning uses the task's own reward: set labeling.hide_success=false")
    learner, algorithm = config.learner, config.algorithm.config
    given_gpus = config.cluster.learner.num_gpus
    if config.runtime == "ray" and 0 < given_gpus < learner.ranks:  # its ranks are processes of one role
        raise UsageError(
            f"learner.ranks={learner.ranks} of {config.algorithm.type} needs as many GPUs, but cluster.learner.num_gpus is "
            f"{given_gpus:g}. Set it to {learner.ranks}"
        )
    normalizes = isinstance(algorithm, ConfiguresNormalization) and algorithm.normalize
    if (has_demos or config.run.demos) and learner.bc_updates and learner.start_from == "cloning" and normalizes:
        raise UsageError(
            "algorithm.normalize=true changes the inputs of a policy that was cloned without it: set it to false, or "
            "set learner.start_from=scratch"
        )
    if config.operator.type != "none":
        raise UsageError(
            f"an operator cannot take over in {config.algorithm.type}'s parallel worlds: set operator.type=none instead of "
            f"'{config.operator.type}'"
        )
