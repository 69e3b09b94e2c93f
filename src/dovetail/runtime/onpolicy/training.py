"""Learning from one's own rollouts: N simulated worlds, kept in memory, collected before each update or during it.

    practice = OnPolicy(config, algorithm=algorithm, control_hz=10.0)
    while practice.env_steps < budget:
        lesson = practice.step()          # one rollout, one update, one new version of the weights

There is one loop. Whether it is synchronous is up to the collector: one in this process starts when it is asked, one in
a process of its own (`algorithm.asynchronous`) has started long before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import torch

from dovetail.config.plugins import resolve
from dovetail.config.schema import DEFAULT_SECTIONS, PluginSection, RunConfig
from dovetail.core.errors import CheckpointError, FailureError, UsageError
from dovetail.core.types import Array
from dovetail.learn.device import find_device
from dovetail.learn.finite import BadUpdates, SkippedUpdate
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.runs.folder import RunFolder
from dovetail.runs.skipped_updates import telling_skips
from dovetail.runs.status import RunStatus
from dovetail.runtime.onpolicy.collector import ProcessCollector, build_collector, collector_orders
from dovetail.runs.rollout_history import RolloutResult, finished_episodes

__all__ = ["OnPolicy", "check_practice", "is_on_policy"]


class RolloutSource(Protocol):
    """Who collects. `load` hands over weights that nobody changes any more."""

    def load(self, weights: Mapping[str, Mapping[str, Array]], *, version: int) -> None: ...

    def collect(self) -> dict[str, Array] | None: ...

    def close(self) -> None: ...


class OnPolicy:
    """A learner and where its rollouts come from. Worlds are built with the first step, not before."""

    def __init__(
        self,
        config: RunConfig,
        *,
        algorithm: OnPolicyAlgorithm,
        control_hz: float,
        should_stop: Callable[[], bool] = lambda: False,
        folder: RunFolder | None = None,
    ) -> None:
        check_practice(config)
        self._control_hz = control_hz
        self._config, self._algorithm, self._should_stop = config, algorithm, should_stop
        self._practice = algorithm.practice
        self._folder = folder  # of the run, for its events, and where episodes are to be recorded
        self._source: RolloutSource | None = None
        self._worlds: dict[str, Array] = {}  # where each stands
        self._bad = BadUpdates(config.learner.max_bad_updates)
        self.healthy = True  # until an update broke: from then on nothing is worth keeping
        self.num_updates = 0  # rollouts learned from, and so the version of the weights
        self.env_steps = 0
        self.num_ended = 0  # episodes

    def lessons(
        self,
        status: RunStatus,
        *,
        note: Callable[[RolloutResult], None] = lambda lesson: None,
        save: Callable[[OnPolicy], None] = lambda practice: None,
        solved: Callable[[], bool] = lambda: False,
    ) -> Iterator[RolloutResult]:
        """Step until the run's budget is spent, its task is solved or it is to end; each is noted, then now and then all is
        saved. One that goes on from a checkpoint begins with the recent episodes that the run had then."""
        run, saved_s = self._config.run, time.monotonic()
        self._count(status)
        self._recall(status)
        status.begin("practising", run.env_steps, done=self.env_steps)
        while self.env_steps < run.env_steps and not solved() and not self._should_stop():
            with telling_skips(self._folder, self):
                lesson = self.step()
            if lesson is None:
                return
            self._count(status, lesson)
            note(lesson)
            if time.monotonic() - saved_s > run.checkpoint_every_s:
                save(self)
                saved_s = time.monotonic()
            yield lesson

    def step(self) -> RolloutResult | None:
        """The next rollout and the update that it gives; None if the run is to end."""
        began_s = time.monotonic()
        if self._source is None:
            self._source = self._start()
        rollout = self._source.collect()
        if rollout is None:
            return None
        collected_s = time.monotonic()
        device = find_device(self._config.device)
        tensors = {n: torch.from_numpy(array).to(device) for n, array in rollout.items() if not _is_book(n)}
        metrics = self._update(tensors)
        self.num_updates += 1
        self.env_steps += rollout["reward"].size
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
        orders = collector_orders(self._config, self._practice, num_rollouts=self.num_updates, folder=self._folder)
        source: RolloutSource
        if self._practice.asynchronous:
            source = ProcessCollector(orders, self._worlds, should_stop=self._should_stop)
        else:
            source = build_collector(orders, self._worlds)
        source.load(self._algorithm.policy_weights(), version=self.num_updates)
        return source

    def _count(self, status: RunStatus, lesson: RolloutResult | None = None) -> None:
        status.env_steps = status.done = self.env_steps
        status.episodes, status.updates = self.num_ended, self.num_updates
        status.robot_minutes = self.env_steps / self._control_hz / 60.0
        if lesson is not None:
            status.metrics |= lesson.metrics
            status.recent_success.extend(map(float, lesson.episodes.get("success", ())))
            status.recent_return.extend(map(float, lesson.returns))
            status.recent_human.extend(np.zeros(len(lesson.returns)))

    def _recall(self, status: RunStatus) -> None:
        """What tells whether it is solved, and which checkpoint is the best, goes on too."""
        if self._folder is None:
            return
        known = list(finished_episodes(self._folder.path, env_steps=self.env_steps))
        for recent in (status.recent_success, status.recent_return, status.recent_human):
            recent.clear()
        status.recent_success.extend(float(success) for success, _ in known)
        status.recent_return.extend(value for _, value in known)
        status.recent_human.extend(np.zeros(len(known)))

    def _update(self, rollout: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
        """A rollout that cannot be learned from counts all the same: it was collected, and a version follows it."""
        metrics: Mapping[str, float] = {}
        try:
            metrics = self._algorithm.update(rollout)
        except SkippedUpdate as reason:
            try:
                self._bad.add(reason, number=self.num_updates)
            except FailureError:
                self.healthy = False
                raise
        except BaseException:  # in the midst of it
            self.healthy = False
            raise
        bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if bad:
            self.healthy = False
            raise FailureError(f"learning broke at update {self.num_updates}: {bad}. Try a lower learning rate")
        return {**metrics, "skipped_updates": float(self._bad.count)}

    # ---- checkpoints: the learner goes on exactly where it was, and each world in the midst of its episode

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
            raise CheckpointError(f"the checkpoint is not of on-policy learning: {error}") from error
        self._algorithm.load_state_dict(
            {name.removeprefix("algorithm/"): v for name, v in state.items() if name.startswith("algorithm/")}
        )
        self.close()  # worlds that are under way belong to the state before
        self.num_updates, self.env_steps, self.num_ended = num_updates, env_steps, num_ended
        self._worlds = {
            n.removeprefix("practice/"): v for n, v in state.items() if n.startswith("practice/worlds/")
        }
        if "practice/num_episodes" in state:  # of before worlds went on in the midst of one: each with its next
            self._worlds = {"worlds/num_episodes": state["practice/num_episodes"]}
        self._bad.count = sum(num_skipped)  # none, in a checkpoint of before they were counted


def is_on_policy(config: RunConfig) -> bool:
    """Whether its algorithm learns from rollouts; it is not built for that."""
    return hasattr(resolve("algorithm", config.algorithm.type), "practice")


def check_practice(config: RunConfig, *, demonstrated: bool = False) -> None:
    """Refuse what on-policy learning would silently leave out. `demonstrated`: somebody has shown it, imported or not."""
    labeler = PluginSection.parse("labeler", DEFAULT_SECTIONS["labels"][0])
    if config.labels != [labeler]:
        raise UsageError(
            "on-policy learning takes the task's own rewards at every tick, so leave out `labels`: set task.reward"
        )
    if config.labeling.hide_success:
        raise UsageError("on-policy learning takes the task's own rewards: set labeling.hide_success=false")
    if config.learner.ranks > 1:
        raise UsageError(
            f"learner.ranks is for algorithms that learn from replay, and {config.algorithm.type} does not"
        )
    learner, normalizes = config.learner, getattr(config.algorithm.config, "normalize", False)
    if (
        (demonstrated or config.run.demos)
        and learner.bc_updates
        and learner.start_from == "cloning"
        and normalizes
    ):
        raise UsageError(
            "algorithm.normalize shows a cloned policy another world than it was cloned in: set it to false, or "
            "learner.start_from=scratch"
        )
    if config.operator.type != "none":
        raise UsageError(
            f"nobody can take over in {config.algorithm.type}'s many worlds at once: set operator: none, not "
            f"'{config.operator.type}'"
        )


def _is_book(name: str) -> bool:
    return name.startswith(("episode/", "worlds/"))
