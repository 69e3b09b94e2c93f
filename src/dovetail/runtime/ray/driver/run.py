"""The driver: tells the roles what a run is about now, and keeps its figures.

                  ┌── weights ◀── publishes ── learner ◀── batches ── replay
    robots ◀──────┘                                                     ▲
      └── spool ── delivers ──▶ store ── asks ──▶ labelers ── labels ───┘

Nothing that robots, store or learner do goes through it: while it waits, they work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dovetail.core.errors import FailureError
from dovetail.core.stats import Rate
from dovetail.core.types import Outcome, Purpose, WeightSnapshot
from dovetail.live.run_status import figures
from dovetail.runs.assembly.arms import arm_groups
from dovetail.runs.evaluations import MAIN, evaluation_curve, known_evaluation, note_evaluation
from dovetail.runs.folder import RunFolder
from dovetail.runs.schedule import Schedule
from dovetail.runs.status import RunStatus, StatusListener, ignore_status
from dovetail.runtime.inline import Interrupted
from dovetail.runtime.ray.cluster.connection import connected
from dovetail.runtime.ray.driver.supervisor import RoleSupervisor, ours
from dovetail.runtime.ray.roles.handles import AWAY
from dovetail.weights.store import DiskWeightStore

__all__ = ["RayRun"]

_STARTING = "starting the roles"
_LEARNING = "learning online"
_CLONING = "cloning the demonstrations"
_BOOKS = (  # of a RunStatus, what the store knows
    "env_steps",
    "episodes",
    "interventions",
    "trained_steps",
    "waiting",
    "robot_minutes",
    "robots",
    "recent_ids",
    "recent_success",
    "recent_return",
    "recent_human",
    "success_steps",
    "metrics",
    "advice",
)
Kind = tuple[str, ...]  # names of arms that do the same
_LOOK_S = 0.05
_POST_S = 0.5
_BEST_EVERY = 10  # episodes


class RayRun:
    """`run()` takes a recipe from nothing to a trained policy, as InlineRun does, with everything at once in between;
    `collect()` only records demonstrations."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        watch: StatusListener = ignore_status,
        should_stop: Callable[[], bool] = lambda: False,
        live: bool = False,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder, self._config, self._watch, self._should_stop = folder, folder.config, watch, should_stop
        self.status = RunStatus(name=folder.path.name)
        self._crew = RoleSupervisor(folder, live=live, told=lambda: figures(self.status, self._folder), each_look=self._look)
        self._weights = DiskWeightStore(folder.weights)
        self._schedule = Schedule(folder)
        self._announce, self._faults = announce, dict[str, str | None]()  # of arms that wait for somebody
        self._kinds: list[Kind] = arm_groups(folder.config)
        self._posted_s = 0.0
        self._asked: Any = None  # the store, for its books
        self._best_at = 0  # episodes
        self._started_s = time.monotonic()
        before = folder.read_json("progress.json") or {"wall_s": 0.0}
        self._wall_before_s = float(before["wall_s"])
        self._phases_before: Mapping[str, float] = before.get("phases") or {}
        for name in MAIN:
            rate = self._known(name)
            if rate is not None:
                self.status.rates[name] = rate

    def run(self) -> None:
        with_demos = self._config.run.demos
        self._within(lambda: self._run(with_demos))

    def collect(self, num_demos: int) -> None:
        self._within(lambda: self._demonstrate(num_demos))

    def close(self) -> None:
        """What it holds it lets go of at the end of `run` or `collect`."""

    def _within(self, work: Callable[[], None]) -> None:
        self.status.begin("starting Ray", 1)
        self._watch(self.status)
        with connected(self._config.cluster):
            self.status.begin(_STARTING, 1)
            self._watch(self.status)
            try:
                self._crew.start()
                self._refresh()
                work()
            finally:
                self._crew.end()
                self._write_progress()

    def _run(self, num_demos: int) -> None:
        run = self._config.run
        self._evaluate("untrained", run.untrained_episodes, None)
        self._demonstrate(num_demos)
        cloned = self._clone()
        if not self._known("after"):
            self._learn(cloned)
        self._evaluate("after", run.eval_episodes, self._newest())

    # ---- the phases

    def _demonstrate(self, num_demos: int) -> None:
        """So many of each kind of arm."""
        lacking = [kind for kind in self._kinds if self._demo_books(kind)["demos"] < num_demos]
        if not lacking:
            return
        total = num_demos * len(self._kinds)
        self.status.begin("recording demonstrations", total, done=int(self._books()["demos"]))
        self._demonstrate_by(lacking, num_demos)

    def _demonstrate_by(self, lacking: list[Kind], num_demos: int) -> None:
        while lacking:
            wanted: dict[Kind, range] = {}
            for kind in lacking:
                books = self._demo_books(kind)
                if books["tried_demos"] >= 3 * num_demos + 10:
                    by = "" if len(self._kinds) == 1 else f" of {', '.join(kind)}"
                    raise FailureError(
                        f"only {books['demos']} of {books['tried_demos']} demonstrations{by} succeeded: give them more "
                        "time (task.time_limit_s), or lower run.demo_noise"
                    )
                missing, first = num_demos - books["hopeful_demos"], books["tried_demos"]
                if missing > 0:
                    wanted[kind] = range(first, first + min(missing, 2 * len(kind)))
            if wanted:
                self._each(Purpose.DEMO, wanted, None)
            self._crew.insist(lambda: self._crew.store.settle.remote(5.0))
            self.status.done = int(self._books()["demos"])
            short = [kind for kind in lacking if self._demo_books(kind)["demos"] < num_demos]
            lacking = [kind for kind in short if not self._is_gone(kind)]

    def _demo_books(self, kind: Kind) -> Mapping[str, int]:
        """What is known of demonstrations; where all arms do the same, whoever gave them."""
        books = self._books()
        if len(self._kinds) == 1:
            return books
        known = [books["robots"][name] for name in kind if name in books["robots"]]
        return {what: sum(one[what] for one in known) for what in ("demos", "hopeful_demos", "tried_demos")}

    def _welcome(self, names: list[str]) -> None:
        """Arms that came while others practise. One that does what none has shown yet shows it first."""
        for kind in self._kinds:
            if set(kind) & set(names) and self._demo_books(kind)["demos"] < self._config.run.demos:
                self._crew.holding |= set(kind)
                self._demonstrate_by([kind], self._config.run.demos)
                self._crew.insist(self._crew.learner.look_again.remote)
                self._crew.holding -= set(kind)

    def _clone(self) -> int | None:
        """Behaviour cloning: what the report calls before, and what learning starts from; its version, if it does."""
        learner = self._config.learner
        if not self._books()["demos"] or not learner.bc_updates:
            return None
        if not self._known("cloning"):
            self.status.begin(_CLONING, learner.bc_updates)
            version = self._crew.insist(self._crew.learner.clone.remote)
            self._folder.write_json("cloned.json", {"version": version})
            self._evaluate("cloning", self._config.run.eval_episodes, self._weights.load(version))
        facts = self._folder.read_json("cloned.json")
        return int(facts["version"]) if facts and learner.start_from == "cloning" else None

    def _learn(self, cloned: int | None) -> None:
        run, crew = self._config.run, self._crew
        crew.learning = (cloned,)
        crew.insist(lambda: crew.learner.learn.remote(cloned))
        self._warm_up()
        self.status.begin(_LEARNING, run.env_steps, done=self.status.env_steps)
        crew.practise = True
        while self.status.env_steps < run.env_steps and not self._solved():
            self._pause()
            newcomers, crew.newcomers = crew.newcomers, []
            self._welcome(newcomers)
            name = self._schedule.due(self.status.env_steps)
            if name is not None:
                self._evaluate_meanwhile(name, cloned)
            self._keep_best()
        crew.rest()
        self._finish()
        crew.learning = None
        crew.insist(crew.learner.rest.remote)

    def _warm_up(self) -> None:
        num_updates = self._config.learner.warmup_updates if self._books()["demos"] else 0
        self.status.begin("warming up on demonstrations", num_updates)
        while self._crew.report("learner").get("warmup_updates", 0) < num_updates:
            self.status.done = self._crew.report("learner").get("warmup_updates", 0)
            self._pause()

    def _finish(self) -> None:
        """The labels that are under way, as long as the config says, and the updates that the last episodes have earned."""
        learner, limit_s = self._config.learner, self._config.labeling.finish_s
        self.status.begin("waiting for the last labels", 1)
        self._crew.insist(lambda: self._crew.store.settle.remote(limit_s), limit_s=limit_s + 60.0)
        self._refresh()
        if self.status.waiting:
            self._folder.event("labels wait", **self.status.waiting)
        owed = int(learner.utd * max(0, self.status.trained_steps - learner.start_after_steps))
        self.status.begin("the last updates", owed)
        done, changed_s = -1, time.monotonic()
        while (
            done < owed and time.monotonic() - changed_s < 10.0
        ):  # some wait for what never came: a correction, a success
            report = self._crew.insist(self._crew.learner.report.remote)
            if report["online_updates"] != done or not report["learning"]:  # or it is being started anew
                done, changed_s = report["online_updates"], time.monotonic()
            self.status.done = done
            self._pause()

    # ---- evaluations

    def _evaluate_meanwhile(self, name: str, cloned: int | None) -> None:
        """While it learns: practice waits, for the arms are needed."""
        status, crew = self.status, self._crew
        phase = (status.phase, status.total)
        crew.rest()
        crew.learning = None
        version = crew.insist(crew.learner.rest.remote)

        def keep(rate: Rate) -> None:
            if self._schedule.is_best(rate.rate):
                self._save_best(rate.rate, f"evaluation {name}")

        self._evaluate(name, self._schedule.num_episodes, self._weights.load(version), keep=keep)
        crew.learning = (cloned,)
        crew.insist(lambda: crew.learner.learn.remote(cloned))
        status.begin(*phase, done=status.env_steps)
        crew.practise = True

    def _keep_best(self) -> None:
        """Where nothing is evaluated, recent practice tells."""
        success = self._schedule.practice_success(self.status)
        if success is None or self.status.episodes < self._best_at + _BEST_EVERY:
            return
        self._best_at = self.status.episodes
        if self._schedule.is_best(success):
            self._save_best(success, "recent practice")

    def _save_best(self, success: float, by: str) -> None:
        self._crew.insist(lambda: self._crew.learner.save_best.remote(success, by))
        self._folder.event("best checkpoint", env_steps=self.status.env_steps, success=success, by=by)

    def _evaluate(
        self,
        name: str,
        num_episodes: int,
        snapshot: WeightSnapshot | None,
        *,
        keep: Callable[[Rate], None] = lambda rate: None,
    ) -> None:
        """Unless it is known already. See `Evaluations.make` for `keep`."""
        if not num_episodes or self._known(name):
            return
        status, run = self.status, self._config.run
        status.begin(f"evaluating: {name}", num_episodes * len(self._kinds))
        done = self._each(Purpose.EVAL, {kind: range(num_episodes) for kind in self._kinds}, snapshot)
        made = [one for some in done.values() for one in some]
        rate = _rate(made)
        some = -(-run.showcase_episodes // max(1, len(done)))
        shown = [one["id"] for of in done.values() for one in of[:some]][: run.showcase_episodes]
        version = None if snapshot is None else snapshot.version
        by = {
            arm: _rate([one for one in made if one["robot"] == arm]) for arm in sorted({o["robot"] for o in made})
        }
        facts: dict[str, Any] = {}
        if len(self._config.cluster.named_robots()) > 1:
            steps = {arm: status.robots[arm].env_steps if arm in status.robots else 0 for arm in by}
            facts["robots"] = {
                arm: {"successes": of.successes, "env_steps": steps[arm], **of.to_json()} for arm, of in by.items()
            }
        if absent := [arm for kind in self._kinds if kind not in done for arm in kind]:
            facts["absent"] = absent
        keep(rate)
        note_evaluation(self._folder, name, rate, status=status, version=version, shown=shown, facts=facts)
        curve = evaluation_curve(name, rate)
        if len(by) > 1:
            curve |= {f"{name if name in MAIN else 'scheduled'}_{arm}": of.rate for arm, of in by.items()}
        self._crew.insist(lambda: self._crew.store.note.remote("evaluation", curve, step=status.env_steps))
        self._watch(status)

    def _each(
        self, purpose: Purpose, wanted: Mapping[Kind, range], snapshot: WeightSnapshot | None
    ) -> dict[Kind, list[dict[str, Any]]]:
        """Of each kind of arm one episode for each index, on whichever is free; in their order. Kinds that are gone are not
        among them."""
        crew, kept = self._crew, ray.put(snapshot)
        kind_of = {name: kind for kind in wanted for name in kind}
        todo = {kind: list(indices)[::-1] for kind, indices in wanted.items()}
        running: dict[Any, tuple[int, str]] = {}
        done: dict[Kind, dict[int, dict[str, Any]]] = {kind: {} for kind in wanted}
        while running or any(todo.values()):
            busy = {name for _, name in running.values()}
            for name in kind_of.keys() - busy:
                if todo[kind_of[name]] and crew.is_fit(name):
                    index = todo[kind_of[name]].pop()
                    running[crew.robots[name].run_one.remote(purpose, index, kept)] = (index, name)
            for reference in ray.wait(list(running), timeout=_LOOK_S)[0] if running else ():
                index, name = running.pop(reference)
                try:
                    one = ray.get(reference)
                except AWAY:
                    todo[kind_of[name]].append(index)  # it is started anew, or has left
                    time.sleep(4 * _LOOK_S)
                    continue
                except RayTaskError as error:
                    raise ours(error) from None
                # it held, for it had not heard of us; or it rests until somebody has seen to it. Who wants the run
                # to end, or that there is no other arm, a look will tell
                if one["stopped"] or one["problem"]:
                    todo[kind_of[name]].append(index)
                    self._look()
                    time.sleep(4 * _LOOK_S)
                    continue
                if purpose is Purpose.EVAL and one["outcome"] is Outcome.ABORTED:
                    raise FailureError(
                        f"evaluation episode {index + 1} of {len(wanted[kind_of[name]])} was cut short by a fault or a bad "
                        f"reading: see to {name}, then evaluate again"
                    )
                done[kind_of[name]][index] = {**one, "robot": name}
            for kind in [kind for kind, left in todo.items() if left and self._is_gone(kind)]:
                self._folder.event("left out", robots=list(kind), purpose=purpose)
                todo.pop(kind), done.pop(kind)
                running = {ref: (index, name) for ref, (index, name) in running.items() if name not in kind}
            if not done:
                raise FailureError(
                    "no arm is left: none has come back, or was seen to, within cluster.robot_limit_s = "
                    f"{self._config.cluster.robot_limit_s:g} s"
                )
            if purpose is Purpose.EVAL:
                self.status.done = sum(map(len, done.values()))
            self._look()
            if not running:
                time.sleep(_LOOK_S)
        return {kind: [of[index] for index in wanted[kind]] for kind, of in done.items()}

    def _is_gone(self, kind: Kind) -> bool:
        """Whether none of these arms ever came, or all have left or stopped long ago."""
        crew, limit_s = self._crew, self._config.cluster.robot_limit_s
        return all(not crew.is_fit(name) and crew.unfit_s(name) > limit_s for name in kind)

    # ---- while others work

    def _pause(self) -> None:
        self._look()
        time.sleep(_LOOK_S)

    def _look(self) -> None:
        """At everybody, and for whoever watches."""
        status, crew = self.status, self._crew
        crew.look()
        learner = crew.report("learner")
        status.updates = learner.get("updates", status.updates)
        if status.phase == _STARTING:
            roles = crew.supervision.roles.values()
            status.done, status.total = sum(bool(role.report) for role in roles), len(roles)
        if status.phase == _CLONING:
            status.done = learner.get("progress", (0, 0))[0]
        for name in crew.robots:
            status.telemetry = crew.report(name).get("telemetry") or status.telemetry
            self._say_fault(name, crew.report(name).get("fault") or crew.resting.get(name))
        now_s = time.monotonic()
        self._hear_books()
        if now_s - self._posted_s > _POST_S:
            self._posted_s = now_s
            if self._asked is None and crew.store is not None:
                self._asked = crew.store.status.remote()
            crew.post(
                run=self._folder.path.name,
                phase=status.phase,
                env_steps=status.env_steps,
                updates=status.updates,
                missing=", ".join(crew.missing) or "nobody",
                arms=self._figures_of_arms(),
            )
        self._watch(status)
        if self._should_stop() or any(crew.report(name).get("stop_asked") for name in crew.robots):
            raise Interrupted

    def _hear_books(self) -> None:
        """Never waited for: a store may be recovering for long, and the arms must hear of us meanwhile."""
        if self._asked is None or not ray.wait([self._asked], timeout=0)[0]:
            return
        asked, self._asked = self._asked, None
        with contextlib.suppress(RayError):  # it is being started anew: what we know will do for a while
            self._copy_books(ray.get(asked))

    def _say_fault(self, name: str, fault: str | None) -> None:
        if fault == self._faults.get(name):
            return
        self._faults[name] = fault
        self._announce(
            f"{name} has stopped: {fault}. See to it, then say so in the console or with "
            f"`dovetail acknowledge {self._folder.path.name} {name}` (Ctrl-C ends the run)"
            if fault
            else f"{name} goes on"
        )

    def _refresh(self) -> None:
        """The books, as the store has them now."""
        self._asked = None
        self._copy_books(self._crew.insist(self._crew.store.status.remote))

    def _copy_books(self, books: RunStatus) -> None:
        for name in _BOOKS:
            setattr(self.status, name, getattr(books, name))
        if self.status.phase == _LEARNING:
            self.status.done = books.env_steps

    def _figures_of_arms(self) -> dict[str, dict[str, object]]:
        """What each has done so far; one that is alone goes by its make in the books."""
        done, names = self.status.robots, self._config.cluster.named_robots()
        if len(names) == 1:
            return {name: arm.to_json() for name in names for arm in done.values()}
        return {name: done[name].to_json() for name in names if name in done}

    def _books(self) -> Mapping[str, Any]:
        books: Mapping[str, Any] = self._crew.insist(self._crew.store.report.remote)
        if books.get("problem"):
            raise FailureError(f"the store has stopped: {books['problem']}")
        return books

    # ---- small things

    def _solved(self) -> bool:
        rule, status = self._config.run.stop_when_solved, self.status
        if rule is None or status.env_steps < rule.min_env_steps:
            return False
        if len(self._kinds) == 1:
            return status.unassisted_rate(rule.window) >= rule.success_rate
        here = [name for name in self._crew.robots if self._crew.is_here(name)]
        return bool(here) and all(
            name in status.robots and status.robots[name].unassisted_rate(rule.window) >= rule.success_rate
            for name in here
        )

    def _known(self, name: str) -> Rate | None:
        return known_evaluation(self._folder, name)

    def _newest(self) -> WeightSnapshot:
        return self._weights.load(max(self._weights.versions()))

    def _write_progress(self) -> None:
        wall_s = self._wall_before_s + time.monotonic() - self._started_s
        phases = dict(self._phases_before)
        for role in self._crew.supervision.roles.values():
            for phase, seconds in role.report.get("seconds", {}).items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        self._folder.write_json(
            "progress.json", {"wall_s": wall_s, "updates": self.status.updates, "phases": phases}
        )


def _rate(made: Sequence[Mapping[str, Any]]) -> Rate:
    return Rate(successes=sum(one["outcome"] is Outcome.SUCCESS for one in made), episodes=len(made))
