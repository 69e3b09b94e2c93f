"""On-policy learning on Ray: one role runs the whole run inline, because it collects its rollouts itself.

Its collectors and its other ranks are its own processes. Ray restarts a killed role, which continues from the last
checkpoint, as `dovetail run --resume` would.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError

from dovetail.core.errors import FailureError, Interrupted, UsageError, one_line
from dovetail.core.specs import RobotSpec
from dovetail.learn.memory import keep_freed_memory
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import NotRunning, RunStop
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus, StatusListener, ignore_status
from dovetail.runtime.inline import InlineRun
from dovetail.runtime.ray.cluster.connection import LocalNode, connected, role_options
from dovetail.runtime.ray.driver.health import HealthMonitor
from dovetail.runtime.ray.driver.status import STATUS_ACTOR, RoleStatus, StatusRole
from dovetail.runtime.ray.roles.role import Role, exclusive_lock

__all__ = ["OnPolicyRole", "RayOnPolicyRun"]

_NAME = "on_policy"
_POLL_S = 0.05
_STATUS_S = 0.5
_COPY_S = 0.2
_END_S = 30.0


class OnPolicyRole(Role):
    """`start` the run; `stop` interrupts it; `report` has its status."""

    def __init__(self, name: str, *, path: Path, live: bool) -> None:
        super().__init__(name)
        torch.set_flush_denormal(True)
        keep_freed_memory()
        self._path, self._live = path, live
        self._lock_file = exclusive_lock(path / ".on_policy.lock")
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._link: LiveLink | None = None
        self._copied_s = 0.0
        self._status: RunStatus | None = None
        self._ended: str | None = None  # "done" or "interrupted"

    def start(self, num_demos: int | None) -> None:
        """Run all phases, or only record demonstrations. Safe to repeat."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(num_demos,), name="run", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def report(self, shown: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self._link is not None and shown:
            self._link.update(**shown)
        status = self._status
        return {
            **self.about(),
            "doing": status.phase if status else "starting",
            "updates": status.updates if status else 0,
            "status": status,
            "ended": self._ended,
        }

    def _work(self, num_demos: int | None) -> None:
        try:
            run = InlineRun(
                RunFolder.open(self._path, trusted=True),
                on_status=self._copy_status,
                should_stop=self._stopping.is_set,
                live=self._make_link,
            )
            if num_demos is None:
                run.run()
            else:
                run.collect(num_demos)
            self._ended = "done"
        except Interrupted:
            self._ended = "interrupted"
        except Exception as error:  # a thread's border: the driver reads it
            self.problem = one_line(error)

    def _make_link(self, robot: RobotSpec) -> LiveLink:
        self._link = LiveLink(self._path, robot=robot, stop=self._run_stop(), waits=self._live)
        return self._link

    def _run_stop(self) -> RunStop:
        """The driver's emergency stop. On another machine a separate one, because the arms of this role are simulated."""
        try:
            return RunStop.attach(self._path)
        except NotRunning:
            own = self._path / "robots" / _NAME
            own.mkdir(parents=True, exist_ok=True)
            return RunStop.create(own)

    def _copy_status(self, status: RunStatus) -> None:
        now_s = time.monotonic()
        if self._status is None or now_s - self._copied_s > _COPY_S or status.phase != self._status.phase:
            self._copied_s, self._status = now_s, copy.deepcopy(status)


class RayOnPolicyRun:
    """The driver of an OnPolicyRole. `live`: a console is attached."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        on_status: StatusListener = ignore_status,
        should_stop: Callable[[], bool] = lambda: False,
        live: bool = False,
        stop: RunStop | None = None,
    ) -> None:
        cluster = folder.config.cluster
        if cluster.robots or cluster.num_robots > 1:
            name = folder.config.algorithm.type
            raise UsageError(
                f"{name} collects rollouts in its own simulations (algorithm.num_envs). Leave out cluster.robots"
            )
        self._folder, self._on_status, self._should_stop, self._live = folder, on_status, should_stop, live
        self._stop = stop
        self.status = RunStatus(name=folder.path.name)
        self._monitor = HealthMonitor(report=folder.event)
        self._role_status = RoleStatus(self._monitor)

    def run(self) -> None:
        self._drive(None)

    def collect(self, num_demos: int) -> None:
        self._drive(num_demos)

    def close(self) -> None:
        """`run` and `collect` close everything."""

    def _drive(self, num_demos: int | None) -> None:
        self._begin("starting Ray")
        cluster, path = self._folder.config.cluster, self._folder.path.absolute()
        with contextlib.ExitStack() as stack:
            if self._stop is None:  # the role attaches to it
                stack.enter_context(RunStop.create(path))
            stack.enter_context(connected(cluster))
            self._begin("starting the role")
            status_role: Any = ray.remote(StatusRole)
            status_actor = status_role.options(num_cpus=0, name=f"{STATUS_ACTOR}{path.name}").remote()
            on_policy: Any = ray.remote(OnPolicyRole)
            options = role_options(cluster.learner, role="learner", config=cluster, pinned=True)
            actor = on_policy.options(**options, max_restarts=-1, max_concurrency=4).remote(
                _NAME, path=path, live=self._live
            )
            role = self._monitor.add(
                _NAME, actor, poll=lambda: actor.report.remote(self._role_status.for_console())
            )
            actor.start.remote(num_demos)
            published_s, node = 0.0, LocalNode()
            while not role.report.get("ended"):
                node.check()
                if self._monitor.poll():  # it was restarted, and continues from its checkpoint
                    actor.start.remote(num_demos)
                if role.report.get("problem"):
                    raise FailureError(str(role.report["problem"]))
                self.status = role.report.get("status") or self.status
                self._on_status(self.status)
                if time.monotonic() - published_s > _STATUS_S:
                    published_s = time.monotonic()
                    status_actor.update.remote(self._facts())
                if self._should_stop():
                    self._interrupt(actor)
                    raise Interrupted
                time.sleep(_POLL_S)
            self.status = role.report.get("status") or self.status
            if role.report["ended"] == "interrupted":
                raise Interrupted

    def _begin(self, phase: str) -> None:
        self.status.begin(phase, 1)
        self._on_status(self.status)

    def _facts(self) -> dict[str, Any]:
        status = self.status
        facts = {
            "run": status.name,
            "phase": status.phase,
            "env_steps": status.env_steps,
            "updates": status.updates,
        }
        return {**facts, **self._role_status.totals(), "roles": self._role_status.rows()}

    def _interrupt(self, actor: Any) -> None:
        """Let it save its state. If it hangs, Ray ends it with the driver."""
        actor.stop.remote()
        until_s = time.monotonic() + _END_S
        with contextlib.suppress(RayActorError):
            while not ray.get(actor.report.remote())["ended"] and time.monotonic() < until_s:
                time.sleep(_POLL_S)
