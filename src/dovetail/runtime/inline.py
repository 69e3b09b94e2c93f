"""One process, one thing after another: collect an episode, label it, add it, update, publish.

Deterministic for a seed, and the baseline that everything asynchronous is measured against. Every phase looks
first at what the folder already holds, so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.contracts import Actor, Algorithm
from dovetail.core.errors import CheckpointError, FailureError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.stats import Rate
from dovetail.core.streams import stream
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose, WeightSnapshot
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.learn.device import find_device
from dovetail.learn.learner import Learner
from dovetail.learn.metrics import MetricsLog
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.policies.trainable import CachesFeatures, TrainablePolicy
from dovetail.runtime.build import build_station
from dovetail.runtime.coaching import Coaching
from dovetail.runtime.evaluate import evaluation_episodes, order_episode
from dovetail.runtime.experience import Experience, Known, image_codec
from dovetail.runtime.folder import RunFolder
from dovetail.runtime.live import LiveLink
from dovetail.runtime.live_status import tell_also
from dovetail.runtime.onpolicy import Lesson, OnPolicy, is_on_policy
from dovetail.runtime.parts import keep_parts
from dovetail.runtime.phases import Phases
from dovetail.runtime.practice_book import note_lesson
from dovetail.runtime.ranks import RankGroup
from dovetail.runtime.schedule import Schedule
from dovetail.runtime.status import RunStatus, Watcher, nobody
from dovetail.weights.store import DiskWeightStore

__all__ = ["InlineRun", "Interrupted"]

_MAIN = ("untrained", "cloning", "after")  # evaluations that every run has


class Interrupted(Exception):  # not an error: a person asked for it
    """The run was asked to stop, and has saved what it has."""


class InlineRun:
    """`run()` takes a recipe from nothing to a trained policy; `collect()` only records demonstrations."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        watch: Watcher = nobody,
        should_stop: Callable[[], bool] = lambda: False,
        live: Callable[[RobotSpec], LiveLink] | None = None,
    ) -> None:
        self._folder = folder
        self._config = folder.config
        self._station = build_station(folder.config, parts=folder.parts, should_stop=should_stop, live=live)
        self._should_stop = self._station.should_stop
        self._watch = watch if self._station.link is None else tell_also(watch, self._station.link, folder)
        self._policy = self._station.trainable()  # the learner's; actors load what is published
        keep_parts(self._policy, folder.parts)
        self._experience = self._make_experience()
        self._weights = DiskWeightStore(folder.weights)
        self._metrics = MetricsLog(
            folder.logs,
            wandb=folder.config.run.wandb,
            name=folder.path.name,
            config=folder.config.model_dump(mode="json"),
        )
        self.status = RunStatus(name=folder.path.name)
        self._coaching = Coaching(
            folder,
            status=self.status,
            metrics=self._metrics,
            policy=self._policy,
            real_time=self._station.real_time,
        )
        self._started_s = time.monotonic()
        before = folder.read_json("progress.json") or {"wall_s": 0.0, "updates": 0}
        self._wall_before_s = float(before["wall_s"])
        self.status.updates = int(before["updates"])
        self._phases = Phases(before.get("phases"))
        self._demos: list[dict[str, Array]] = []  # what the policy saw in them
        self._num_tried_demos = 0
        self._schedule = Schedule(folder)
        self._published = -1  # at so many updates
        self._evaluates, self._offline = True, False
        self._recover()

    def run(self) -> None:
        run = self._config.run
        try:
            self._go_on_from_training()
            self._evaluate("untrained", num_episodes=run.untrained_episodes)
            self.collect(run.demos)
            self._clone()
            self._learn()
            self._evaluate("after", num_episodes=run.eval_episodes)
        finally:
            self.close()

    def train(self, *, evaluate: bool = True) -> None:
        """Offline, from demonstrations alone. Nothing moves but to demonstrate, where nobody has, and to evaluate."""
        run, self._evaluates, self._offline = self._config.run, evaluate, True
        try:
            if is_on_policy(self._config):
                raise UsageError(
                    f"algorithm '{self._config.algorithm.type}' learns by practice alone: use `dovetail run`"
                )
            if not self._demos:
                self.collect(run.demos)
            if not self._demos:
                raise UsageError(
                    "there are no demonstrations to learn from: collect or import some, or set run.demos"
                )
            self._clone()
            self._learn(online=False)
            self._evaluate("after", num_episodes=run.eval_episodes)
        finally:
            self.close()

    def close(self) -> None:
        self._station.close()
        self._experience.close()
        self._metrics.close()
        self._write_progress()

    # ---- the phases

    def _go_on_from_training(self) -> None:
        """What `train` came to is where practice begins, and not what came of it."""
        name = "evaluations/after.json"
        if (self._folder.read_json(name) or {}).get("offline"):
            (self._folder.path / name).rename(self._folder.path / "evaluations/trained.json")
            self.status.rates.pop("after")

    def collect(self, num_demos: int) -> None:
        """Have the expert demonstrate until `num_demos` demonstrations succeeded."""
        if len(self._demos) >= num_demos:  # none wanted, or all there: a task without an expert will do
            return
        self.status.begin("recording demonstrations", num_demos, done=len(self._demos))
        actor = self._actor(Purpose.DEMO)
        while len(self._demos) < num_demos:
            self._watch(self.status)
            if self._num_tried_demos >= 3 * num_demos + 10:
                raise FailureError(
                    f"only {len(self._demos)} of {self._num_tried_demos} demonstrations of task "
                    f"'{self._station.task.spec.name}' succeeded: give it more time (task.time_limit_s), or lower "
                    "run.demo_noise"
                )
            episode = self._run_episode(actor, Purpose.DEMO, self._num_tried_demos)
            if episode:
                self._learn_from(episode)
            self.status.done = len(self._demos)
        self._watch(self.status)

    def _clone(self) -> None:
        """Behaviour cloning on the demonstrations: what the report calls before, and what learning starts from."""
        config = self._config
        if not self._demos:
            return
        self._fit_normalizer(self._policy)
        if not config.learner.bc_updates:
            return
        if not self._known("cloning"):
            policy = self._station.trainable()
            self._fit_normalizer(policy)
            algorithm = Imitation(ImitationConfig(), policy=policy, seed=config.run.seed)
            self.status.begin("cloning the demonstrations", config.learner.bc_updates)
            self._make_learner(algorithm, role="cloning").warm_up(
                config.learner.bc_updates, on_update=self._updated
            )
            self._weights.publish(policy.weights())
            self._evaluate("cloning", num_episodes=config.run.eval_episodes)
        if config.learner.start_from == "cloning" and not self._has_checkpoint:
            self._policy.load(self._newest())  # nothing newer is published before the first checkpoint

    def _learn(self, *, online: bool = True) -> None:
        if self._known("after"):
            return
        config = self._config
        algorithm = self._station.algorithm(self._policy)
        if isinstance(algorithm, OnPolicyAlgorithm):
            hz = self._station.robot.spec.control_hz
            self._practise(
                OnPolicy(
                    config, algorithm=algorithm, control_hz=hz, should_stop=self._should_stop, folder=self._folder
                )
            )
            return
        with self._ranks(algorithm) as lead:
            self._learn_off_policy(self._make_learner(lead, role="learner"), online=online)

    @contextmanager
    def _ranks(self, algorithm: Algorithm) -> Iterator[Algorithm]:
        """The processes that learn with this one, where there are any."""
        config, folder = self._config, self._folder
        if config.learner.ranks == 1:
            yield algorithm
            return
        group = RankGroup(
            folder.path,
            size=config.learner.ranks,
            robot=self._station.robot.spec,
            replay=folder.replay,
            replayed=self._experience.as_replayed(self._station.robot.spec),
        )
        try:
            yield group.lead(algorithm, config)
        finally:
            group.close()

    def _learn_off_policy(self, learner: Learner, *, online: bool) -> None:
        config, status = self._config, self.status
        if self._has_checkpoint:
            learner.load_state_dict(self._load_checkpoint())
        else:
            self._save(learner)
        try:
            num_updates = config.learner.warmup_updates if self._demos else 0
            status.begin("warming up on demonstrations", num_updates, done=learner.num_warmup_updates)
            if learner.num_warmup_updates < num_updates:
                learner.warm_up(num_updates, on_update=self._updated)
                self._save(learner)  # on demonstrations alone: not to be done again once there is more in replay
            if online:
                self._learn_online(learner)
            else:
                self._weights.publish(learner.policy_weights())
        finally:
            if learner.healthy:  # otherwise the last good checkpoint stays
                self._save(learner)

    def _practise(self, practice: OnPolicy) -> None:
        """On-policy: rollouts are learned from and forgotten; they never reach the replay, and the log on request."""
        if self._has_checkpoint:
            practice.load_state_dict(self._load_checkpoint())
        self._weights.publish(practice.policy_weights())
        try:
            for lesson in practice.lessons(self.status, note=self._note_lesson, save=self._save):
                self._weights.publish(practice.policy_weights())
                spent = {"acting": lesson.metrics["collect_s"], "updating": lesson.metrics["update_s"]}
                self._phases.add(spent)
                self._write_times()
                self._coaching.look_at(lesson)
                self._watch(self.status)
                self._evaluate_when_due(practice)
                if self._solved():
                    break
        finally:
            practice.close()
            if practice.healthy:
                self._save(practice)
        self._look_up()

    def _note_lesson(self, lesson: Lesson) -> None:
        status = self.status
        self._metrics.write("online", lesson.means(), step=status.env_steps)
        self._metrics.write("learner", lesson.metrics, step=status.env_steps)
        note_lesson(self._folder, lesson, env_steps=status.env_steps, robot_minutes=status.robot_minutes)

    def _learn_online(self, learner: Learner) -> None:
        run, status = self._config.run, self.status
        actor = self._actor(Purpose.ONLINE)
        status.begin("learning online", run.env_steps, done=status.env_steps)
        self._watch(status)
        saved_s = time.monotonic()
        self._catch_up(learner)
        self._update(learner, actor)
        self._evaluate_when_due(learner, actor)
        while status.env_steps < run.env_steps and not self._solved():
            episode = self._run_episode(actor, Purpose.ONLINE, status.episodes)
            if episode is None:
                continue
            labels = self._learn_from(episode)
            self._update(learner, actor)
            self._write_curves(episode, labels)
            self._coaching.look(learner, self._experience.replay)
            self._evaluate_when_due(learner, actor)
            if time.monotonic() - saved_s > run.checkpoint_every_s:
                self._save(learner)
                saved_s = time.monotonic()
        if self._published != learner.num_updates:
            self._publish(learner)

    def _catch_up(self, learner: Learner) -> None:
        """What the log holds and the checkpoint does not know of: a kill lost it, or somebody deleted it. Episode by
        episode, each learned from before replay holds the next one: so it comes out as if nothing had happened."""
        status, phase = self.status, (self.status.phase, self.status.total)
        owed = learner.owed(status.env_steps)
        if owed <= 0:
            return
        self._folder.event("catching up", updates=owed)
        status.begin("catching up with the episodes", owed)
        practised = [place for place, one in enumerate(self._before) if one.info.purpose is Purpose.ONLINE]
        env_steps = np.cumsum([self._before[place].info.num_steps for place in practised])
        behind = [int(n) for n in np.flatnonzero([learner.owed(int(steps)) > 0 for steps in env_steps])]
        if len(behind) > 1:
            self._experience.rewind(self._before[: practised[behind[0]] + 1])
        for number in behind:
            if number != behind[0]:
                for one in self._before[practised[number - 1] + 1 : practised[number] + 1]:
                    if one.trains:
                        self._experience.add_known(one)
            status.metrics |= learner.step(env_steps=int(env_steps[number]), on_update=self._updated)
            if number != behind[-1]:
                self._publish_when_due(learner)
        self._before.clear()
        status.begin(*phase, done=status.env_steps)

    def _update(self, learner: Learner, actor: Actor) -> None:
        """The updates that the last episode has earned, then their weights to the robot."""
        status, num_skipped = self.status, learner.num_skipped_updates
        status.metrics |= learner.step(env_steps=status.env_steps, on_update=self._look_up)
        self._phases.add(learner.take_seconds())
        if learner.num_skipped_updates > num_skipped:
            self._folder.event("skipped updates", in_all=learner.num_skipped_updates, updates=learner.num_updates)
        status.updates = learner.num_updates
        status.done = status.env_steps
        with self._phases.phase("publishing"):
            self._publish_when_due(learner)
            self._hand_over(actor)
        self._watch(status)

    def _publish_when_due(self, learner: Learner) -> None:
        every, published = self._config.learner.publish_every, self._published
        if published < 0 or every is None or learner.num_updates // every > published // every:
            self._publish(learner)

    def _publish(self, learner: Learner) -> None:
        self._weights.publish(learner.policy_weights())
        self._published = learner.num_updates

    def _hand_over(self, actor: Actor) -> None:
        snapshot = self._weights.latest()  # the pinned version, where somebody has pinned one
        assert snapshot is not None
        self._coaching.published(max(self._weights.versions()), snapshot)
        actor.load(snapshot)

    def _evaluate_when_due(self, learner: Learner | OnPolicy, actor: Actor | None = None) -> None:
        status = self.status
        name = self._schedule.due(status.env_steps)
        if name is None:
            return
        if isinstance(learner, Learner) and actor is not None and self._published != learner.num_updates:
            self._publish(learner)  # what is evaluated is what the robot has
            self._hand_over(actor)
        phase = (status.phase, status.total)
        with self._phases.phase("evaluating"):
            rate = self._evaluate(name, num_episodes=self._schedule.num_episodes)
        status.begin(*phase, done=status.env_steps)
        if rate is not None and self._schedule.is_best(rate.rate):
            self._save_best(learner, success=rate.rate, by=f"evaluation {name}")

    def _evaluate(self, name: str, *, num_episodes: int) -> Rate | None:
        if not num_episodes or not self._evaluates or self._known(name):
            return None
        self.status.begin(f"evaluating: {name}", num_episodes)
        self._watch(self.status)
        ids, num_successes = [], 0
        snapshot = None if name == "untrained" else self._newest()
        for episode in evaluation_episodes(
            self._station,
            snapshot,
            num_episodes=num_episodes,
            config_hash=self._folder.config_hash,
            spool=self._experience.spool,
            weights=self._folder.weights,
        ):
            self._commit(episode)
            ids.append(episode.id)
            num_successes += episode.outcome is Outcome.SUCCESS
            self.status.done = len(ids)
            self._watch(self.status)
        if len(ids) < num_episodes:  # asked to stop between two of them
            raise Interrupted
        rate = Rate(successes=num_successes, episodes=num_episodes)
        shown = ids[: self._config.run.showcase_episodes]
        when = {"env_steps": self.status.env_steps, "robot_minutes": self.status.robot_minutes}
        facts = {"successes": rate.successes, "shown": shown, **when, **rate.to_json()}
        if self._offline:
            facts["offline"] = True
        self._folder.write_json(f"evaluations/{name}.json", facts)
        version = None if snapshot is None else snapshot.version
        self._folder.event("evaluated", name=name, version=version, **when, **rate.to_json())
        curve = {name: rate.rate}
        if name not in _MAIN:  # points of one curve
            curve = {"scheduled": rate.rate, "scheduled_low": rate.low, "scheduled_high": rate.high}
        self._metrics.write("evaluation", curve, step=self.status.env_steps)
        self.status.rates[name] = rate
        self._watch(self.status)
        return rate

    # ---- episodes

    def _actor(self, purpose: Purpose) -> Actor:
        return self._station.actor_for(purpose, spool=self._experience.spool, weights=self._folder.weights)

    def _run_episode(self, actor: Actor, purpose: Purpose, index: int) -> Episode | None:
        """One episode, safe in the log; None if a person threw it away. Then the same one is tried again."""
        order = order_episode(
            self._station,
            purpose=purpose,
            index=index,
            config_hash=self._folder.config_hash,
            robot_minutes=self.status.robot_minutes,
        )
        with self._phases.phase("acting"):
            episode = actor.run(order)
        self.status.telemetry = actor.telemetry()
        if episode is not None:
            self._commit(episode)
        if actor.stopped:
            raise Interrupted
        return None if episode is None or episode.outcome is Outcome.ABORTED else episode

    def _commit(self, episode: Episode) -> None:
        self._experience.keep(episode)
        if self._should_stop():
            raise Interrupted

    def _learn_from(self, episode: Episode) -> Labels:
        with self._phases.phase("labelling"):
            labels = self._experience.label(episode)
        known = Known(info=self._experience.log.manifest(episode.id), labels=labels)
        if known.trains:
            with self._phases.phase("adding"):
                self._experience.learn_from(episode, labels)
        self._count(known, episode)
        return labels

    def _count(self, known: Known, episode: Episode | None = None) -> None:
        """Into the books."""
        self._coaching.count(known, episode)
        if known.info.purpose is Purpose.ONLINE:
            self.status.count(known.info, known.labels)
            return
        self._num_tried_demos += (
            known.info.config_hash == self._folder.config_hash
        )  # imported ones were not tried here
        if known.trains:
            episode = episode or self._experience.log.load(known.info.id, images=False)
            low_dimensional = [k for k, spec in self._policy.spec.observation.items() if len(spec.shape) < 3]
            self._demos.append({key: episode.column(f"observation/{key}") for key in low_dimensional})

    def _recover(self) -> None:
        """What an earlier process of this run left: episodes, labels, evaluations."""
        self._before = self._experience.recover(on_added=self._rebuilding)
        for known in self._before:
            self._count(known)
        for name in _MAIN:
            rate = self._known(name)
            if rate:
                self.status.rates[name] = rate

    def _rebuilding(self, done: int, total: int) -> None:
        if done == 0:
            self.status.begin("filling the replay", total)
        self.status.done = done
        self._watch(self.status)

    # ---- small things

    @property
    def _checkpoint(self) -> Path:
        return self._folder.checkpoints / "last"

    @property
    def _has_checkpoint(self) -> bool:
        return (self._checkpoint / "manifest.json").exists()

    def _known(self, name: str) -> Rate | None:
        found = self._folder.read_json(f"evaluations/{name}.json")
        return Rate(successes=found["successes"], episodes=found["episodes"]) if found else None

    def _newest(self) -> WeightSnapshot:
        """What was learned last, whatever is pinned."""
        return self._weights.load(max(self._weights.versions()))

    def _load_checkpoint(self) -> Mapping[str, Array]:
        state, facts = load_checkpoint(self._checkpoint)
        if facts.get("config_hash") != self._folder.config_hash:
            raise CheckpointError(f"checkpoint {self._checkpoint} belongs to another config than its run folder")
        self._published = int(facts.get("published", -1))
        return state

    def _fit_normalizer(self, policy: TrainablePolicy) -> None:
        columns = {key: np.concatenate([demo[key] for demo in self._demos]) for key in self._demos[0]}
        policy.fit_normalizer(columns)

    def _make_experience(self) -> Experience:
        folder, keys = self._folder, self._policy.spec.observation
        return Experience(
            folder,
            labeler=self._station.labeler(),
            replay=self._station.replay(folder.replay, keys=tuple(keys)),
            cameras=tuple(key for key, spec in keys.items() if len(spec.shape) >= 3),
            codec=image_codec(self._config.images),
            encoder=self._policy if isinstance(self._policy, CachesFeatures) and self._policy.caches else None,
            replays_practice=not is_on_policy(self._config),
        )

    def _make_learner(self, algorithm: Algorithm, *, role: str) -> Learner:
        return Learner(
            algorithm=algorithm,
            replay=self._experience.replay,
            robot=self._experience.as_replayed(self._station.robot.spec),
            rng=stream(self._config.run.seed, role),
            utd=self._config.learner.utd,
            start_after_steps=self._config.learner.start_after_steps,
            num_ahead=self._config.learner.prefetch,
            max_bad_updates=self._config.learner.max_bad_updates,
            device=find_device(self._config.device),
        )

    def _updated(self) -> None:
        self.status.done += 1
        if self.status.done % 20 == 0:
            self._watch(self.status)
        self._look_up()

    def _look_up(self) -> None:
        """From the work, to see whether somebody wants it to end."""
        if self._should_stop():
            raise Interrupted

    def _solved(self) -> bool:
        rule, status = self._config.run.stop_when_solved, self.status
        if rule is None or status.env_steps < rule.min_env_steps:
            return False
        return status.unassisted_rate(rule.window) >= rule.success_rate

    def _write_curves(self, episode: Episode, labels: Labels) -> None:
        status = self.status
        facts: dict[str, Any] = {
            "success": float(labels.success),
            "return": float(labels.rewards.sum()),
            "human_share": episode.num_human_steps / len(episode),
            "length": float(len(episode)),
        }
        version = int(episode.column("policy_version")[-1])
        about = {"id": episode.id, "outcome": episode.outcome, "policy_version": version}
        self._folder.event("episode", **about, env_steps=status.env_steps, **facts)
        components = [name for name in episode.segments[0].columns if name.startswith("reward/")]
        facts |= {name: float(episode.column(name).sum()) for name in components}  # what the task itself gave
        self._write_times()
        self._metrics.write("online", facts, step=status.env_steps)
        self._metrics.write("learner", status.metrics, step=status.env_steps)
        self._metrics.write("actor", status.telemetry, step=status.env_steps)

    def _write_times(self) -> None:
        status = self.status
        spent, rates = self._phases.lap(env_steps=status.env_steps, updates=status.updates)
        self._metrics.write("time", spent, step=status.env_steps)
        self._metrics.write("throughput", rates, step=status.env_steps)

    def _write_progress(self) -> None:
        wall_s = self._wall_before_s + time.monotonic() - self._started_s
        books = {"wall_s": wall_s, "updates": self.status.updates, "phases": dict(self._phases.seconds)}
        self._folder.write_json("progress.json", books)

    def _save(self, learner: Learner | OnPolicy) -> None:
        with self._phases.phase("saving"):
            save_checkpoint(self._checkpoint, learner.state_dict(), facts=self._facts())
        success = self._schedule.practice_success(self.status)
        if success is not None and self._schedule.is_best(success):
            self._save_best(learner, success=success, by="recent practice")
        self._write_progress()  # so that a kill costs no more of the books than of the learner
        self._folder.event("checkpoint", env_steps=self.status.env_steps, updates=learner.num_updates)

    def _save_best(self, learner: Learner | OnPolicy, *, success: float, by: str) -> None:
        best: dict[str, float | str] = {"success": success, "by": by}
        save_checkpoint(self._schedule.best, learner.state_dict(), facts={**self._facts(), **best})
        self._folder.event("best checkpoint", env_steps=self.status.env_steps, **best)

    def _facts(self) -> dict[str, int | float | str]:
        """What is noted with a checkpoint."""
        return {
            "env_steps": self.status.env_steps,
            "config_hash": self._folder.config_hash,
            "published": self._published,
        }
