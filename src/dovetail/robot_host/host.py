"""An actor in processes, as a real arm wants it: control, inference and recorder, sharing memory; this supervises.

    supervisor ──orders──▶ control ◀──chunk── inference        recorder ──▶ spool
        │ heartbeat          │ observations ──▶ │                 ▲
        └────────────────────┴──── one mapping, without a name ───┘

The memory has no name, so nothing is left behind whoever is killed. Everybody sees a death as an end of file: control
then holds and stops the arm, inference and recorder end.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dovetail.actor.actors import ActorConfig, board_layout, make_start
from dovetail.actor.board import Board
from dovetail.actor.modes import Mode
from dovetail.config.plugins import resolve
from dovetail.config.schema import RunConfig
from dovetail.core import errors
from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import DovetailError, FailureError, RobotFault, StoreError, one_line
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Episode, EpisodeOrder, Outcome, Purpose, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.live.link import LiveLink
from dovetail.processes.child import STOP_S, RoleProcess
from dovetail.processes.shared_memory import mapped, nameless_memory
from dovetail.processes.wakeup import bell
from dovetail.rewards.early_success import Onlooker, Ruling
from dovetail.runs.assembly.workcell import Workcell
from dovetail.weights.store import DiskWeightStore

__all__ = ["RobotHost"]

_START_S = 120.0  # a large policy takes its time
_REPLY_S = 60.0
_LOOK_S = 0.02


class RobotHost:
    """See the Actor contract. Processes start with the first episode, or with `start()`."""

    def __init__(
        self,
        config: RunConfig,
        *,
        cell: Workcell,
        policy: PolicySpec,
        spool: Path | None = None,
        weights: Path | None = None,
        parts: Path | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        link: LiveLink | None = None,
        ruling: Ruling | None = None,
        holds: int | None = None,
    ) -> None:
        """`holds` is a locked file's descriptor that the control process shares: while it lives, the lock does."""
        assert isinstance(config.actor.config, ActorConfig)
        mode: Mode = getattr(resolve("actor", config.actor.type), "mode")  # noqa: B009
        mode.check(policy)  # refused before anything starts
        self._config, self._actor, self._cell, self._policy = config, config.actor.config, cell, policy
        self._scratch = tempfile.TemporaryDirectory(prefix="dovetail-host-")
        self._spool = Spool((spool or Path(self._scratch.name) / "spool").absolute())
        self._forget_episodes = spool is None  # nobody else would
        self._weights = weights.absolute() if weights else None  # where the run publishes them
        self._parts = parts.absolute() if parts else None  # where it keeps what its policy started from
        self._should_stop, self._link, self._holds = should_stop, link, holds
        self._ruling = ruling  # who ends an episode of practice that has succeeded
        self._processes: dict[str, RoleProcess] = {}
        self._board: Board | None = None
        self._heart: threading.Thread | None = None
        self._stopped = False
        self._telemetry: Mapping[str, float] = {}
        self._snapshot: WeightSnapshot | None = None
        self._killed: str | None = None  # before all were ready
        self.fault: str | None = None

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def processes(self) -> Mapping[str, int]:
        """Their process ids, by role."""
        return {name: process.pid for name, process in self._processes.items()}

    @property
    def killed(self) -> str | None:
        """Which process somebody else has killed, since the last fault was acknowledged."""
        return self._killed or next((one.name for one in self._processes.values() if one.was_killed), None)

    def telemetry(self) -> Mapping[str, float]:
        return self._telemetry

    # ---- episodes

    def run(self, order: EpisodeOrder) -> Episode | None:
        self._stopped = False
        try:
            self.start()
            first = self._begin(order)
        except FailureError:
            if self._should_stop():  # who waits for what, at this moment, is nobody's business any more
                self._stopped = True
                return None
            raise
        failure: DovetailError | None = None
        with self._judging(order, first) as judge:
            try:
                ended = self._await(first)
            except DovetailError as error:
                ended, failure = self._cut_short(first), error
        self._finish(ended)
        episode = self._collect(order.id)
        self._stopped = ended["stopped"] or self._should_stop()
        if failure is None and judge is not None and judge.problem is not None:
            failure = FailureError(f"the judge that ends episodes failed: {one_line(judge.problem)}")
        if failure is not None and not self._stopped:
            raise failure
        return episode

    def _judging(self, order: EpisodeOrder, first: int) -> contextlib.AbstractContextManager[Onlooker | None]:
        if self._ruling is None or order.purpose is not Purpose.ONLINE:
            return contextlib.nullcontext()
        assert self._board is not None
        return Onlooker(self._ruling, self._board, first=first)

    def _begin(self, order: EpisodeOrder) -> int:
        """Tell everybody that an episode begins; returns its first row on the board."""
        assert self._board is not None
        section = self._config.operator
        desk = self._cell.desk(self._link.mailbox, section) if self._link else None  # it only tells who is there
        operator = self._cell.operator(
            order.purpose, section, demo_noise=self._config.run.demo_noise, desk=desk
        ).name
        if self._ruling is not None and order.purpose is Purpose.ONLINE:
            operator += f"+{self._ruling.name}"
        start = make_start(order, task=self._cell.task, robot=self._cell.robot.spec, operator=operator)
        first = self._board.num_seen
        self._board.ask_to_stop(stop=False)
        try:
            self._ask("inference", {"reset": True, "follow": order.purpose is Purpose.ONLINE})
            self._ask("recorder", {"begin": start.to_json(), "first": first})
        except FailureError as error:
            self.fault = str(error)
            raise RobotFault(f"robot '{self._cell.robot.spec.name}' does not move: {error}") from error
        self._processes["control"].tell({"run": {**asdict(order), "purpose": order.purpose.value}})
        return first

    def _await(self, first: int) -> dict[str, Any]:
        """How the episode ended, or what is known of that. Raises what the control loop could not even begin for."""
        assert self._board is not None
        control, stop_s = self._processes["control"], float("inf")
        began_ns, hang_ns = time.monotonic_ns(), round(self._actor.hang_s * NS_PER_S)
        reply = None
        while reply is None:
            if self._should_stop():
                self._board.ask_to_stop()
                stop_s = min(stop_s, time.monotonic() + STOP_S)
            if time.monotonic() > stop_s:  # in a driver that hangs, say: then the arm is ours to stop
                control.kill("it did not stop when asked to, and was killed")
            elif time.monotonic_ns() - max(began_ns, self._board.ticked_ns) > hang_ns:
                control.kill(f"it had not ticked for {self._actor.hang_s:g} s, and was killed")
            try:
                reply = control.next(timeout_s=_LOOK_S)
            except FailureError as error:
                self.fault = str(error)
                self._stop_arm()
                return self._cut_short(first)
        if "failed" in reply:
            failure = _error(reply["kind"], reply["failed"])
            if isinstance(failure, RobotFault) and not self._should_stop():
                self.fault = self._explained(str(failure))
                raise RobotFault(self.fault)
            raise failure
        self._telemetry = reply["telemetry"]
        ended: dict[str, Any] = reply["ended"]
        if ended["fault"]:
            self.fault = self._explained(ended["fault"])
        return ended

    def _cut_short(self, first: int) -> dict[str, Any]:
        assert self._board is not None
        num_steps = max(0, self._board.num_stepped - first)
        return {"outcome": Outcome.ABORTED, "judgement": None, "num_steps": num_steps, "stopped": False}

    def _finish(self, ended: Mapping[str, Any]) -> None:
        """The recorder writes the rest; one that cannot is a fault, and what it has written so far stays."""
        recorder = self._processes["recorder"]
        try:
            end = {name: ended[name] for name in ("outcome", "judgement", "num_steps")}
            recorder.ask({"end": end}, timeout_s=_REPLY_S)
            if self.fault is None and not ended["stopped"]:
                self._telemetry = {**self._telemetry, **self._ask("inference", {"report": True})["telemetry"]}
        except FailureError as error:
            if not recorder.is_dead and str(error).startswith("the recorder"):
                recorder.kill("it did not reply, and was killed")  # it holds the journal
            if str(error) not in (self.fault or ""):
                self.fault = f"{self.fault}; {error}" if self.fault else str(error)

    def _explained(self, fault: str) -> str:
        """A fault, with what its process died of, or else what the policy had to say."""
        for process in self._processes.values():
            if (died := f"the {process.name} process has died") in fault:
                return fault.replace(died, process.obituary())
        with contextlib.suppress(FailureError):  # it may hang: then that is known already
            problem = self._processes["inference"].ask({"report": True}, timeout_s=STOP_S)["problem"]
            return f"{fault}; {problem}" if problem else fault
        return fault

    def _ask(self, name: str, message: Mapping[str, Any]) -> dict[str, Any]:
        return self._processes[name].ask(message, timeout_s=_REPLY_S)

    def _stop_arm(self) -> None:
        """From here, when control cannot: any process may stop an arm, and the arm's own watchdog is the last resort."""
        try:
            self._cell.robot.stop()
        except Exception as error:  # told to whoever reads of the fault
            self.fault = f"{self.fault}; stop() failed too: {error!r}"

    def _collect(self, episode_id: str) -> Episode | None:
        episode = self._spool.load(episode_id)
        if episode is None or self._forget_episodes:
            self._spool.acknowledge(episode_id)
        return episode

    def load(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights from the next episode on. Ones that do not fit are refused, and nothing changes."""
        if self._processes:
            folder, stored = self._on_disk(snapshot)
            reply = self._ask("inference", {"load": stored, "folder": str(folder), "version": snapshot.version})
            if "refused" in reply:
                raise StoreError(reply["refused"])
        self._snapshot = snapshot

    def _on_disk(self, snapshot: WeightSnapshot) -> tuple[Path, int]:
        """Where inference finds these weights: in the run's store, or put where it can."""
        if self._weights is not None:
            with contextlib.suppress(StoreError):  # pruned meanwhile, or never of that run
                if DiskWeightStore(self._weights).hashes(snapshot.version) == snapshot.hashes:
                    return self._weights, snapshot.version
        inbox = Path(self._scratch.name) / "weights"
        return inbox, DiskWeightStore(inbox, keep=1).publish(snapshot.components)

    def acknowledge(self) -> None:
        """A person has seen the fault: what has died is started anew, and the robot may move again."""
        self.fault = self._killed = None
        if not self._all_answer():
            self._end()
        elif self._processes:
            self._processes["control"].tell({"acknowledge": True})

    def _all_answer(self) -> bool:
        """Whether nobody is dead, or hangs."""
        if any(process.is_dead for process in self._processes.values()):
            return False
        try:
            if self._processes:
                self._processes["inference"].ask({"report": True}, timeout_s=self._actor.stall_s)
        except FailureError:
            return False
        return True

    # ---- processes

    def start(self) -> None:
        if self.fault is not None:
            raise RobotFault(f"robot '{self._cell.robot.spec.name}' stands still after a fault: {self.fault}")
        if self._processes:
            return
        cell = self._cell
        layout = board_layout(
            self._actor,
            robot=cell.robot.spec,
            policy=self._policy,
            extras={**cell.probe(), **cell.robot.safety_extras()},
        )
        memory = nameless_memory(layout.num_bytes)
        self._board = Board(layout, mapped(memory, layout.num_bytes))
        given_control: dict[str, int] = {}
        if self._link is not None:
            self._link.show_board(memory, layout)
            given_control["mailbox"] = os.dup(self._link.mailbox_descriptor)
        if self._holds is not None:
            given_control["holds"] = os.dup(self._holds)
        self._beat()
        ask_ear, ask_bell = bell()
        answer_ear, answer_bell = bell()
        alive_ear, alive_bell = bell()
        given = {
            "control": {"ask": ask_bell, "inference": answer_ear, "recorder": alive_ear, **given_control},
            "inference": {"ask": ask_ear, "answer": answer_bell},
            "recorder": {"alive": alive_bell},
        }
        try:
            for name, descriptors in given.items():
                self._processes[name] = RoleProcess(
                    name, {**descriptors, "memory": memory}, should_stop=self._should_stop
                )
        except OSError:
            self._end()
            raise
        finally:  # only those they are meant for hold them: then a death is an end of file
            for descriptor in (memory, *(d for part in given.values() for d in part.values())):
                os.close(descriptor)
        for name, process in self._processes.items():
            process.tell({"layout": layout.to_json(), **self._orders(name)})
        try:
            self._await_ready()
            if self._snapshot is not None:
                self.load(self._snapshot)
        except BaseException:
            self._killed = self.killed
            self._end()
            raise

    def _await_ready(self) -> None:
        """All of them, or none: one that dies before it is ready must not leave the others waiting."""
        until_s = time.monotonic() + _START_S
        while waiting := [process for process in self._processes.values() if not process.is_ready]:
            for process in waiting:
                process.is_ready = process.next(timeout_s=_LOOK_S) is not None
            if time.monotonic() > until_s:
                names = " and ".join(process.name for process in waiting)
                raise FailureError(f"not ready after {_START_S:.0f} s: the {names} process")
            if self._should_stop():
                raise FailureError("asked to stop while the robot's processes were starting")

    def _orders(self, name: str) -> dict[str, Any]:
        config = self._config
        if name == "control":
            return {
                "task": config.task.to_plain() if config.task else None,
                "robot": config.robot.to_plain(),
                "operator": config.operator.to_plain(),
                "actor": config.actor.to_plain(),
                "safety": config.safety.model_dump(mode="json"),
                "policy": self._policy.to_json(),
                "demo_noise": config.run.demo_noise,
                "hides_success": config.labeling.hide_success,
                "consecutive": self._ruling.consecutive if self._ruling else None,
            }
        if name == "inference":
            return {
                "policy": config.policy.to_plain(),
                "robot": self._cell.robot.spec.to_json(),
                "seed": config.run.seed,
                "parts": str(self._parts) if self._parts else None,
                "follow": str(self._weights) if self._weights and self._actor.swap == "chunk" else None,
            }
        flush_steps = max(1, round(self._actor.flush_s * self._cell.robot.spec.control_hz))
        return {"spool": str(self._spool.folder), "flush_steps": flush_steps, "scratch": self._scratch.name}

    def _beat(self) -> None:
        board, ended = self._board, threading.Event()
        assert board is not None
        board.beat(time.monotonic_ns())

        def beat() -> None:
            while not ended.wait(min(0.1, self._actor.heartbeat_s / 8)):
                board.beat(time.monotonic_ns())

        self._heart = threading.Thread(target=beat, name="heartbeat", daemon=True)
        self._silence = ended.set
        self._heart.start()

    def close(self) -> None:
        self._end()
        self._spool.close()
        self._scratch.cleanup()

    def _end(self) -> None:
        """Nobody outlives this: asked, then killed."""
        processes, self._processes = self._processes, {}
        if self._board is not None:
            self._board.ask_to_stop()
        for process in processes.values():
            process.tell({"close": True})
        until_s = time.monotonic() + STOP_S
        for process in processes.values():
            ended = process.end(until_s=until_s if process.is_ready else 0.0)  # before, nothing has moved
            if process.name == "control" and process.is_ready and not ended:
                self._stop_arm()
        if self._heart is not None:
            self._silence()
            self._heart.join()
        self._board = self._heart = None


def _error(kind: str, message: str) -> DovetailError:
    found = getattr(errors, kind, FailureError)
    return (
        found(message) if isinstance(found, type) and issubclass(found, DovetailError) else FailureError(message)
    )
