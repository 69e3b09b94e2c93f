"""The learner: reads the replay that the store writes, as fast as the update-to-data ratio lets it, and publishes. It
waits for nobody, and nobody for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dovetail.core.contracts import Algorithm
from dovetail.core.errors import CheckpointError, one_line
from dovetail.core.streams import stream
from dovetail.core.types import Array
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.learn.device import find_device
from dovetail.learn.learner import Learner
from dovetail.learn.memory import keep_freed_memory
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.fleet import Fleet, build_fleet
from dovetail.runs.assembly.policy_components import keep_parts
from dovetail.runs.folder import RunFolder
from dovetail.runs.skipped_updates import telling_skips
from dovetail.runtime.ray.roles.handles import StoreHandle
from dovetail.runtime.ray.roles.ranks import RankLost, RayRanks
from dovetail.runtime.ray.roles.role import Role, only_one
from dovetail.runtime.ray.roles.weights import Publisher
from dovetail.weights.store import DiskWeightStore

__all__ = ["LearnerRole"]

_IDLE_S = 0.25  # at most, until it is told of new steps
_VERSIONS, _SET_ASIDE = "versions.json", 100
_A_WHILE_S = 1.0  # of updates between two looks at what is new: what was sampled ahead is thrown away then
_TELL_S, _REMIND_S = 0.25, 1.0


class LearnerRole(Role):
    """`clone` returns when it is done. `learn` begins, or goes on from the checkpoint, until told to `rest`."""

    def __init__(self, name: str, *, path: Path, store: Any, weights: Any) -> None:
        super().__init__(name)
        torch.set_flush_denormal(True)
        keep_freed_memory()
        self._folder = RunFolder.open(path)
        self._config = self._folder.config
        self._ended = threading.Event()
        self._store = StoreHandle(store, until=self._ended.is_set)
        self._told = store
        self._publisher = Publisher(weights, half=self._config.cluster.weights_precision == "bf16")
        self._lock = only_one(path / ".learner.lock")
        self._disk = DiskWeightStore(self._folder.weights)
        self._band: Fleet | None = None
        self._policy: TrainablePolicy | None = None  # that learns online
        self._learner: Learner | None = None
        self._ranks: RayRanks | None = None  # those that learn with it, where there are any
        self._wanted = threading.Event()
        self._turn = threading.Lock()  # whoever works with the networks
        self._has_demos = False
        self._version = self._set_aside = 0  # the newest that was given out, and the last that may be
        self._published, self._published_s = -1, 0.0  # at so many updates, and when
        self._saved, self._saved_s = -1, time.monotonic()  # the same of the checkpoint
        self._told_s, self._seen_steps = 0.0, -1
        self._progress = (0, 0)
        self._metrics: dict[str, float] = {}
        self._hopeless = False  # this process: another may do
        threading.Thread(target=self._work, name="learning", daemon=True).start()

    # ---- what it is asked for

    def clone(self) -> int:
        """Behaviour cloning; returns the version that holds it."""
        with self._turn, self.working("cloning"):
            policy, num_updates = self._made().trainable(), self._config.learner.bc_updates
            policy.fit_normalizer(self._store.demonstrated())
            algorithm = Imitation(ImitationConfig(), policy=policy, seed=self._config.run.seed)
            learner = self._make(algorithm, policy, role="cloning")

            def note() -> None:
                self._progress = (learner.num_warmup_updates, num_updates)

            with telling_skips(self._folder, learner):
                learner.warm_up(num_updates, on_update=note)
            return self._publish(policy.weights(), keep=True)

    def learn(self, start_from: int | None) -> None:
        """Begin with a version of weights, or go on from the checkpoint. Harmless if it is at it."""
        with self._turn:
            if self._learner is None:
                try:
                    with self.working("taking up its checkpoint"), self._whole():
                        self._learner = self._begin(start_from)
                except Exception as error:  # after a restart nobody listens to the answer: all are told
                    self._give_up(error)
                    raise
                self._publish_now()
            self._wanted.set()

    def look_again(self) -> None:
        """At the demonstrations: an arm that came late has shown what it sees. Where all have one set of statistics, those
        stay: networks have been trained with them."""
        with self._turn:
            if self._policy is not None and hasattr(self._policy, "canon"):
                self._policy.fit_normalizer(self._store.demonstrated())

    def rest(self) -> int:
        """Stop for now, with all that was learned safe; returns its version."""
        self._wanted.clear()
        with self._turn, self._whole():
            if self._learner is not None and self._learner.healthy:
                self._save()
            return max(self._disk.versions(), default=0)

    def publish_again(self) -> None:
        """To whoever has forgotten."""
        with self._turn:
            if self._learner is not None:
                self._publish(self._learner.policy_weights())

    def save_best(self, success: float, by: str) -> None:
        with self._turn:
            if self._learner is None:  # started anew: what was evaluated, it saved before it rested
                if not self._has_checkpoint:
                    return
                state, facts = load_checkpoint(self._checkpoint)
            elif self._learner.healthy:
                state, facts = self._learner.state_dict(), self._facts()
            else:
                return
            best = {**facts, "success": success, "by": by}
            save_checkpoint(self._folder.checkpoints / "best", state, facts=best)

    def report(self) -> dict[str, Any]:
        learner = self._learner
        seconds = time.monotonic() - self._published_s if self._published_s else None
        return {
            **self.about(),
            "hopeless": self._hopeless,
            "learning": self._wanted.is_set(),
            "updates": learner.num_updates if learner else 0,
            "online_updates": learner.num_online_updates if learner else 0,
            "warmup_updates": learner.num_warmup_updates if learner else 0,
            "skipped_updates": learner.num_skipped_updates if learner else 0,
            "progress": self._progress,
            "metrics": dict(self._metrics),
            "version": self._version,
            "since_publication_s": None if seconds is None else round(seconds, 2),
        }

    def close(self) -> None:
        self._ended.set()
        self.rest()
        if self._set_aside:
            self._folder.write_json(_VERSIONS, {"used_up_to": self._version})
        if self._ranks is not None:
            self._ranks.close()

    # ---- its own work

    def _work(self) -> None:
        while not self._ended.is_set():
            if not self._wanted.wait(0.1):
                continue
            try:
                with self._turn, self._whole():
                    busy = self._wanted.is_set() and self._learn_a_while()
                    if (
                        self._wanted.is_set()
                        and time.monotonic() - self._saved_s > self._config.run.checkpoint_every_s
                    ):
                        self._save()
                if not busy and self._store.trained_steps(more_than=self._seen_steps, wait_s=_IDLE_S) is None:
                    time.sleep(_IDLE_S)  # the store is being started anew
            except Exception as error:  # a thread's border: whoever watches is told, and the last checkpoint stays
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._hopeless = _is_out_of_memory(error)
        self.problem = f"out of memory: {one_line(error)}" if self._hopeless else one_line(error)
        self._wanted.clear()

    def _learn_a_while(self) -> bool:
        """Some of the updates that are owed; False if there are none."""
        learner = self._learner
        assert learner is not None
        warmup = self._config.learner.warmup_updates if self._has_demos else 0
        until_s = time.monotonic() + _A_WHILE_S
        if learner.num_warmup_updates < warmup:
            with self.working("warming up"), telling_skips(self._folder, learner):
                self._metrics = dict(learner.warm_up(min(warmup, learner.num_warmup_updates + 20)))
            self._progress = (learner.num_warmup_updates, warmup)
            if learner.num_warmup_updates >= warmup:
                self._save()
                self._publish_now()
            return True
        trained_steps = self._store.trained_steps()
        if trained_steps is None:
            return False
        self._seen_steps = trained_steps
        if learner.owed(trained_steps) <= 0:
            if time.monotonic() - self._told_s > _REMIND_S:  # a store that was started anew has forgotten
                self._tell(learner)
            return False
        done = learner.num_online_updates
        with self.working("learning"), telling_skips(self._folder, learner):
            self._metrics |= learner.step(
                env_steps=trained_steps,
                on_update=lambda: self._updated(learner),
                enough=lambda: time.monotonic() > until_s or not self._wanted.is_set(),
            )
        for phase, seconds in learner.take_seconds().items():
            self.spent(phase, seconds)
        did = learner.num_online_updates > done
        self._tell(learner, waits=not did and learner.wants.waits)
        return did

    def _updated(self, learner: Learner) -> None:
        self._publish_when_due(learner)
        if time.monotonic() - self._told_s > _TELL_S:
            self._tell(learner)

    def _tell(self, learner: Learner, *, waits: bool = False) -> None:
        """The store, which lets simulated arms go on as it hears of updates."""
        self._told_s = time.monotonic()
        self._store.learned(learner.num_online_updates, wants=learner.wants, metrics=self._metrics, waits=waits)

    def _begin(self, start_from: int | None) -> Learner:
        band = self._made()
        policy = band.trainable()
        keep_parts(policy, self._folder.parts)
        demonstrated = self._store.demonstrated()
        self._has_demos = bool(demonstrated)
        if demonstrated:
            policy.fit_normalizer(demonstrated)
        if start_from is not None and not self._has_checkpoint:
            policy.load(self._disk.load(start_from))
        self._policy = policy
        algorithm = self._lead(band.algorithm(policy), policy)
        learner = self._make(algorithm, policy, role="learner")
        if self._has_checkpoint:
            state, facts = load_checkpoint(self._checkpoint)
            if facts.get("config_hash") != self._folder.config_hash:
                raise CheckpointError(
                    f"checkpoint {self._checkpoint} belongs to another config than its run folder"
                )
            learner.load_state_dict(state)
        self._store.learned(learner.num_online_updates, wants=learner.wants, metrics={})
        return learner

    # ---- weights and checkpoints

    def _publish_when_due(self, learner: Learner) -> None:
        every = self._config.learner.publish_every or max(1, round(self._config.learner.utd * 25))
        if learner.num_updates // every > self._published // every:
            self._publish_now()

    def _publish_now(self) -> None:
        assert self._learner is not None
        if self._published != self._learner.num_updates:
            self._publish(self._learner.policy_weights())
            self._published = self._learner.num_updates

    def _publish(self, components: Mapping[str, Mapping[str, Array]], *, keep: bool = False) -> int:
        """Into shared memory, where arms take them from; to the disk as well where they are to be kept."""
        with self.working("publishing"):
            self._version = self._next_version()
            if keep:
                self._disk.publish(components, version=self._version)
            pinned = self._disk.pinned()
            if pinned is None:
                self._publisher.publish(components, version=self._version)
            else:
                self._publisher.publish(self._disk.load(pinned).components, version=pinned)
            normalizer = dict(components.get("normalizer", {}))
            updates = self._learner.num_online_updates if self._learner else 0
            self._told.published.remote(self._version, pinned or self._version, normalizer, updates=updates)
            self._published_s = time.monotonic()
            return self._version

    def _next_version(self) -> int:
        """Higher than any that was ever given out, also by a process that was killed and has told nobody: so some are
        set aside on the disk before one of them is used."""
        version = self._version + 1
        if version > self._set_aside:
            self._set_aside = version + _SET_ASIDE - 1
            self._folder.write_json(_VERSIONS, {"used_up_to": self._set_aside})
        return version

    def _save(self) -> None:
        if self._learner is not None and self._learner.healthy and self._saved != self._learner.num_updates:
            with self.working("saving"):
                self._publish(self._learner.policy_weights(), keep=True)
                self._published = self._learner.num_updates
                save_checkpoint(self._checkpoint, self._learner.state_dict(), facts=self._facts())
            self._saved = self._learner.num_updates
            self._folder.event(
                "checkpoint", env_steps=self._facts()["env_steps"], updates=self._learner.num_updates
            )
        self._saved_s = time.monotonic()

    def _facts(self) -> dict[str, Any]:
        return {
            "env_steps": self._store.trained_steps() or 0,
            "config_hash": self._folder.config_hash,
            "published": self._published,
            "version": self._version,
        }

    @property
    def _checkpoint(self) -> Path:
        return self._folder.checkpoints / "last"

    @property
    def _has_checkpoint(self) -> bool:
        return (self._checkpoint / "manifest.json").exists()

    # ---- small things

    def _made(self) -> Fleet:
        """What it learns with, made when it is first needed; and the version to count on from."""
        if self._band is None:
            self._band = build_fleet(self._config, parts=self._folder.parts)
            before = self._folder.read_json(_VERSIONS) or {"used_up_to": 0}
            self._version = max(before["used_up_to"], max(self._disk.versions(), default=0))
        return self._band

    def _make(self, algorithm: Algorithm, policy: TrainablePolicy, *, role: str) -> Learner:
        learner, band = self._config.learner, self._made()
        return Learner(
            algorithm=algorithm,
            replay=band.replay(self._folder.replay, policy),  # to read only
            robot=band.robot(policy),
            rng=stream(self._config.run.seed, role),
            utd=learner.utd,
            start_after_steps=learner.start_after_steps,
            num_ahead=learner.prefetch,
            max_bad_updates=learner.max_bad_updates,
            device=find_device(self._config.device),
        )

    # ---- ranks

    def _lead(self, algorithm: Algorithm, policy: TrainablePolicy) -> Algorithm:
        if self._config.learner.ranks == 1:
            return algorithm
        with self.working("starting the other ranks"):
            band = self._made()
            self._ranks = RayRanks(self._folder, robot=band.station.robot.spec, replayed=band.robot(policy))
            self._ranks.start()
            return self._ranks.lead(algorithm)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Without one of its ranks it is nothing: Ray starts this process anew, and it goes on from its checkpoint."""
        try:
            yield
        except RankLost as error:
            self._folder.event("lost", role="rank", reason=str(error))
            os._exit(1)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)  # as torch says it on a CPU
