"""The learner as a Ray actor: a thread updates from the replay that the store writes, and publishes weights.

It is paced by the update-to-data ratio only. No arm waits for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dovetail.core.abilities import HasCanonicalSpace
from dovetail.core.contracts import Algorithm
from dovetail.core.errors import one_line
from dovetail.learn.learner import Learner
from dovetail.learn.memory import keep_freed_memory
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.fleet import Fleet, build_fleet
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles.learner import RunLearner
from dovetail.runs.skipped_updates import report_skipped_updates
from dovetail.runtime.ray.roles.handles import Progress, StoreHandle
from dovetail.runtime.ray.roles.ranks import RankLost, RayRanks
from dovetail.runtime.ray.roles.role import Role, exclusive_lock
from dovetail.runtime.ray.roles.weights import RayPublisher
from dovetail.weights.store import DiskWeightStore

__all__ = ["LearnerRole"]

_IDLE_S = 0.25  # longest wait for new steps
_SLICE_S = 1.0  # of updates before new episodes are sampled; batches that were sampled ahead are lost then
_REPORT_S, _REMIND_S = 0.25, 1.0


class LearnerRole(Role):
    """`clone` returns when it is done. `learn` starts or resumes learning, which continues until `pause_learning`."""

    def __init__(self, name: str, *, path: Path, store: Any, weights: Any) -> None:
        super().__init__(name)
        torch.set_flush_denormal(True)
        keep_freed_memory()
        self._folder = RunFolder.open(path, trusted=True)
        self._config = self._folder.config
        self._ended = threading.Event()
        self._store = StoreHandle(store, until=self._ended.is_set)
        self._lock_file = exclusive_lock(path / ".learner.lock")
        self._publisher = RayPublisher(
            weights,
            store,
            folder=self._folder,
            half=self._config.cluster.weights_precision == "bf16",
            online_updates=lambda: self._learner.num_online_updates if self._learner else 0,
        )
        self._run_learner = RunLearner(
            self._folder,
            fleet=lambda: self._fleet,
            store=self._store,
            replay=lambda policy: self._fleet.replay(self._folder.replay, policy),  # a reader
            publisher=self._publisher,
            timed=self.working,
        )
        self._learner: Learner | None = None
        self._ranks: RayRanks | None = None
        self._learns = threading.Event()
        self._guard = threading.Lock()  # of everything that works with the networks
        self._num_warmup_updates = 0
        self._saved_s = self._reported_s = time.monotonic()
        self._seen_steps = self._published_episodes = -1
        self._progress = (0, 0)
        self._metrics: dict[str, float] = {}
        self._must_restart = False  # a new process may recover from the problem
        threading.Thread(target=self._work, name="learning", daemon=True).start()

    @cached_property
    def _fleet(self) -> Fleet:
        return build_fleet(self._config, components=self._folder.components)

    # ---- from the driver

    def clone(self) -> int:
        """Clone the demonstrations; return the version of the weights."""
        with self._guard, self.working("cloning"):
            num_updates, num_done = self._config.learner.bc_updates, 0

            def on_update() -> None:
                nonlocal num_done
                num_done += 1
                self._progress = (num_done, num_updates)

            return self._run_learner.clone(on_update=on_update)

    def learn(self, start_from: int | None) -> None:
        """Learn, from the checkpoint if there is one, or else from a version of weights. Safe to repeat."""
        with self._guard:
            if self._learner is None:
                try:
                    with self.working("loading its checkpoint"), self._with_all_ranks():
                        self._start(start_from)
                except Exception as error:  # after a restart, the driver does not wait for the result
                    self._stop_with(error)
                    raise
            self._learns.set()

    def _start(self, start_from: int | None) -> None:
        is_new = not self._run_learner.checkpoints.exists
        has_demos = bool(self._store.demonstrated())
        self._num_warmup_updates = self._config.learner.warmup_updates if has_demos else 0
        learner = self._run_learner.start(start_from, make=self._make_learner)
        self._store.learned(learner.num_online_updates, request=learner.sample_request, metrics={})
        self._learner = learner
        if is_new:
            self._save()
        else:
            self._run_learner.publish()  # the weights role has none after a restart

    def _make_learner(self, algorithm: Algorithm, policy: TrainablePolicy) -> Learner:
        if self._config.learner.ranks > 1:
            with self.working("starting the other ranks"):
                robot = self._fleet.assembly.robot.spec
                self._ranks = RayRanks(self._folder, robot=robot, replayed=self._fleet.robot(policy))
                self._ranks.start()
                algorithm = self._ranks.lead(algorithm)
        return self._run_learner.make_learner(algorithm, policy)

    def refit_normalizer(self) -> None:
        """Include the demonstrations of arms that joined late. Without a shared policy, the statistics must not change."""
        with self._guard:
            if isinstance(self._run_learner.policy, HasCanonicalSpace):
                self._run_learner.policy.fit_normalizer(self._store.demonstrated())

    def pause_learning(self) -> int:
        """Stop learning and save; return the version of the saved weights."""
        self._learns.clear()
        with self._guard, self._with_all_ranks():
            self._save()
            return max(DiskWeightStore(self._folder.weights).versions(), default=0)

    def publish_again(self) -> None:
        """Publish the current weights again, for a weights role that was restarted."""
        with self._guard:
            if self._learner is not None:
                self._run_learner.publish()

    def save_best(self, figure: Mapping[str, float], by: str) -> None:
        with self._guard:
            self._run_learner.save_best(figure, by)

    def report(self) -> dict[str, Any]:
        learner, published_s = self._learner, self._publisher.published_s
        return {
            **self.about(),
            "must_restart": self._must_restart,
            "learning": self._learns.is_set(),
            "updates": learner.num_updates if learner else 0,
            "online_updates": learner.num_online_updates if learner else 0,
            "warmup_updates": learner.num_warmup_updates if learner else 0,
            "skipped_updates": learner.num_skipped_updates if learner else 0,
            "num_saved": self._run_learner.num_saved,
            "progress": self._progress,
            "metrics": dict(self._metrics),
            "version": self._publisher.version,
            "since_publication_s": None if not published_s else round(time.monotonic() - published_s, 2),
        }

    def close(self) -> None:
        self._ended.set()
        self.pause_learning()
        self._publisher.close()
        if self._ranks is not None:
            self._ranks.close()

    # ---- the learning thread

    def _work(self) -> None:
        while not self._ended.is_set():
            if not self._learns.wait(0.1):
                continue
            try:
                with self._guard, self._with_all_ranks():
                    busy = self._learns.is_set() and self._learn_a_while()
                    since_s = time.monotonic() - self._saved_s
                    if self._learns.is_set() and since_s > self._config.run.checkpoint_every_s:
                        self._save()
                if not busy and self._store.progress(newer_than=self._seen_steps, wait_s=_IDLE_S) is None:
                    time.sleep(_IDLE_S)  # the store restarts
            except Exception as error:  # a thread's border: the driver reads it; the last checkpoint stays
                self._stop_with(error)

    def _stop_with(self, error: Exception) -> None:
        self._must_restart = _is_out_of_memory(error)
        self.problem = f"out of memory: {one_line(error)}" if self._must_restart else one_line(error)
        self._learns.clear()

    def _learn_a_while(self) -> bool:
        """Do some of the updates that are owed; False if there are none."""
        learner = self._learner
        assert learner is not None
        if learner.num_warmup_updates < self._num_warmup_updates:
            self._warm_up_a_while(learner)
            return True
        progress = self._store.progress()
        if progress is None:
            return False
        self._seen_steps = progress.trained_steps
        if learner.owed(progress.trained_steps) <= 0:
            self._publish_after_episode(progress, caught_up=True)
            if time.monotonic() - self._reported_s > _REMIND_S:  # a restarted store has lost the count
                self._report_updates(learner)
            return False
        num_done, until_s = learner.num_online_updates, time.monotonic() + _SLICE_S
        with self.working("learning"), report_skipped_updates(self._folder, learner):
            self._metrics |= learner.step(
                env_steps=progress.trained_steps,
                on_update=lambda: self._on_update(learner),
                enough=lambda: time.monotonic() > until_s or not self._learns.is_set(),
            )
        for activity, seconds in learner.take_seconds().items():
            self.add_seconds(activity, seconds)
        did = learner.num_online_updates > num_done
        caught_up = not did or learner.owed(progress.trained_steps) <= 0
        self._publish_after_episode(progress, caught_up=caught_up)
        self._report_updates(learner, waits=not did and learner.sample_request.waits)
        return did

    def _publish_after_episode(self, progress: Progress, *, caught_up: bool) -> None:
        """Without `publish_every`, publish when the updates of an episode are done, or when the next episode has come."""
        num_new = progress.num_trained_episodes - self._published_episodes
        if self._config.learner.publish_every is not None or not num_new or (num_new == 1 and not caught_up):
            return
        self._published_episodes = progress.num_trained_episodes
        if not self._run_learner.is_published:
            self._run_learner.publish()

    def _warm_up_a_while(self, learner: Learner) -> None:
        num_updates = self._num_warmup_updates
        with self.working("warming up"), report_skipped_updates(self._folder, learner):
            done = min(num_updates, learner.num_warmup_updates + 20)
            self._metrics = dict(learner.warm_up(done, on_update=self._run_learner.keep_if_due))
        self._progress = (learner.num_warmup_updates, num_updates)
        if learner.num_warmup_updates >= num_updates:
            self._save()

    def _on_update(self, learner: Learner) -> None:
        self._run_learner.keep_if_due()
        if self._config.learner.publish_every is not None and self._run_learner.is_due(learner):
            self._run_learner.publish()
        if time.monotonic() - self._reported_s > _REPORT_S:
            self._report_updates(learner)

    def _report_updates(self, learner: Learner, *, waits: bool = False) -> None:
        """The store gives permits to simulated arms as updates are done."""
        self._reported_s = time.monotonic()
        self._store.learned(
            learner.num_online_updates, request=learner.sample_request, metrics=self._metrics, waits=waits
        )

    def _save(self) -> None:
        learner = self._learner
        if learner is not None and learner.healthy and self._run_learner.saved_at != learner.num_updates:
            self._run_learner.save()
        self._saved_s = time.monotonic()

    @contextmanager
    def _with_all_ranks(self) -> Iterator[None]:
        """If a rank is lost, end this process: Ray restarts it, and it continues from its checkpoint."""
        try:
            yield
        except RankLost as error:
            self._folder.event("lost", role="rank", reason=str(error))
            os._exit(1)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)  # torch's message on a CPU
