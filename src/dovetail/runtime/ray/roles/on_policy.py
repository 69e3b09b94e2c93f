"""On-policy learning as a role: it collects for itself, so there is one of it, beside which nothing else learns or stores.

Its collectors are processes of its own, and its books the run's folder: one that is killed is started anew, and goes on from
the last checkpoint, as `dovetail run --resume` would.
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

from dovetail.core.errors import FailureError, UsageError, one_line
from dovetail.core.specs import RobotSpec
from dovetail.learn.memory import keep_freed_memory
from dovetail.live.link import LiveLink
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus, StatusListener, ignore_status
from dovetail.runtime.inline import InlineRun, Interrupted
from dovetail.runtime.ray.cluster.connection import OwnNode, connected, placed
from dovetail.runtime.ray.driver.health import HealthMonitor
from dovetail.runtime.ray.driver.notice import NoticeRole
from dovetail.runtime.ray.driver.overview import Overview
from dovetail.runtime.ray.driver.status import BOARD
from dovetail.runtime.ray.roles.role import Role, only_one

__all__ = ["OnPolicyRole", "RayOnPolicyRun"]

_NAME = "practice"
_LOOK_S = 0.05
_POST_S = 0.5
_COPY_S = 0.2
_END_S = 30.0


class OnPolicyRole(Role):
    """`go` until it is done, or told to `stop`; `report` tells how far it is."""

    def __init__(self, name: str, *, path: Path, live: bool) -> None:
        super().__init__(name)
        torch.set_flush_denormal(True)
        keep_freed_memory()
        self._path, self._live = path, live
        self._lock = only_one(path / ".practice.lock")
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._link: LiveLink | None = None
        self._copied_s = 0.0
        self._status: RunStatus | None = None
        self._ended: str | None = None  # done, or interrupted

    def go(self, num_demos: int | None) -> None:
        """All of it, or these demonstrations only. Harmless if it is at it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(num_demos,), name="practice", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def report(self, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self._link is not None and told:
            self._link.tell(**told)
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
            folder = RunFolder.open(self._path)
            run = InlineRun(folder, watch=self._watch, should_stop=self._stopping.is_set, live=self._make_link)
            if num_demos is None:
                run.run()
            else:
                with contextlib.closing(run):
                    run.collect(num_demos)
            self._ended = "done"
        except Interrupted:
            self._ended = "interrupted"
        except Exception as error:  # a thread's border: whoever watches is told
            self.problem = one_line(error)

    def _make_link(self, robot: RobotSpec) -> LiveLink:
        self._link = LiveLink(self._path, robot=robot, waits=self._live)
        return self._link

    def _watch(self, status: RunStatus) -> None:
        now_s = time.monotonic()
        if self._status is None or now_s - self._copied_s > _COPY_S or status.phase != self._status.phase:
            self._copied_s, self._status = now_s, copy.deepcopy(status)


class RayOnPolicyRun:
    """The driver of such a run: see `RayRun`."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        watch: StatusListener = ignore_status,
        should_stop: Callable[[], bool] = lambda: False,
        live: bool = False,
    ) -> None:
        cluster = folder.config.cluster
        if cluster.robots or cluster.num_robots > 1:
            name = folder.config.algorithm.type
            raise UsageError(
                f"{name} practises in worlds of its own (algorithm.num_envs): leave out cluster.robots"
            )
        self._folder, self._watch, self._should_stop, self._live = folder, watch, should_stop, live
        self.status = RunStatus(name=folder.path.name)
        self._supervision = HealthMonitor(tell=folder.event)
        self._overview = Overview(self._supervision)

    def run(self) -> None:
        self._work(None)

    def collect(self, num_demos: int) -> None:
        self._work(num_demos)

    def close(self) -> None:
        """What it holds it lets go of at the end of `run` or `collect`."""

    def _work(self, num_demos: int | None) -> None:
        self.status.begin("starting Ray", 1)
        self._watch(self.status)
        cluster, path = self._folder.config.cluster, self._folder.path.absolute()
        with connected(cluster):
            self.status.begin("starting the practice", 1)
            self._watch(self.status)
            notice: Any = ray.remote(NoticeRole)
            notice = notice.options(num_cpus=0, name=f"{BOARD}{path.name}").remote()
            practice: Any = ray.remote(OnPolicyRole)
            options = placed(cluster.learner, role="learner", config=cluster, pinned=True)
            practice = practice.options(**options, max_restarts=-1, max_concurrency=4).remote(
                _NAME, path=path, live=self._live
            )
            role = self._supervision.add(
                _NAME, practice, ask=lambda: practice.report.remote(self._overview.seen())
            )
            practice.go.remote(num_demos)
            posted_s, node = 0.0, OwnNode()
            while not role.report.get("ended"):
                node.check()
                if self._supervision.look():  # started anew: it goes on from its checkpoint
                    practice.go.remote(num_demos)
                if role.report.get("problem"):
                    raise FailureError(str(role.report["problem"]))
                self.status = role.report.get("status") or self.status
                self._watch(self.status)
                if time.monotonic() - posted_s > _POST_S:
                    posted_s = time.monotonic()
                    notice.tell.remote(self._facts())
                if self._should_stop():
                    self._end(practice)
                    raise Interrupted
                time.sleep(_LOOK_S)
            self.status = role.report.get("status") or self.status
            if role.report["ended"] == "interrupted":
                raise Interrupted

    def _facts(self) -> dict[str, Any]:
        status = self.status
        facts = {
            "run": status.name,
            "phase": status.phase,
            "env_steps": status.env_steps,
            "updates": status.updates,
        }
        return {**facts, **self._overview.facts(), "roles": self._overview.rows()}

    def _end(self, practice: Any) -> None:
        """It saves what it has; who hangs ends with us."""
        practice.stop.remote()
        until_s = time.monotonic() + _END_S
        with contextlib.suppress(RayActorError):
            while not ray.get(practice.report.remote())["ended"] and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
