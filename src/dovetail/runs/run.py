"""The phases of a run, from the first evaluation to the last. A `Runtime` executes each step.

Every phase first checks what the run's folder holds, so that an interrupted run continues where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dovetail.core.errors import FailureError, UsageError
from dovetail.core.figures import Performance
from dovetail.core.types import Purpose, WeightSnapshot
from dovetail.runs.assembly.build import is_on_policy
from dovetail.runs.evaluations import (
    MAIN,
    evaluation_curve,
    record_evaluation,
    set_aside_offline_evaluation,
    stored_evaluation,
)
from dovetail.runs.folder import RunFolder
from dovetail.runs.gate import Gate
from dovetail.runs.ingest import DemoCounts
from dovetail.runs.roles.robot import EpisodeResult
from dovetail.runs.rounds import Rounds
from dovetail.runs.schedule import Schedule, best_figure, is_solved
from dovetail.runs.status import RunStatus

__all__ = ["LEARNING", "ArmGroup", "RunPhases", "Runtime"]

LEARNING = "learning online"  # the phase

ArmGroup = tuple[str, ...]  # names of arms with the same task, robot and operator
_POLL_S = 0.2


class Runtime(Protocol):
    """Executes the steps of a run: one after another in one process, or at the same time on Ray.

    A method that waits raises Interrupted once the run is asked to stop.
    """

    status: RunStatus
    on_checkpoint: Callable[[], None]  # called after each saved checkpoint

    @property
    def groups(self) -> Sequence[ArmGroup]: ...

    def start(self) -> None:
        """Start the roles and load what the folder holds."""

    def close(self) -> None: ...

    def report_status(self) -> None:
        """Call the status listener."""

    def seconds(self) -> Mapping[str, float]:
        """Seconds that each activity took since the start of this process."""

    def write_metrics(self, group: str, values: Mapping[str, float]) -> None: ...

    # ---- episodes

    def run_episodes(
        self,
        purpose: Purpose,
        wanted: Mapping[ArmGroup, range],
        weights: WeightSnapshot | None,
        *,
        new_actor: bool = True,
    ) -> dict[ArmGroup, list[EpisodeResult]]:
        """Run and store an episode for each index. A group whose arms are all gone is missing in the result.

        With `new_actor`, the first evaluation episode begins with an actor that has run none before."""

    def demo_counts(self, group: ArmGroup | None = None) -> DemoCounts:
        """Counts of the demonstrations of a group, or of all."""

    def demos_at_once(self, group: ArmGroup) -> int:
        """Number of demonstrations to record before their counts are read again."""

    def wait_for_labels(self, limit_s: float) -> None:
        """Wait for labels that are under way, and apply those that have come."""

    @property
    def num_labels_under_way(self) -> int: ...

    def is_gone(self, group: ArmGroup) -> bool:
        """Whether all arms of a group have been missing or stopped for too long."""

    def present_arms(self) -> Collection[str]: ...

    def take_new_arms(self) -> AbstractContextManager[Collection[ArmGroup]]:
        """Groups with arms that joined since the last call. They do not act online inside the context."""

    # ---- learning

    def clone(self) -> WeightSnapshot:
        """Clone the demonstrations and publish the weights."""

    def newest_weights(self) -> WeightSnapshot: ...

    def learning(self, start_from: int | None) -> AbstractContextManager[None]:
        """Learn inside the context: from the checkpoint, a version of weights, or scratch. Saves at the end."""

    @property
    def num_warmup_updates(self) -> int: ...

    def warm_up(self, num_updates: int) -> None:
        """Update on the demonstrations, up to this number of updates in the whole run."""

    def publish(self) -> None: ...

    def start_online(self) -> None:
        """Begin with online episodes, after the updates that a resumed run is behind."""

    def advance(self) -> None:
        """Let arms and learner work for a while: one episode and its updates, or a fraction of a second."""

    def stop_online(self) -> None: ...

    def finish_updates(self) -> None:
        """Do the updates for the last episodes and publish the result."""

    def conclude(self, num_successes: int | None) -> None:
        """The coach's last check of the run. `num_successes` are those of the last evaluation, if there was one."""

    def paused(self) -> AbstractContextManager[WeightSnapshot]:
        """Pause learning inside the context. Returns the newest weights."""

    def serve_pinned(self) -> None:
        """Give the pinned version of the weights to the arms. It counts from their next episode on."""

    def save_best(self, figure: Mapping[str, float], by: str) -> None:
        """Save the best checkpoint with the figure that decided (see `best_figure`)."""


