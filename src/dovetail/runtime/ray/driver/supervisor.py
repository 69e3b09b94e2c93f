"""The roles of a run: started where they belong, watched over, and told again what they were told if they have died."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dovetail.core.disk import read_file, write_atomic
from dovetail.core.errors import DovetailError, FailureError, one_line
from dovetail.runs.acknowledgements import take_acknowledged
from dovetail.runs.folder import RunFolder
from dovetail.runtime.ray.cluster.connection import OwnNode, beside, check_places, placed, speechless
from dovetail.runtime.ray.driver.arm_startup import ArmStartup
from dovetail.runtime.ray.driver.health import HealthMonitor, last_words
from dovetail.runtime.ray.driver.notice import NoticeRole
from dovetail.runtime.ray.driver.overview import Overview
from dovetail.runtime.ray.driver.status import BOARD
from dovetail.runtime.ray.roles.handles import AWAY
from dovetail.runtime.ray.roles.labeler import LabelerRole
from dovetail.runtime.ray.roles.learner import LearnerRole
from dovetail.runtime.ray.roles.robot import KEY, Arm, RobotRole
from dovetail.runtime.ray.roles.store import StoreRole
from dovetail.runtime.ray.roles.weights import WeightsRole

__all__ = ["RoleSupervisor", "ours"]

_LOOK_S = 0.05
_CLOSE_S = 30.0
_NAMED_S = 3.0
_LIVES: dict[str, Any] = {"max_restarts": -1}  # whoever dies is started anew


class RoleSupervisor:
    """`start` them, `look` at them all the time, `insist` on an answer; `end` them, those that move first.

    `told` gives what those who watch an arm may see; `each_look` is called while somebody is waited for, and may raise.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        live: bool,
        told: Callable[[], Mapping[str, Any]],
        each_look: Callable[[], None],
    ) -> None:
        self._folder, self._live, self._told, self._each_look = folder, live, told, each_look
        self.supervision = HealthMonitor(tell=folder.event)
        self._overview = Overview(self.supervision)
        self.store: Any = None
        self.learner: Any = None
        self._notice: Any = None
        self.practise = False  # what the arms are to do
        self.learning: tuple[int | None] | None = None  # what the learner is to do, and where it began
        self._muster: ArmStartup | None = None
        self.newcomers: list[str] = []  # arms that have come since somebody asked
        self.holding: set[str] = set()  # arms that are not to practise with the others
        self.resting: Mapping[str, str] = {}  # arms that somebody must see to, and why
        self._stopped_s: dict[str, float] = {}  # when they, or those that wait for somebody, were seen so first
        self._node: OwnNode | None = None
        self._casualties: dict[str, tuple[Any, int]] = {}  # of each arm: its process, and how many it has told of

    @property
    def robots(self) -> Mapping[str, Any]:
        """Arms that have come, by name."""
        return self._muster.robots if self._muster else {}

    @property
    def missing(self) -> Mapping[str, str]:
        """Arms that have not come, and why."""
        return self._muster.missing if self._muster else {}

    def is_here(self, name: str) -> bool:
        """Whether an arm has come, and has not left."""
        return name in self.robots and name in self.supervision.roles and not self.supervision.roles[name].away

    def is_fit(self, name: str) -> bool:
        """Whether it is here, and nobody must see to it first."""
        report = self.report(name)
        return self.is_here(name) and not report.get("problem") and not report.get("fault")

    def unfit_s(self, name: str) -> float:
        """Seconds since an arm was last heard of, or has stopped; infinite if it never came."""
        if name not in self.supervision.roles:
            return math.inf
        stopped_s = time.monotonic() - self._stopped_s.get(name, time.monotonic())
        return max(self.supervision.roles[name].silent_s, stopped_s)

    def start(self) -> None:
        folder, path = self._folder, self._folder.path.absolute()
        cluster, plain = folder.config.cluster, folder.config.model_dump(mode="json")
        self._node = OwnNode()
        check_places(cluster)
        take_acknowledged(folder.path)  # of another time
        self._notice = _actor(NoticeRole, num_cpus=0, name=f"{BOARD}{path.name}").remote()
        labelers = {
            name: _actor(
                LabelerRole, **placed(cluster.labeler, role="labeler", config=cluster), max_concurrency=8
            ).remote(name, config=plain, labels=folder.labels.absolute())
            for name in (f"labeler-{number}" for number in range(cluster.num_labelers))
        }
        near = placed(cluster.learner, role="learner", config=cluster, pinned=True)
        weights = _actor(WeightsRole, **placed(cluster.weights, role="weights", config=cluster)).remote()
        with speechless():  # Ray warns that what a role is given must stay: it does, for we keep it
            self.store = _actor(StoreRole, **beside(near), max_concurrency=16).remote(
                "store", *labelers.values(), path=path
            )
        self.learner = _actor(LearnerRole, **near, max_concurrency=4).remote(
            "learner", path=path, store=self.store, weights=weights
        )
        for role, handle in {"store": self.store, "learner": self.learner, "weights": weights, **labelers}.items():
            self.supervision.add(role, handle)

        def make(arm: Arm, **options: Any) -> Any:
            return _actor(RobotRole, **options, max_concurrency=8).remote(arm, store=self.store, weights=weights)

        self._muster = ArmStartup(folder, key=_key(path / KEY), live=self._live, make=make)
        self._muster.gather(self._each_look)
        self.newcomers.clear()
        self.insist(self.store.report.remote)

    def end(self) -> None:
        if self._node is None or self._node.is_dead:  # there is nobody to tell
            return
        here = [robot for name, robot in self.robots.items() if self.is_here(name)]  # Ray ends the others with us
        with contextlib.suppress(RayError):  # all at once: none goes on while another stops
            if here:
                ray.wait([robot.close.remote() for robot in here], num_returns=len(here), timeout=_CLOSE_S)
        for role in (self.learner, self.store):
            try:
                if role is not None:
                    ray.get(role.close.remote(), timeout=_CLOSE_S)
            except Exception:  # it is dead, or hangs: Ray ends it with us
                continue

    # ---- while they work

    def look(self) -> None:
        """At everybody: whoever was started anew is told again, and what somebody must see to ends the run."""
        if self._node is not None:
            self._node.check()
        for name in self._muster.look() if self._muster else ():
            self.supervision.add(name, self.robots[name], ask=_asks(self._ask_robot, name))
            self.newcomers.append(name)
        for name in self.supervision.look():
            if name == "learner" and self.learning is not None:
                self.learner.learn.remote(*self.learning)
            if name == "weights":  # it has none; and the learner may have nothing new for long
                self.learner.publish_again.remote()
        self._note_casualties()
        for name in take_acknowledged(self._folder.path):
            if name in self.robots:
                self._folder.event("acknowledged", robot=name)
                self.robots[name].acknowledge.remote()
        for name in ("store", "learner"):
            problem = self.report(name).get("problem")
            if problem:
                raise FailureError(f"the {name} has stopped: {problem}")
        problems = {name: self.report(name).get("problem") for name in self.robots}
        resting = {name: str(problem) for name, problem in problems.items() if problem}
        for name in resting.keys() - self.resting.keys():
            self._folder.event("robot rests", robot=name, reason=resting[name])
        self.resting = resting
        now_s = time.monotonic()
        stopped = [name for name in self.robots if name in resting or self.report(name).get("fault")]
        self._stopped_s = {name: self._stopped_s.get(name, now_s) for name in stopped}
        if resting and len(resting) == len(self.robots):
            name = min(resting)
            raise FailureError(f"{name} has stopped: {resting[name]}")

    def _note_casualties(self) -> None:
        """Processes of the arms' that were killed, and that they have started anew themselves."""
        for name in self.robots:
            report = self.report(name)
            pid, casualties = report.get("pid"), report.get("casualties", ())
            before, known = self._casualties.get(name, (pid, 0))
            for process, anew in casualties[known if before == pid else 0 :]:
                self._folder.event("lost", role=f"{name}/{process}")
                self._folder.event("started anew", role=f"{name}/{process}", pid=anew, host=report["host"])
            self._casualties[name] = (pid, len(casualties))

    def report(self, name: str) -> Mapping[str, Any]:
        """The newest of a role; empty before its first."""
        return self.supervision.roles[name].report if name in self.supervision.roles else {}

    def post(self, *, arms: Mapping[str, Mapping[str, Any]], **facts: Any) -> None:
        """For whoever asks the cluster; `arms` is what each has done, by name."""
        if self._notice is not None:
            rows = [{**row, **arms.get(row["name"], {})} for row in self._overview.rows()]
            self._notice.tell.remote({**facts, **self._overview.facts(), "roles": rows})

    def insist(self, call: Callable[[], Any], *, limit_s: float | None = None) -> Any:
        """The answer to a call, however long it takes, and from whoever is started anew if it dies: it must be one that may
        be repeated."""
        until_s = None if limit_s is None else time.monotonic() + limit_s
        reference = call()
        while True:
            try:
                if ray.wait([reference], timeout=_LOOK_S)[0]:
                    return ray.get(reference)
            except AWAY as error:
                if getattr(error, "actor_init_failed", False):  # Ray does not try again
                    self._hear_who()
                    raise FailureError(f"a role cannot be started: {last_words(error)}") from None
                time.sleep(4 * _LOOK_S)
                reference = call()
            except RayTaskError as error:
                raise ours(error) from None
            if until_s is not None and time.monotonic() > until_s:
                raise FailureError("a role gave no answer in time")
            self._each_look()

    def _hear_who(self) -> None:
        """Somebody cannot be started: looking at all of them ends the run with his name."""
        until_s = time.monotonic() + _NAMED_S
        while time.monotonic() < until_s:
            self._each_look()
            time.sleep(_LOOK_S)

    def rest(self) -> None:
        """Practice ends, with what is running."""
        self.practise = False
        for name, robot in list(self.robots.items()):
            if self.is_fit(name):
                self._insist_on(name, robot.pause.remote)

    def _insist_on(self, name: str, call: Callable[[], Any]) -> None:
        """The same of an arm; one that leaves meanwhile, or stops, need not answer."""
        reference = call()
        while self.is_fit(name) and not ray.wait([reference], timeout=_LOOK_S)[0]:
            self._each_look()

    def _ask_robot(self, name: str) -> Any:
        told = {**self._told(), **self._overview.seen()}
        practise = self.practise and name not in self.holding
        return self.robots[name].report.remote(practise=practise, told=told)


def _key(path: Path) -> str:
    """The run's, made once: an arm that does not see the run's folder finds its own by it, also after a restart."""
    if not path.exists():
        write_atomic(path, secrets.token_hex(8).encode())
    return read_file(path).decode()


def _actor(role: type, **options: Any) -> Any:
    made: Any = ray.remote(role)
    return made.options(**{**_LIVES, **options})


def _asks(ask: Callable[[str], Any], name: str) -> Callable[[], Any]:
    return lambda: ask(name)


def ours(error: RayTaskError) -> Exception:
    """What a role raised, without Ray's account of it."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, DovetailError):
        return cause
    made = FailureError(one_line(cause or error))
    made.__cause__ = error  # its account is for those who debug
    return made
