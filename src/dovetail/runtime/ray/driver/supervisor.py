"""Starts the roles of a run on their machines, monitors them, and repeats their orders after a restart."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dovetail.config.plugins import resolve
from dovetail.core.abilities import SlowLabeler
from dovetail.core.disk import read_file, write_atomic
from dovetail.core.errors import DovetailError, FailureError, one_line
from dovetail.live.run_stop import Kind, RunStop
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.cluster.connection import (
    LocalNode,
    check_places,
    role_options,
    same_machine_options,
    silent_stderr,
)
from dovetail.runtime.ray.driver.arm_startup import ArmStartup
from dovetail.runtime.ray.driver.health import HealthMonitor, failure_reason
from dovetail.runtime.ray.driver.status import STATUS_ACTOR, RoleStatus, StatusRole
from dovetail.runtime.ray.driver.stop_relays import STOP_GROUP, StopRelays
from dovetail.runtime.ray.roles.handles import UNREACHABLE
from dovetail.runtime.ray.roles.labeler import LabelerRole
from dovetail.runtime.ray.roles.learner import LearnerRole
from dovetail.runtime.ray.roles.robot import KEY, Arm, RobotRole
from dovetail.runtime.ray.roles.store import StoreRole
from dovetail.runtime.ray.roles.weights import WeightsRole

__all__ = ["RoleSupervisor", "original_error"]

_POLL_S = 0.05
_CLOSE_S = 30.0
_FIND_S = 3.0
_RESTARTS: dict[str, Any] = {"max_restarts": -1}


class RoleSupervisor:
    """`start` the roles, `poll` them all the time, `call_until_done` for a result, and `close` them, arms first.

    `shown()` returns the run's status for the console. `on_poll` is called while a call waits, and may raise.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        live: bool,
        stop: RunStop,
        shown: Callable[[], Mapping[str, Any]],
        on_poll: Callable[[], None],
    ) -> None:
        self._folder, self._live, self._shown, self._on_poll = folder, live, shown, on_poll
        self._stop, self._stop_read = stop, stop.position
        self._relays = StopRelays(stop)
        self.monitor = HealthMonitor(report=folder.event)
        self._role_status = RoleStatus(self.monitor)
        self.store: Any = None
        self.learner: Any = None
        self._status_actor: Any = None
        self.online = False  # whether the arms shall act online
        self.learning: tuple[int | None] | None = None  # the argument of the learner's `learn`; None: it is paused
        self._startup: ArmStartup | None = None
        self.new_arms: list[str] = []  # that joined since they were last taken from here
        self.held_back: set[str] = set()  # arms that shall not act online
        self.resting: Mapping[str, str] = {}  # arms with a problem that must be acknowledged
        self._stopped_since_s: dict[str, float] = {}  # of arms with a problem or a fault
        self._node: LocalNode | None = None
        self._reported_restarts: dict[
            str, tuple[Any, int]
        ] = {}  # of each arm: its pid, and restarts in the events

    @property
    def robots(self) -> Mapping[str, Any]:
        """Handles of the arms that have started, by name."""
        return self._startup.robots if self._startup else {}

    @property
    def missing(self) -> Mapping[str, str]:
        """Arms that have not started, and why."""
        return self._startup.missing if self._startup else {}

    @property
    def real_time(self) -> bool:
        """Whether an arm is on the real clock."""
        return self._startup is not None and self._startup.real_time

    def is_present(self, name: str) -> bool:
        """Whether an arm has started and has not left."""
        return name in self.robots and name in self.monitor.roles and not self.monitor.roles[name].away

    def is_ready(self, name: str) -> bool:
        """Whether an arm is present and needs no acknowledgement."""
        report = self.report(name)
        return self.is_present(name) and not report.get("problem") and not report.get("fault")

    def not_ready_s(self, name: str) -> float:
        """Seconds since an arm's last report or since it stopped; infinite if it never started."""
        if name not in self.monitor.roles:
            return math.inf
        stopped_s = time.monotonic() - self._stopped_since_s.get(name, time.monotonic())
        return max(self.monitor.roles[name].silent_s, stopped_s)

    def start(self) -> None:
        folder, path = self._folder, self._folder.path.absolute()
        cluster, plain = folder.config.cluster, folder.config.model_dump(mode="json")
        self._node = LocalNode()
        check_places(cluster)
        self._status_actor = _actor(StatusRole, num_cpus=0, name=f"{STATUS_ACTOR}{path.name}").remote()
        labelers = {
            name: _actor(
                LabelerRole, **role_options(cluster.labeler, role="labeler", config=cluster), max_concurrency=8
            ).remote(name, config=plain, labels=folder.labels.absolute())
            for name in (f"labeler-{number}" for number in range(self._num_labelers()))
        }
        near = role_options(cluster.learner, role="learner", config=cluster, pinned=True)
        weights = _actor(WeightsRole, **role_options(cluster.weights, role="weights", config=cluster)).remote()
        with silent_stderr():  # Ray warns about handles in arguments; we keep them alive
            self.store = _actor(StoreRole, **same_machine_options(near), max_concurrency=16).remote(
                "store", *labelers.values(), path=path
            )
        self.learner = _actor(LearnerRole, **near, max_concurrency=4).remote(
            "learner", path=path, store=self.store, weights=weights
        )
        for role, handle in {"store": self.store, "learner": self.learner, "weights": weights, **labelers}.items():
            self.monitor.add(role, handle)

        def make(arm: Arm, **options: Any) -> Any:
            role = _actor(RobotRole, groups={STOP_GROUP: 2}, **options, max_concurrency=8)
            robot = role.remote(arm, store=self.store, weights=weights)
            self._relays.add(arm.name, robot)
            return robot

        self._startup = ArmStartup(
            folder, key=_key(path / KEY), live=self._live, stop_token=self._stop.token, make=make
        )
        self._startup.wait(self._on_poll)
        self.new_arms.clear()
        self.call_until_done(self.store.report.remote)

    def _num_labelers(self) -> int:
        """Fast labelers run inside the store and need no process."""
        config = self._folder.config
        is_slow = any(isinstance(resolve("labeler", one.type), SlowLabeler) for one in config.labels)
        return config.cluster.num_labelers if is_slow else 0

    def close(self) -> None:
        try:
            self._close_roles()
        finally:
            self._relays.close()

    def _close_roles(self) -> None:
        if self._node is None or self._node.is_dead:
            return
        present = [robot for name, robot in self.robots.items() if self.is_present(name)]  # Ray ends the others
        with contextlib.suppress(RayError):  # all at once, so that none moves while another stops
            if present:
                ray.wait([robot.close.remote() for robot in present], num_returns=len(present), timeout=_CLOSE_S)
        for role in (self.learner, self.store):
            try:
                if role is not None:
                    ray.get(role.close.remote(), timeout=_CLOSE_S)
            except Exception:  # it is dead or hangs: Ray ends it with the driver
                continue

    # ---- while they work

    def poll(self) -> None:
        """Check all roles. A restarted role gets its orders again. Raises FailureError if the run cannot continue."""
        if self._node is not None:
            self._node.check()
        for name in self._startup.poll() if self._startup else ():
            self.monitor.add(name, self.robots[name], poll=partial(self._poll_robot, name))
            self.new_arms.append(name)
        for name in self.monitor.poll():
            if name == "learner" and self.learning is not None:
                self.learner.learn.remote(*self.learning)
            if name == "weights":  # it has none, and the learner may publish nothing for long
                self.learner.publish_again.remote()
        self._report_restarted_processes()
        self._report_stops()
        for name in ("store", "learner"):
            problem = self.report(name).get("problem")
            if problem:
                raise FailureError(f"the {name} has stopped: {problem}")
        self._check_ingest()
        self._check_arms()

    def _check_ingest(self) -> None:
        """Fast labelers run inside the store. If one hangs, the store stops without an error."""
        ingesting_s = self.report("store").get("doing_s", {}).get("ingesting", 0.0)
        if ingesting_s > self._folder.config.cluster.label_timeout_s:
            raise FailureError(
                f"the store has worked on one episode for {ingesting_s:.0f} s. A labeler that may take longer than "
                "cluster.label_timeout_s must be a SlowLabeler, which has its own process"
            )

    def _check_arms(self) -> None:
        problems = {name: self.report(name).get("problem") for name in self.robots}
        resting = {name: str(problem) for name, problem in problems.items() if problem}
        for name in resting.keys() - self.resting.keys():
            self._folder.event("robot rests", robot=name, reason=resting[name])
        self.resting = resting
        now_s = time.monotonic()
        stopped = [name for name in self.robots if name in resting or self.report(name).get("fault")]
        self._stopped_since_s = {name: self._stopped_since_s.get(name, now_s) for name in stopped}
        if resting and len(resting) == len(self.robots):
            name = min(resting)
            raise FailureError(f"{name} has stopped: {resting[name]}")

    def _report_stops(self) -> None:
        """Add events for emergency stops and acknowledgements."""
        for record in self._stop.records(start=self._stop_read):
            self._stop_read = record.end
            robot = {"robot": record.arm} if record.arm else {}
            if record.kind is Kind.PRESS:
                self._folder.event("emergency stop", source=record.source, **robot)
            elif record.kind is Kind.ACKNOWLEDGE:
                self._folder.event("acknowledged", source=record.source, **robot)

    def _report_restarted_processes(self) -> None:
        """Add events for processes of an arm that were killed and that the arm restarted."""
        for name in self.robots:
            report = self.report(name)
            pid, restarted = report.get("pid"), report.get("restarted_processes", ())
            before, num_reported = self._reported_restarts.get(name, (pid, 0))
            for process, new_pid in restarted[num_reported if before == pid else 0 :]:
                self._folder.event("lost", role=f"{name}/{process}")
                self._folder.event("restarted", role=f"{name}/{process}", pid=new_pid, host=report["host"])
            self._reported_restarts[name] = (pid, len(restarted))

    def report(self, name: str) -> Mapping[str, Any]:
        """The newest report of a role; empty before the first."""
        return self.monitor.roles[name].report if name in self.monitor.roles else {}

    def publish_status(self, *, arms: Mapping[str, Mapping[str, Any]], **facts: Any) -> None:
        """For `dovetail cluster status`. `arms` has the figures of each arm by name."""
        if self._status_actor is not None:
            rows = [{**row, **arms.get(row["name"], {})} for row in self._role_status.rows()]
            self._status_actor.update.remote({**facts, **self._role_status.totals(), "roles": rows})

    def call_until_done(self, call: Callable[[], Any], *, limit_s: float | None = None) -> Any:
        """The result of a remote call. It is repeated if the role restarts, so it must be safe to repeat."""
        until_s = None if limit_s is None else time.monotonic() + limit_s
        reference = call()
        while True:
            try:
                if ray.wait([reference], timeout=_POLL_S)[0]:
                    return ray.get(reference)
            except UNREACHABLE as error:
                if getattr(error, "actor_init_failed", False):  # Ray does not try again
                    self._find_failed_role()
                    raise FailureError(f"a role cannot be started: {failure_reason(error)}") from None
                time.sleep(4 * _POLL_S)
                reference = call()
            except RayTaskError as error:
                raise original_error(error) from None
            if until_s is not None and time.monotonic() > until_s:
                raise FailureError(f"a role did not answer within {limit_s:g} s")
            self._on_poll()

    def _find_failed_role(self) -> None:
        """A role cannot be started: polling raises an error with its name."""
        until_s = time.monotonic() + _FIND_S
        while time.monotonic() < until_s:
            self._on_poll()
            time.sleep(_POLL_S)

    def stop_online(self) -> None:
        """Stop online episodes after those that are running."""
        self.online = False
        for name, robot in list(self.robots.items()):
            if self.is_ready(name):
                reference = robot.pause.remote()
                while self.is_ready(name) and not ray.wait([reference], timeout=_POLL_S)[0]:
                    self._on_poll()

    def _poll_robot(self, name: str) -> Any:
        shown = {**self._shown(), **self._role_status.for_console()}
        online = self.online and name not in self.held_back
        return self.robots[name].report.remote(online=online, shown=shown)


def _key(path: Path) -> str:
    """The run's key, made once. An arm without access to the run's folder names its own folder by this key."""
    if not path.exists():
        write_atomic(path, secrets.token_hex(8).encode())
    return read_file(path).decode()


def _actor(role: type, *, groups: Mapping[str, int] | None = None, **options: Any) -> Any:
    """`groups`: concurrency groups and their numbers of threads; their calls do not queue behind others."""
    made: Any = ray.remote(concurrency_groups=dict(groups))(role) if groups else ray.remote(role)
    return made.options(**{**_RESTARTS, **options})


def original_error(error: RayTaskError) -> Exception:
    """The error that a role raised, without Ray's traceback."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, DovetailError):
        return cause
    failure = FailureError(one_line(cause or error))
    failure.__cause__ = error  # with its traceback for --debug
    return failure