class RunPhases:
    """`run` takes a recipe to a trained policy; `train` learns offline; `collect` records demonstrations."""

    def __init__(self, folder: RunFolder, runtime: Runtime) -> None:
        self._folder, self._config, self.runtime = folder, folder.config, runtime
        self._schedule, self._rounds = Schedule(folder), Rounds(folder)
        self._gate = None if folder.config.deploy is None else Gate(folder, folder.config.deploy, runtime)
        self._evaluates, self._offline = True, False
        self._started_s = time.monotonic()
        before = folder.read_json("progress.json") or {"wall_s": 0.0, "updates": 0}
        self._wall_before_s, self._seconds_before = float(before["wall_s"]), before.get("phases") or {}
        self._closed = False
        runtime.status.updates = int(before["updates"])
        runtime.on_checkpoint = self._after_checkpoint
        for name in MAIN:
            made = stored_evaluation(folder, name)
            if made is not None:
                runtime.status.evaluations[name] = made

    @property
    def status(self) -> RunStatus:
        return self.runtime.status

    def run(self) -> None:
        """All phases. With `run.distill_every`, the last ones only after the last distillation: see `Rounds`."""
        run = self._config.run
        try:
            self._rounds.check()
            if self._rounds.is_waiting:
                return
            self.runtime.start()
            set_aside_offline_evaluation(self._folder, self.status)
            self._evaluate("untrained", run.untrained_episodes)
            self._demonstrate(run.demos)
            cloned = self._clone()
            if not self._is_made("after"):
                self._learn(cloned)
                self._finish_gate()
            if self._rounds.end_round(self.status.env_steps, finished=self._has_learned()):
                return
            self._evaluate("after", run.eval_episodes, self._result)
            self._conclude()
        finally:
            self.close()

    def train(self, *, evaluate: bool = True) -> None:
        """Learn offline from demonstrations. The robot moves only for missing demonstrations and evaluations."""
        run = self._config.run
        self._evaluates, self._offline = evaluate, True
        try:
            if is_on_policy(self._config):
                raise UsageError(
                    f"algorithm '{self._config.algorithm.type}' learns only from its own rollouts. Use `dovetail run`"
                )
            self.runtime.start()
            if not self._num_demos():
                self._demonstrate(run.demos)
            if not self._num_demos():
                raise UsageError("there are no demonstrations. Collect or import some, or set run.demos")
            cloned = self._clone()
            if not self._is_made("after"):
                self._learn(cloned, online=False)
            self._evaluate("after", run.eval_episodes, self.runtime.newest_weights)
        finally:
            self.close()

    def collect(self, num_demos: int) -> None:
        """Record demonstrations until `num_demos` of each arm group were successful."""
        try:
            self.runtime.start()
            self._demonstrate(num_demos)
        finally:
            self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.runtime.close()
            self._write_progress()

    def _conclude(self) -> None:
        after = self.status.evaluations.get("after")
        self.runtime.conclude(after.success.successes if after and after.success else None)
        self.runtime.report_status()

    # ---- demonstrations

    def _num_demos(self) -> int:
        return self.runtime.demo_counts().accepted

    def _demonstrate(self, num_demos: int, groups: Collection[ArmGroup] | None = None) -> None:
        runtime, status = self.runtime, self.status
        num_groups = len(runtime.groups)
        lacking = self._lacking(runtime.groups if groups is None else groups, num_demos)
        if not lacking:  # a task without an expert needs none
            return
        while lacking:
            missing = {group: self._missing_demos(group, num_demos) for group in lacking}
            wanted = {group: indices for group, indices in missing.items() if indices}
            phase = "recording demonstrations" if wanted else "waiting for labels of the demonstrations"
            if status.phase != phase:
                status.begin(phase, num_demos * num_groups, done=self._num_demos())
            runtime.report_status()
            if wanted:
                runtime.run_episodes(Purpose.DEMO, wanted, None)
            else:
                runtime.wait_for_labels(_POLL_S)
                time.sleep(_POLL_S)  # a person may be asked: then nothing is under way
            status.done = self._num_demos()
            lacking = [group for group in self._lacking(lacking, num_demos) if not runtime.is_gone(group)]
        runtime.report_status()

    def _lacking(self, groups: Collection[ArmGroup], num_demos: int) -> list[ArmGroup]:
        return [group for group in groups if self.runtime.demo_counts(group).accepted < num_demos]

    def _missing_demos(self, group: ArmGroup, num_demos: int) -> range:
        """Indices of the next demonstrations; empty while pending labels may still accept enough of those recorded."""
        counts, task = self.runtime.demo_counts(group), self._config.task
        missing = max(0, num_demos - counts.accepted_or_pending)
        if missing and counts.tried >= 3 * num_demos + 10:
            several = len(self.runtime.groups) > 1
            of = f" of {', '.join(group)}" if several else f" of task '{task.type}'" if task else ""
            raise FailureError(
                f"only {counts.accepted} of {counts.tried} demonstrations{of} succeeded. Raise task.time_limit_s or lower "
                "run.demo_noise"
            )
        return range(counts.tried, counts.tried + min(missing, self.runtime.demos_at_once(group)))

    # ---- learning

    def _clone(self) -> int | None:
        """Clone the demonstrations; return the version of the weights that learning starts from."""
        learner = self._config.learner
        if not learner.bc_updates or not self._num_demos():
            return None
        if not self._is_made("cloning"):
            self.status.begin("cloning the demonstrations", learner.bc_updates)
            weights = self.runtime.clone()
            self._folder.write_json("cloned.json", {"version": weights.version})
            self._evaluate("cloning", self._config.run.eval_episodes, lambda: weights)
        if learner.start_from != "cloning":
            return None
        cloned = self._folder.read_json("cloned.json")  # older inline runs have none
        return int(cloned["version"]) if cloned else self.runtime.newest_weights().version

    def _learn(self, start_from: int | None, *, online: bool = True) -> None:
        runtime, status = self.runtime, self.status
        with runtime.learning(start_from):
            num_updates = self._config.learner.warmup_updates if self._num_demos() else 0
            status.begin("warming up on demonstrations", num_updates, done=runtime.num_warmup_updates)
            runtime.warm_up(num_updates)
            if not online:
                runtime.publish()
                return
            self._begin_learning()
            runtime.report_status()
            if self._gate is not None:
                self._gate.begin()
            runtime.start_online()
            self._evaluate_if_due()
            self._check_gate()
            while not self._has_learned() and status.env_steps < self._rounds.env_steps:
                runtime.advance()
                with runtime.take_new_arms() as groups:
                    if groups:
                        self._demonstrate(self._config.run.demos, groups)
                        self._begin_learning()
                self._evaluate_if_due()
                self._check_gate()
            runtime.stop_online()
            self._wait_for_last_labels()
            runtime.finish_updates()

    def _check_gate(self) -> None:
        if self._gate is not None and self._gate.check():
            self._begin_learning()

    def _finish_gate(self) -> None:
        if self._gate is not None:
            self._gate.finish()

    def _result(self) -> WeightSnapshot:
        """The weights that the run leaves: the deployed ones if it has a gate, otherwise the newest."""
        return self.runtime.newest_weights() if self._gate is None else self._gate.weights()

    def _begin_learning(self) -> None:
        self.status.begin(LEARNING, self._config.run.env_steps, done=self.status.env_steps)

    def _wait_for_last_labels(self) -> None:
        """Wait as long as the config says. Labels of a person or of an unavailable labeler are only reported."""
        num_under_way = self.runtime.num_labels_under_way
        if num_under_way:
            self.status.begin("waiting for the last labels", num_under_way)
        self.runtime.wait_for_labels(self._config.labeling.label_wait_s)
        if self.status.waiting:
            self._folder.event("labels wait", **self.status.waiting)

    def _has_learned(self) -> bool:
        return self.status.env_steps >= self._config.run.env_steps or self._is_solved()

    def _is_solved(self) -> bool:
        rule, status = self._config.run.stop_when_solved, self.status
        if rule is None:
            return False
        if len(self.runtime.groups) == 1:
            return is_solved(rule, status)
        arms = self.runtime.present_arms()
        return bool(arms) and all(name in status.robots and is_solved(rule, status.robots[name]) for name in arms)

    # ---- evaluations and the best checkpoint

    def _is_made(self, name: str) -> bool:
        return stored_evaluation(self._folder, name) is not None

    def _evaluate_if_due(self) -> None:
        status = self.status
        name = self._schedule.due(status.env_steps)
        if name is None:
            return
        with self.runtime.paused() as weights:
            self._evaluate(name, self._schedule.num_episodes, lambda: weights)
        self._begin_learning()

    def _evaluate(
        self, name: str, num_episodes: int, weights: Callable[[], WeightSnapshot | None] = lambda: None
    ) -> None:
        """Make an evaluation, unless it is stored. The best checkpoint is saved before the evaluation is stored."""
        runtime, status = self.runtime, self.status
        if not num_episodes or not self._evaluates or self._is_made(name):
            return
        status.begin(f"evaluating: {name}", num_episodes * len(runtime.groups))
        runtime.report_status()
        snapshot = weights()
        results = runtime.run_episodes(
            Purpose.EVAL, {group: range(num_episodes) for group in runtime.groups}, snapshot
        )
        made = [one for some in results.values() for one in some]
        performance = _performance(made)
        by_arm = {arm: _performance([one for one in made if one.robot == arm]) for arm in _arms(made)}
        if name not in MAIN:
            self._keep_if_best(best_figure(performance), f"evaluation {name}")
        num_shown = self._config.run.video_episodes
        each = -(-num_shown // max(1, len(results)))
        record_evaluation(
            self._folder,
            name,
            performance,
            status=status,
            version=None if snapshot is None else snapshot.version,
            shown=[one.id for some in results.values() for one in some[:each]][:num_shown],
            facts=self._evaluation_facts(by_arm, results),
        )
        runtime.write_metrics("evaluation", evaluation_curve(name, performance, by_arm))
        runtime.report_status()

    def _evaluation_facts(
        self, by_arm: Mapping[str, Performance], results: Mapping[ArmGroup, list[EpisodeResult]]
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {"offline": True} if self._offline else {}
        groups, robots = self.runtime.groups, self.status.robots
        if sum(map(len, groups)) > 1:
            facts["robots"] = {
                arm: {"env_steps": robots[arm].env_steps if arm in robots else 0, **performance.to_json()}
                for arm, performance in by_arm.items()
            }
        if absent := [arm for group in groups if group not in results for arm in group]:
            facts["absent"] = absent
        return facts

    def _keep_if_best(self, figure: Mapping[str, float], by: str) -> None:
        if figure and self._schedule.is_best(figure):
            self.runtime.save_best(figure, by)
            self._folder.event("best checkpoint", env_steps=self.status.env_steps, **figure, by=by)

    def _after_checkpoint(self) -> None:
        """Without scheduled evaluations, recent episodes decide which checkpoint is the best."""
        self._keep_if_best(self._schedule.recent_figure(self.status), "recent practice")
        self._write_progress()  # a kill loses no more of it than of the learner

    def _write_progress(self) -> None:
        wall_s = self._wall_before_s + time.monotonic() - self._started_s
        seconds = dict(self._seconds_before)
        for name, spent_s in self.runtime.seconds().items():
            seconds[name] = seconds.get(name, 0.0) + spent_s
        progress = {"wall_s": wall_s, "updates": self.status.updates, "phases": seconds}
        self._folder.write_json("progress.json", progress)


def _arms(results: Sequence[EpisodeResult]) -> list[str]:
    return sorted({one.robot for one in results})


def _performance(results: Sequence[EpisodeResult]) -> Performance:
    return Performance.of([one.score for one in results])
