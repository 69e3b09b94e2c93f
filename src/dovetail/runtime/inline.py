"""Runs everything in one process, one step after another: an episode, its labels, its updates, new weights.

The result is deterministic for a seed. The asynchronous runtime is measured against it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from dovetail.core.contracts import Algorithm
from dovetail.core.errors import DovetailError, Interrupted
from dovetail.core.figures import EpisodeScore
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Outcome, Purpose, WeightSnapshot
from dovetail.learn.learner import Learner
from dovetail.learn.rollouts import OnPolicyAlgorithm
from dovetail.live.link import LiveLink
from dovetail.live.run_status import with_live_link
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.build import build_assembly, is_on_policy
from dovetail.runs.assembly.fleet import Fleet
from dovetail.runs.assembly.policy_components import save_components
from dovetail.runs.catch_up import catch_up
from dovetail.runs.checkpoints import Checkpointable, DiskPublisher
from dovetail.runs.folder import RunFolder
from dovetail.runs.ingest import DemoCounts
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.roles.learner import RunLearner
from dovetail.runs.roles.robot import EpisodeResult, RobotRunner, interrupted_evaluation
from dovetail.runs.roles.store import EpisodeStore
from dovetail.runs.run import ArmGroup, RunPhases
from dovetail.runs.skipped_updates import report_skipped_updates
from dovetail.runs.status import RunStatus, StatusListener, ignore_status
from dovetail.runtime.onpolicy.training import OnPolicy, check_on_policy
from dovetail.runtime.ranks import RankGroup

__all__ = ["InlineRun", "InlineRuntime"]

_GROUP = ("robot",)


class InlineRuntime:
    """See `runs.run.Runtime`. There is one arm, and every role is an object of this process."""

    groups = (_GROUP,)

    def __init__(
        self,
        folder: RunFolder,
        *,
        on_status: StatusListener,
        should_stop: Callable[[], bool],
        live: Callable[[RobotSpec], LiveLink] | None,
    ) -> None:
        self._folder, self._config = folder, folder.config
        assembly = build_assembly(
            folder.config,
            components=folder.components,
            run_id=folder.run_id(),
            should_stop=should_stop,
            live=live,
        )
        self._assembly, self._should_stop = assembly, assembly.should_stop
        self._on_status = on_status if assembly.link is None else with_live_link(on_status, assembly.link, folder)
        self.on_checkpoint: Callable[[], None] = lambda: None
        self.status = RunStatus(name=folder.path.name)
        self._phases = PhaseTimes()
        fleet = Fleet(assembly=assembly, robots={_GROUP[0]: assembly.robot.spec})
        policy = fleet.trainable()
        save_components(policy, folder.components)
        self.store = EpisodeStore(
            folder,
            fleet=fleet,
            policy=policy,
            labelers=assembly.labeler_chain(folder.labels),
            status=self.status,
            phases=self._phases,
        )
        self._publisher = DiskPublisher(folder.weights)
        self.learner = RunLearner(
            folder,
            fleet=lambda: fleet,
            store=self.store,
            replay=lambda policy: self.store.replay,
            publisher=self._publisher,
            policy=policy,
            timed=self._phases.phase,
        )
        self._robot = RobotRunner(
            assembly,
            config_hash=folder.config_hash,
            spool=self.store.experience.spool,
            weights=folder.weights,
        )
        self._served: WeightSnapshot | None = None  # what online episodes act with
        self._num_relabeled, self._saved_s = 0, time.monotonic()
        self._records = self.store.recover(on_added=self._on_recovered)

    def start(self) -> None:
        """Everything was built and loaded with the object."""

    def close(self) -> None:
        self._assembly.close()
        self.store.close()

    def report_status(self) -> None:
        self._on_status(self.status)

    def seconds(self) -> Mapping[str, float]:
        return self._phases.seconds

    def write_metrics(self, group: str, values: Mapping[str, float]) -> None:
        self.store.write_metrics(group, values, step=self.status.env_steps)

    # ---- episodes

    def run_episodes(
        self,
        purpose: Purpose,
        wanted: Mapping[ArmGroup, range],
        weights: WeightSnapshot | None,
        *,
        new_actor: bool = True,
    ) -> dict[ArmGroup, list[EpisodeResult]]:
        results: list[EpisodeResult] = []
        if purpose is Purpose.EVAL and new_actor:  # a new actor, so that evaluations do not depend on each other
            self._robot.prepare(purpose)
        for index in wanted[_GROUP]:
            if purpose is Purpose.EVAL:
                episode = self._run_evaluation(index, len(wanted[_GROUP]), weights)
                self.status.done = len(results) + 1
                self.report_status()
            elif (recorded := self._run_episode(purpose, index, weights)) is not None:
                episode = recorded
                self.store.add(episode)
                self.store.apply_new_labels()
            else:  # discarded: the caller asks for the same index again
                continue
            score = self._assembly.score(episode) if purpose is Purpose.EVAL else EpisodeScore.of(episode)
            results.append(EpisodeResult(id=episode.id, score=score, robot=_GROUP[0]))
        return {_GROUP: results}

    def _run_evaluation(self, index: int, num_episodes: int, weights: WeightSnapshot | None) -> Episode:
        episode = self._robot.run_through(Purpose.EVAL, index, weights)
        if episode is not None and episode.outcome is Outcome.ABORTED and not self._robot.stopped:
            raise interrupted_evaluation(index, num_episodes)
        if episode is not None:
            self.store.commit(episode)
        self._raise_if_stopped()
        if episode is None or self._robot.stopped:
            raise Interrupted
        return episode

    def _run_episode(self, purpose: Purpose, index: int, weights: WeightSnapshot | None) -> Episode | None:
        """Run and commit an episode; None if it was discarded."""
        with self._phases.phase("acting"):
            episode = self._robot.run(purpose, index, weights, robot_minutes=self.status.robot_minutes)
        self.status.telemetry = self._robot.telemetry(purpose)
        if episode is not None:
            self.store.commit(episode)
            self._raise_if_stopped()
        if self._robot.stopped:
            raise Interrupted
        return None if episode is None or episode.outcome is Outcome.ABORTED else episode

    def demo_counts(self, group: ArmGroup | None = None) -> DemoCounts:
        return self.store.demo_counts()

    def demos_at_once(self, group: ArmGroup) -> int:
        return 1

    @property
    def num_labels_under_way(self) -> int:
        return self.store.dispatcher.num_under_way

    def wait_for_labels(self, limit_s: float) -> None:
        dispatcher, total = self.store.dispatcher, self.store.dispatcher.num_under_way

        def on_poll() -> None:
            self.status.done = total - dispatcher.num_under_way
            self.report_status()
            self._raise_if_stopped()

        self._raise_if_stopped()
        dispatcher.wait(limit_s, on_poll=on_poll)
        self._num_relabeled += self.store.apply_new_labels()

    def is_gone(self, group: ArmGroup) -> bool:
        return False

    def present_arms(self) -> Collection[str]:
        return _GROUP

    @contextmanager
    def take_new_arms(self) -> Iterator[Collection[ArmGroup]]:
        yield ()

    # ---- learning

    def clone(self) -> WeightSnapshot:
        if is_on_policy(self._config):
            check_on_policy(self._config, has_demos=True)
        self.learner.clone(on_update=self._on_update)
        return self._publisher.newest()

    def newest_weights(self) -> WeightSnapshot:
        return self._publisher.newest()

    @contextmanager
    def learning(self, start_from: int | None) -> Iterator[None]:
        with ExitStack() as stack:
            is_new = not self.learner.checkpoints.exists
            learner = self.learner.start(
                start_from, make=lambda algorithm, policy: self._make_learner(algorithm, policy, stack)
            )
            if isinstance(learner, OnPolicy):
                self.learner.publish()
            elif is_new:
                self._save()
            try:
                yield
            except (Interrupted, DovetailError):
                # any other exception may come in the middle of an update: then the last good checkpoint stays
                if learner.healthy:
                    self._save()
                raise
            self._save()

    def _make_learner(self, algorithm: Algorithm, policy: TrainablePolicy, stack: ExitStack) -> Learner | OnPolicy:
        config, robot = self._config, self._assembly.robot.spec
        if config.learner.ranks > 1:
            algorithm = self._lead_ranks(algorithm, stack)
        if isinstance(algorithm, OnPolicyAlgorithm):
            on_policy = OnPolicy(
                config,
                algorithm=algorithm,
                control_hz=robot.control_hz,
                should_stop=self._should_stop,
                folder=self._folder,
            )
            return stack.enter_context(closing(on_policy))
        return self.learner.make_learner(algorithm, policy)

    def _lead_ranks(self, algorithm: Algorithm, stack: ExitStack) -> Algorithm:
        group = RankGroup(
            self._folder.path,
            size=self._config.learner.ranks,
            robot=self._assembly.robot.spec,
            replay=self._folder.replay,
            replayed=self.store.experience.as_replayed(self._assembly.policy_robot),
        )
        stack.callback(group.close)
        return group.lead(algorithm, self._config)

    @property
    def num_warmup_updates(self) -> int:
        learner = self.learner.learner
        return learner.num_warmup_updates if isinstance(learner, Learner) else 0

    def warm_up(self, num_updates: int) -> None:
        learner = self.learner.learner
        if isinstance(learner, Learner) and learner.num_warmup_updates < num_updates:
            with report_skipped_updates(self._folder, learner):
                learner.warm_up(num_updates, on_update=self._on_update)
            self._save()  # the warm-up must not be repeated once the replay holds more than demonstrations

    def publish(self) -> None:
        self._publisher.publish(self._learning().policy_weights())

    def start_online(self) -> None:
        learner, self._saved_s = self._learning(), time.monotonic()
        if isinstance(learner, OnPolicy):
            learner.begin(self.status)
            self.status.phase_started_at = self.status.done
            return
        assert isinstance(learner, Learner)
        self._robot.prepare(Purpose.ONLINE)
        if not self.learner.has_published:  # a resumed run must know with which weights the robot began
            self.learner.publish()
            self._save()
        with report_skipped_updates(self._folder, learner):
            catch_up(
                learner,
                self._records,
                folder=self._folder,
                experience=self.store.experience,
                status=self.status,
                on_update=self._on_update,
                publish=lambda: self._publish_if_due(learner),
            )
        self._records.clear()
        self._update(learner)

    def advance(self) -> None:
        learner = self._learning()
        if isinstance(learner, OnPolicy):
            self._advance_on_policy(learner)
        else:
            assert isinstance(learner, Learner)
            self._advance_from_replay(learner)
        if time.monotonic() - self._saved_s > self._config.run.checkpoint_every_s:
            self._save()

    def _advance_from_replay(self, learner: Learner) -> None:
        """One online episode and the updates that it earns."""
        store = self.store
        episode = self._run_episode(Purpose.ONLINE, self.status.episodes, self._served)
        if episode is None:
            return
        labels = store.add(episode)
        if not self._assembly.real_time:  # simulated time can wait for slow labelers
            store.ingest.wait_for_capacity(on_poll=self._raise_if_stopped)
        store.apply_new_labels()
        self._update(learner)
        store.curves.episode(episode, labels)
        store.coach(learner)

    def _advance_on_policy(self, learner: OnPolicy) -> None:
        """One rollout and its update. Rollouts do not enter the replay."""
        result = learner.iterate(self.status)
        if result is None:
            raise Interrupted
        self.store.curves.rollout(result)
        self.learner.publish()
        self.learner.keep_if_due()
        self._phases.add({"acting": result.metrics["collect_s"], "updating": result.metrics["update_s"]})
        self.store.curves.times()
        self.store.coaching.check_rollout(result)
        self.report_status()

    def stop_online(self) -> None:
        """Online episodes run in `advance` only."""

    def finish_updates(self) -> None:
        learner = self._learning()
        if isinstance(learner, Learner):
            if self._num_relabeled:
                self._update(learner)
            if not self.learner.is_published:
                self.learner.publish()

    def conclude(self, num_successes: int | None) -> None:
        self.store.coaching.conclude(num_successes)

    def _update(self, learner: Learner) -> None:
        """Do the updates that the last episode has earned, and give their weights to the robot."""
        status = self.status
        with report_skipped_updates(self._folder, learner):
            status.metrics |= learner.step(env_steps=status.trained_steps, on_update=self._after_update)
        self._phases.add(learner.take_seconds())
        status.updates = learner.num_updates
        status.done = status.env_steps
        with self._phases.phase("publishing"):
            self._publish_if_due(learner)
            self._serve(learner)
        self.report_status()

    def _publish_if_due(self, learner: Learner) -> None:
        if self.learner.is_due(learner):
            self.learner.publish()

    def _serve(self, learner: Learner) -> None:
        self._served = self._publisher.served()
        updates = self.learner.published_at - learner.num_warmup_updates
        self.store.published(self._publisher.newest().version, self._served, updates=updates)

    @contextmanager
    def paused(self) -> Iterator[WeightSnapshot]:
        learner = self._learning()
        if isinstance(learner, Learner) and not self.learner.is_published:
            self.learner.publish()  # the robot continues with the weights that are evaluated
            self._serve(learner)
            self._save()  # otherwise a resumed run would not publish here
        with self._phases.phase("evaluating"):
            yield self._publisher.newest()

    def serve_pinned(self) -> None:
        learner = self._learning()
        if isinstance(learner, Learner) and self.learner.has_published:
            self._serve(learner)

    def save_best(self, figure: Mapping[str, float], by: str) -> None:
        self.learner.save_best(figure, by)

    # ---- helpers

    def _learning(self) -> Checkpointable:
        assert self.learner.learner is not None, "call it inside `learning`"
        return self.learner.learner

    def _save(self) -> None:
        self.learner.save()
        self._saved_s = time.monotonic()
        self.on_checkpoint()

    def _on_recovered(self, done: int, total: int) -> None:
        if done == 0:
            self.status.begin("filling the replay", total)
        self.status.done = done
        self.report_status()

    def _on_update(self) -> None:
        self.status.done += 1
        if self.status.done % 20 == 0:
            self.report_status()
        self._after_update()

    def _after_update(self) -> None:
        self.learner.keep_if_due()
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._should_stop():
            raise Interrupted


class InlineRun(RunPhases):
    """A run in this process. `live` makes the link to the console."""

    runtime: InlineRuntime

    def __init__(
        self,
        folder: RunFolder,
        *,
        on_status: StatusListener = ignore_status,
        should_stop: Callable[[], bool] = lambda: False,
        live: Callable[[RobotSpec], LiveLink] | None = None,
    ) -> None:
        super().__init__(folder, InlineRuntime(folder, on_status=on_status, should_stop=should_stop, live=live))
