"""The Ray runtime: arms, store and learner work at the same time; the driver runs the phases and keeps the figures.

                  ┌── weights ◀── publishes ── learner ◀── batches ── replay
    robots ◀──────┘                                                     ▲
      └── spool ── delivers ──▶ store ── asks ──▶ labelers ── labels ───┘

No data goes through the driver: while it waits, the roles work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dovetail.core.errors import FailureError, Interrupted
from dovetail.core.types import Outcome, Purpose, WeightSnapshot
from dovetail.live.link import run_argument, stop_help
from dovetail.live.run_status import figures
from dovetail.live.run_stop import RunStop
from dovetail.runs.assembly.arms import arm_groups
from dovetail.runs.folder import RunFolder
from dovetail.runs.ingest import DemoCounts
from dovetail.runs.roles.robot import EpisodeResult, interrupted_evaluation
from dovetail.runs.run import LEARNING, ArmGroup, RunPhases
from dovetail.runs.status import RunStatus, StatusListener, ignore_status
from dovetail.runtime.ray.cluster.connection import connected
from dovetail.runtime.ray.driver.supervisor import RoleSupervisor, original_error
from dovetail.runtime.ray.roles.handles import UNREACHABLE
from dovetail.weights.store import DiskWeightStore

__all__ = ["RayRun", "RayRuntime"]

_STARTING = "starting the roles"
_DRIVER_FIELDS = {
    "name",
    "phase",
    "done",
    "total",
    "phase_started_s",
    "phase_started_at",
    "updates",
    "evaluations",
    "telemetry",
}
_POLL_S = 0.05
_STATUS_S = 0.5
_PROCESS_S = 5.0
_STALLED_S = 10.0


class RayRuntime:
    """See `runs.run.Runtime`. `announce` prints a line in the terminal."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        on_status: StatusListener,
        should_stop: Callable[[], bool],
        live: bool,
        stop: RunStop | None,
        announce: Callable[[str], None],
    ) -> None:
        self._folder, self._config = folder, folder.config
        self._on_status, self._should_stop, self._announce = on_status, should_stop, announce
        self.on_checkpoint: Callable[[], None] = lambda: None
        self.status = RunStatus(name=folder.path.name)
        self.groups = arm_groups(folder.config)
        self._connection = ExitStack()
        stop = stop or self._connection.enter_context(RunStop.create(folder.path))
        self._supervisor = RoleSupervisor(
            folder, live=live, stop=stop, shown=lambda: figures(self.status, folder), on_poll=self._poll
        )
        self._weights = DiskWeightStore(folder.weights)
        self._faults: dict[str, str | None] = {}  # announced
        self._published_s = 0.0
        self._pending_status: Any = None  # reference of the store's status
        self._num_saved = 0
        self._put: dict[int, Any] = {}  # references of weights in Ray's memory by version

    def start(self) -> None:
        self.status.begin("starting Ray", 1)
        self.report_status()
        self._connection.enter_context(connected(self._config.cluster))
        self.status.begin(_STARTING, 1)
        self.report_status()
        self._supervisor.start()
        if self._supervisor.real_time:
            self._announce(stop_help(self._folder.path))
        self._refresh()

    def close(self) -> None:
        with self._connection:
            self._supervisor.close()

    def report_status(self) -> None:
        self._on_status(self.status)

    def seconds(self) -> Mapping[str, float]:
        seconds: dict[str, float] = {}
        for role in self._supervisor.monitor.roles.values():
            for activity, spent_s in role.report.get("seconds", {}).items():
                seconds[activity] = seconds.get(activity, 0.0) + spent_s
        return seconds

    def write_metrics(self, group: str, values: Mapping[str, float]) -> None:
        store, step = self._supervisor.store, self.status.env_steps
        self._call(lambda: store.write_metrics.remote(group, values, step=step))

    def conclude(self, num_successes: int | None) -> None:
        store = self._supervisor.store
        self.status.advice = self._call(lambda: store.conclude.remote(num_successes))

    # ---- episodes

    def run_episodes(
        self,
        purpose: Purpose,
        wanted: Mapping[ArmGroup, range],
        weights: WeightSnapshot | None,
        *,
        new_actor: bool = True,
    ) -> dict[ArmGroup, list[EpisodeResult]]:
        """Each episode of a group runs on any free arm of the group. An arm keeps its actor."""
        supervisor, kept = self._supervisor, self._in_memory(weights)
        group_of = {name: group for group in wanted for name in group}
        todo = {group: list(indices)[::-1] for group, indices in wanted.items()}
        running: dict[Any, tuple[int, str]] = {}
        done: dict[ArmGroup, dict[int, EpisodeResult]] = {group: {} for group in wanted}
        while running or any(todo.values()):
            busy = {name for _, name in running.values()}
            for name in group_of.keys() - busy:
                if todo[group_of[name]] and supervisor.is_ready(name):
                    index = todo[group_of[name]].pop()
                    running[supervisor.robots[name].run_one.remote(purpose, index, kept)] = (index, name)
            for reference in ray.wait(list(running), timeout=_POLL_S)[0] if running else ():
                index, name = running.pop(reference)
                result = self._result(reference, purpose, index, name, num_episodes=len(wanted[group_of[name]]))
                if result is None:
                    todo[group_of[name]].append(index)
                else:
                    done[group_of[name]][index] = result
            for group in [group for group, left in todo.items() if left and self.is_gone(group)]:
                self._folder.event("left out", robots=list(group), purpose=purpose)
                todo.pop(group), done.pop(group)
                running = {ref: (index, name) for ref, (index, name) in running.items() if name not in group}
                group_of = {name: one for name, one in group_of.items() if one != group}
            if not done:
                limit_s = self._config.cluster.robot_timeout_s
                raise FailureError(
                    f"no arm is left: none returned or was acknowledged within cluster.robot_timeout_s = {limit_s:g} s"
                )
            if purpose is Purpose.EVAL:
                self.status.done = sum(map(len, done.values()))
            self._poll()
            if not running:
                time.sleep(_POLL_S)
        if purpose is Purpose.DEMO:
            self._wait_until_processed(_PROCESS_S)
        return {group: [of[index] for index in wanted[group]] for group, of in done.items()}

    def _in_memory(self, weights: WeightSnapshot | None) -> Any:
        """The reference of weights for the arms. The last two are kept: a comparison plays them in turns."""
        if weights is None:
            return ray.put(None)
        if weights.version not in self._put:
            self._put = dict([*self._put.items()][-1:])
            self._put[weights.version] = ray.put(weights)
        return self._put[weights.version]

    def _result(
        self, reference: Any, purpose: Purpose, index: int, name: str, *, num_episodes: int
    ) -> EpisodeResult | None:
        """The result of `run_one`; None if the episode must be repeated."""
        try:
            one = ray.get(reference)
        except UNREACHABLE:  # the arm restarts, or has left
            time.sleep(4 * _POLL_S)
            return None
        except RayTaskError as error:
            raise original_error(error) from None
        if one["stopped"] or one["problem"]:  # the arm was cut off, or rests; polling raises if the run is to end
            self._poll()
            time.sleep(4 * _POLL_S)
            return None
        if purpose is Purpose.EVAL and one["outcome"] is Outcome.ABORTED:
            raise interrupted_evaluation(index, num_episodes, robot=name)
        return EpisodeResult(id=one["id"] or "", score=one["score"], robot=name)

    def demo_counts(self, group: ArmGroup | None = None) -> DemoCounts:
        robots = None if group is None or len(self.groups) == 1 else group
        store = self._supervisor.store
        counts: DemoCounts = self._call(lambda: store.demo_counts.remote(robots))
        return counts

    def demos_at_once(self, group: ArmGroup) -> int:
        return 2 * len(group)

    @property
    def num_labels_under_way(self) -> int:
        return int(self._supervisor.report("store").get("labels_under_way", 0))

    def wait_for_labels(self, limit_s: float) -> None:
        self._wait_until_processed(limit_s)
        self._refresh()

    def _wait_until_processed(self, limit_s: float) -> None:
        store = self._supervisor.store
        self._call(lambda: store.wait_until_processed.remote(limit_s), limit_s=limit_s + 60.0)

    def is_gone(self, group: ArmGroup) -> bool:
        supervisor, limit_s = self._supervisor, self._config.cluster.robot_timeout_s
        return all(not supervisor.is_ready(name) and supervisor.not_ready_s(name) > limit_s for name in group)

    def present_arms(self) -> Collection[str]:
        return [name for name in self._supervisor.robots if self._supervisor.is_present(name)]

    @contextmanager
    def take_new_arms(self) -> Iterator[Collection[ArmGroup]]:
        supervisor = self._supervisor
        names, supervisor.new_arms = set(supervisor.new_arms), []
        num_demos = self._config.run.demos
        joined = [group for group in self.groups if names & set(group)]
        groups = [group for group in joined if self.demo_counts(group).accepted < num_demos]
        held_back = {name for group in groups for name in group}
        supervisor.held_back |= held_back
        yield groups
        if groups:
            self._call(supervisor.learner.refit_normalizer.remote)
        supervisor.held_back -= held_back

    # ---- learning

    def clone(self) -> WeightSnapshot:
        return self._weights.load(self._call(self._supervisor.learner.clone.remote))

    def newest_weights(self) -> WeightSnapshot:
        return self._weights.load(max(self._weights.versions()))

    @contextmanager
    def learning(self, start_from: int | None) -> Iterator[None]:
        self._start_learning(start_from)
        yield
        self._pause_learning()

    def _start_learning(self, start_from: int | None) -> None:
        supervisor = self._supervisor
        supervisor.learning = (start_from,)
        self._call(lambda: supervisor.learner.learn.remote(start_from))

    def _pause_learning(self) -> int:
        supervisor = self._supervisor
        supervisor.learning = None
        return int(self._call(supervisor.learner.pause_learning.remote))

    @property
    def num_warmup_updates(self) -> int:
        return int(self._supervisor.report("learner").get("warmup_updates", 0))

    def warm_up(self, num_updates: int) -> None:
        """The learner does it by itself before it learns online."""
        while self.num_warmup_updates < num_updates:
            self.status.done = self.num_warmup_updates
            self.advance()

    def publish(self) -> None:
        """The learner publishes whenever it saves."""

    def start_online(self) -> None:
        self._supervisor.online = True

    def advance(self) -> None:
        self._poll()
        time.sleep(_POLL_S)

    def stop_online(self) -> None:
        self._supervisor.stop_online()

    def finish_updates(self) -> None:
        config = self._config.learner
        owed = int(config.utd * max(0, self.status.trained_steps - config.start_after_steps))
        self.status.begin("the last updates", owed)
        done, changed_s = -1, time.monotonic()
        # an algorithm may wait for data that never comes, such as a correction
        while done < owed and time.monotonic() - changed_s < _STALLED_S:
            report = self._call(self._supervisor.learner.report.remote)
            if report["online_updates"] != done or not report["learning"]:  # not learning: it restarts
                done, changed_s = report["online_updates"], time.monotonic()
            self.status.done = done
            self.advance()

    @contextmanager
    def paused(self) -> Iterator[WeightSnapshot]:
        """The arms are needed, so online episodes pause too."""
        supervisor, learning = self._supervisor, self._supervisor.learning
        supervisor.stop_online()
        yield self._weights.load(self._pause_learning())
        if learning is not None:
            self._start_learning(*learning)
        supervisor.online = True

    def serve_pinned(self) -> None:
        self._call(self._supervisor.learner.publish_again.remote)

    def save_best(self, figure: Mapping[str, float], by: str) -> None:
        learner = self._supervisor.learner
        self._call(lambda: learner.save_best.remote(figure, by))

    # ---- while the roles work

    def _call(self, call: Callable[[], Any], *, limit_s: float | None = None) -> Any:
        return self._supervisor.call_until_done(call, limit_s=limit_s)

    def _poll(self) -> None:
        """Check all roles, update the status, and raise Interrupted if the run is to stop."""
        status, supervisor = self.status, self._supervisor
        supervisor.poll()
        learner = supervisor.report("learner")
        status.updates = learner.get("updates") or status.updates
        if status.phase == _STARTING:
            roles = supervisor.monitor.roles.values()
            status.done, status.total = sum(bool(role.report) for role in roles), len(roles)
        elif "cloning" in learner.get("doing", ""):
            status.done = learner["progress"][0]
        for name in supervisor.robots:
            report = supervisor.report(name)
            status.telemetry = report.get("telemetry") or status.telemetry
            self._announce_fault(name, report.get("fault") or supervisor.resting.get(name))
        self._read_store_status()
        if time.monotonic() - self._published_s > _STATUS_S:
            self._published_s = time.monotonic()
            self._publish_status()
        self.report_status()
        if self._should_stop() or any(supervisor.report(name).get("stop_requested") for name in supervisor.robots):
            raise Interrupted
        if learner.get("num_saved", 0) != self._num_saved:
            self._num_saved = learner["num_saved"]
            self.on_checkpoint()

    def _publish_status(self) -> None:
        status, supervisor = self.status, self._supervisor
        if self._pending_status is None and supervisor.store is not None:
            self._pending_status = supervisor.store.status.remote()
        supervisor.publish_status(
            run=self._folder.path.name,
            phase=status.phase,
            env_steps=status.env_steps,
            updates=status.updates,
            missing=", ".join(supervisor.missing) or "none",
            arms=self._figures_by_arm(),
        )

    def _figures_by_arm(self) -> dict[str, dict[str, object]]:
        done, names = self.status.robots, self._config.cluster.named_robots()
        if len(names) == 1:  # the episodes of a single arm have the robot's own name
            return {name: arm.to_json() for name in names for arm in done.values()}
        return {name: done[name].to_json() for name in names if name in done}

    def _read_store_status(self) -> None:
        """Read the store's status if it has arrived. A store may take long to recover, and arms must be polled meanwhile."""
        if self._pending_status is None or not ray.wait([self._pending_status], timeout=0)[0]:
            return
        reference, self._pending_status = self._pending_status, None
        with contextlib.suppress(RayError):  # it restarts: the last status is good enough
            self._copy_status(ray.get(reference))

    def _refresh(self) -> None:
        self._pending_status = None
        self._copy_status(self._call(self._supervisor.store.status.remote))

    def _copy_status(self, stored: RunStatus) -> None:
        for name in (field.name for field in fields(stored) if field.name not in _DRIVER_FIELDS):
            setattr(self.status, name, getattr(stored, name))
        if self.status.phase == LEARNING:
            self.status.done = stored.env_steps

    def _announce_fault(self, name: str, fault: str | None) -> None:
        if fault == self._faults.get(name):
            return
        self._faults[name] = fault
        self._announce(
            f"{name} has stopped: {fault}. Fix it, then acknowledge it in the console or with "
            f"`dovetail acknowledge {run_argument(self._folder.path)} {name}` (Ctrl-C ends the run)"
            if fault
            else f"{name} continues"
        )


class RayRun(RunPhases):
    """A run on Ray. `live`: a console is attached. `announce` prints a line in the terminal.

    `stop` is the emergency stop of all arms, which this process leads; without it, the run makes one.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        on_status: StatusListener = ignore_status,
        should_stop: Callable[[], bool] = lambda: False,
        live: bool = False,
        announce: Callable[[str], None] = lambda line: None,
        stop: RunStop | None = None,
    ) -> None:
        runtime = RayRuntime(
            folder,
            on_status=on_status,
            should_stop=should_stop,
            live=live,
            announce=announce,
            stop=stop,
        )
        super().__init__(folder, runtime)
