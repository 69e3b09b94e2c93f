"""One process, one thing after another: collect an episode, label it, add it, update, publish.

Deterministic for a seed, and the baseline that everything asynchronous is measured against. Every phase looks
first at what the folder already holds, so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

import numpy as np

from dovetail.core.contracts import Actor, Algorithm
from dovetail.core.errors import DovetailError, Interrupted, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.stats import Rate
from dovetail.core.streams import stream
from dovetail.core.types import Episode, Outcome, Purpose
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.device import find_device
from dovetail.learn.learner import Learner
from dovetail.learn.metrics import MetricsLog
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.live.link import LiveLink
from dovetail.live.run_status import with_live_link
from dovetail.core.abilities import CachesFeatures
from dovetail.policies.trainable import TrainablePolicy
from dovetail.rewards.retraining import retraining_of
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.policy_components import save_components
from dovetail.runs.catch_up import catch_up
from dovetail.runs.checkpoints import Checkpoints
from dovetail.runs.coaching import Coaching
from dovetail.runs.curves import Curves
from dovetail.runs.demonstrations import demonstrate
from dovetail.runs.roles.robot import order_episode
from dovetail.runs.evaluations import Evaluations
from dovetail.runs.experience import Experience, image_codec
from dovetail.runs.folder import RunFolder
from dovetail.runs.ingest import EpisodeIngest
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.schedule import Schedule
from dovetail.runs.skipped_updates import report_skipped_updates
from dovetail.runs.status import RunStatus, StatusListener, ignore_status
from dovetail.runtime.onpolicy.training import OnPolicy, check_on_policy, is_on_policy
from dovetail.runtime.ranks import RankGroup

__all__ = ["InlineRun", "Interrupted"]


class InlineRun:
    """`run()` takes a recipe from nothing to a trained policy; `collect()` only records demonstrations."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        watch: StatusListener = ignore_status,
        should_stop: Callable[[], bool] = lambda: False,
        live: Callable[[RobotSpec], LiveLink] | None = None,
    ) -> None:
        self._folder = folder
        self._config = folder.config
        self._station = build_assembly(folder.config, parts=folder.parts, should_stop=should_stop, live=live)
        self._should_stop = self._station.should_stop
        self._watch = watch if self._station.link is None else with_live_link(watch, self._station.link, folder)
        self._policy = self._station.trainable()  # the learner's; actors load what is published
        save_components(self._policy, folder.parts)
        self._panel = self._station.panel(folder.labels)
        self._retraining = retraining_of(folder, self._panel.labelers)
        self._experience = self._make_experience()
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
        self._phases = PhaseTimes(before.get("phases"))
        low_dimensional = [key for key, spec in self._policy.spec.observation.items() if len(spec.shape) < 3]
        self._intake = EpisodeIngest(
            folder,
            experience=self._experience,
            status=self.status,
            coaching=self._coaching,
            phases=self._phases,
            seen=lambda episode: {key: episode.column(f"observation/{key}") for key in low_dimensional},
        )
        self._curves = Curves(folder, metrics=self._metrics, status=self.status, phases=self._phases)
        self._schedule = Schedule(folder)
        self._keeping = Checkpoints(
            folder,
            status=self.status,
            phases=self._phases,
            schedule=self._schedule,
            coaching=self._coaching,
            write_progress=self._write_progress,
        )
        self._before = self._intake.recover(on_added=self._rebuilding)
        self._evaluations = Evaluations(
            folder,
            station=self._station,
            spool=self._experience.spool,
            metrics=self._metrics,
            status=self.status,
            watch=self._watch,
            commit=self._commit,
        )

    @property
    def seconds(self) -> Mapping[str, float]:
        """What its time went into so far."""
        return self._phases.seconds

    def run(self) -> None:
        run = self._config.run
        try:
            self._evaluations.go_on_from_training()
            self._evaluate("untrained", num_episodes=run.untrained_episodes)
            self.collect(run.demos)
            self._clone()
            self._learn()
            self._evaluate("after", num_episodes=run.eval_episodes)
        finally:
            self.close()

    def train(self, *, evaluate: bool = True) -> None:
        """Offline, from demonstrations alone. Nothing moves but to demonstrate, where nobody has, and to evaluate."""
        run = self._config.run
        self._evaluations.enabled, self._evaluations.offline = evaluate, True
        try:
            if is_on_policy(self._config):
                raise UsageError(
                    f"algorithm '{self._config.algorithm.type}' learns by practice alone: use `dovetail run`"
                )
            if not self._intake.demos:
                self.collect(run.demos)
            if not self._intake.demos:
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
        if self._retraining is not None:
            self._retraining.close()
        self._experience.close()
        self._metrics.close()
        self._write_progress()

    # ---- the phases

    def collect(self, num_demos: int) -> None:
        """Have the expert demonstrate until `num_demos` demonstrations succeeded."""
        demonstrate(
            self._intake,
            num_demos,
            status=self.status,
            task=self._station.task.spec.name,
            actor=lambda: self._actor(Purpose.DEMO),
            run=lambda actor, index: self._run_episode(actor, Purpose.DEMO, index),
            watch=self._watch,
            look_up=self._look_up,
        )

    def _clone(self) -> None:
        """Behaviour cloning on the demonstrations: what the report calls before, and what learning starts from."""
        config = self._config
        if not self._intake.demos:
            return
        self._fit_normalizer(self._policy)
        if not config.learner.bc_updates:
            return
        if is_on_policy(config):
            check_on_policy(config, has_demos=True)
        if not self._evaluations.known("cloning"):
            policy = self._station.trainable()
            self._fit_normalizer(policy)
            algorithm = Imitation(ImitationConfig(), policy=policy, seed=config.run.seed)
            self.status.begin("cloning the demonstrations", config.learner.bc_updates)
            cloning = self._make_learner(algorithm, role="cloning")
            with report_skipped_updates(self._folder, cloning):
                cloning.warm_up(config.learner.bc_updates, on_update=self._updated)
            self._keeping.weights.publish(policy.weights())
            self._evaluate("cloning", num_episodes=config.run.eval_episodes)
        if config.learner.start_from == "cloning" and not self._keeping.has_checkpoint:
            self._policy.load(self._keeping.newest())  # nothing newer is published before the first checkpoint

    def _learn(self, *, online: bool = True) -> None:
        if self._evaluations.known("after"):
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
        if self._keeping.has_checkpoint:
            learner.load_state_dict(self._keeping.load())
        else:
            self._keeping.save(learner)
        with self._saved(learner):
            num_updates = config.learner.warmup_updates if self._intake.demos else 0
            status.begin("warming up on demonstrations", num_updates, done=learner.num_warmup_updates)
            if learner.num_warmup_updates < num_updates:
                with report_skipped_updates(self._folder, learner):
                    learner.warm_up(num_updates, on_update=self._updated)
                # on demonstrations alone: not to be done again once there is more in replay
                self._keeping.save(learner)
            if online:
                self._learn_online(learner)
            else:
                self._keeping.weights.publish(learner.policy_weights())

    @contextmanager
    def _saved(self, learner: Learner | OnPolicy) -> Iterator[None]:
        """At the end, whoever asked for it. What else may come, a second Ctrl-C or memory that runs out, comes in the midst
        of an update: then the last good checkpoint stays."""
        try:
            yield
        except (Interrupted, DovetailError):
            if learner.healthy:
                self._keeping.save(learner)
            raise
        self._keeping.save(learner)

    def _practise(self, practice: OnPolicy) -> None:
        """On-policy: rollouts are learned from and forgotten; they never reach the replay, and the log on request."""
        if self._keeping.has_checkpoint:
            practice.load_state_dict(self._keeping.load())
        self._keeping.weights.publish(practice.policy_weights())
        with self._saved(practice), closing(practice):
            note, save = self._curves.lesson, self._keeping.save
            for lesson in practice.iterations(self.status, record=note, save=save, solved=self._solved):
                self._keeping.weights.publish(practice.policy_weights())
                spent = {"acting": lesson.metrics["collect_s"], "updating": lesson.metrics["update_s"]}
                self._phases.add(spent)
                self._curves.times()
                self._coaching.look_at(lesson)
                self._watch(self.status)
                self._evaluate_when_due(practice)
        self._look_up()

    def _learn_online(self, learner: Learner) -> None:
        run, status = self._config.run, self.status
        actor = self._actor(Purpose.ONLINE)
        status.begin("learning online", run.env_steps, done=status.env_steps)
        self._watch(status)
        saved_s = time.monotonic()
        if not self._keeping.has_published:  # what the robot begins with, so that one who resumes knows
            self._keeping.publish(learner)
            self._keeping.save(learner)
        with report_skipped_updates(self._folder, learner):
            catch_up(
                learner,
                self._before,
                folder=self._folder,
                experience=self._experience,
                status=status,
                on_update=self._updated,
                publish=lambda: self._keeping.publish_when_due(learner),
            )
        self._before.clear()
        self._update(learner, actor)
        self._evaluate_when_due(learner, actor)
        while status.env_steps < run.env_steps and not self._solved():
            episode = self._run_episode(actor, Purpose.ONLINE, status.episodes)
            if episode is None:
                continue
            labels = self._intake.take(episode)
            if not self._station.real_time:
                self._intake.keep_up(look_up=self._look_up)
            self._intake.news()
            if self._retraining is not None:
                self._retraining.look()
            self._update(learner, actor)
            self._curves.episode(episode, labels)
            self._coaching.look(learner, self._experience.replay)
            self._evaluate_when_due(learner, actor)
            if time.monotonic() - saved_s > run.checkpoint_every_s:
                self._keeping.save(learner)
                saved_s = time.monotonic()
        if self._intake.finish(watch=self._watch, look_up=self._look_up):
            self._update(learner, actor)
        if not self._keeping.is_published(learner):
            self._keeping.publish(learner)

    def _update(self, learner: Learner, actor: Actor) -> None:
        """The updates that the last episode has earned, then their weights to the robot."""
        status = self.status
        with report_skipped_updates(self._folder, learner):
            status.metrics |= learner.step(env_steps=status.trained_steps, on_update=self._look_up)
        self._phases.add(learner.take_seconds())
        status.updates = learner.num_updates
        status.done = status.env_steps
        with self._phases.phase("publishing"):
            self._keeping.publish_when_due(learner)
            self._keeping.hand_over(actor, learner)
        self._watch(status)

    def _evaluate_when_due(self, learner: Learner | OnPolicy, actor: Actor | None = None) -> None:
        status = self.status
        name = self._schedule.due(status.env_steps)
        if name is None:
            return
        if isinstance(learner, Learner) and actor is not None and not self._keeping.is_published(learner):
            self._keeping.publish(learner)  # what is evaluated is what the robot has, and goes on with
            self._keeping.hand_over(actor, learner)
            self._keeping.save(learner)  # nor would who catches up publish here
        phase = (status.phase, status.total)

        def keep(rate: Rate) -> None:
            if self._schedule.is_best(rate.rate):
                self._keeping.save_best(learner, success=rate.rate, by=f"evaluation {name}")

        with self._phases.phase("evaluating"):
            self._evaluate(name, num_episodes=self._schedule.num_episodes, keep=keep)
        status.begin(*phase, done=status.env_steps)

    def _evaluate(self, name: str, *, num_episodes: int, keep: Callable[[Rate], None] = lambda rate: None) -> None:
        rate = self._evaluations.make(
            name,
            lambda: None if name == "untrained" else self._keeping.newest(),
            num_episodes=num_episodes,
            keep=keep,
        )
        if rate is not None and rate.episodes < num_episodes:  # asked to stop between two of them
            raise Interrupted

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

    def _rebuilding(self, done: int, total: int) -> None:
        if done == 0:
            self.status.begin("filling the replay", total)
        self.status.done = done
        self._watch(self.status)

    # ---- small things

    def _fit_normalizer(self, policy: TrainablePolicy) -> None:
        demos = self._intake.demos
        columns = {key: np.concatenate([demo[key] for demo in demos]) for key in demos[0]}
        policy.fit_normalizer(columns)

    def _make_experience(self) -> Experience:
        folder, keys = self._folder, self._policy.spec.observation
        return Experience(
            folder,
            panel=self._panel,
            replay=self._station.replay(folder.replay, keys=tuple(keys)),
            cameras=tuple(key for key, spec in keys.items() if len(spec.shape) >= 3),
            codec=image_codec(self._config.images),
            encoder=self._policy if isinstance(self._policy, CachesFeatures) and self._policy.feature_specs else None,
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

    def _write_progress(self) -> None:
        wall_s = self._wall_before_s + time.monotonic() - self._started_s
        books = {"wall_s": wall_s, "updates": self.status.updates, "phases": dict(self._phases.seconds)}
        self._folder.write_json("progress.json", books)
