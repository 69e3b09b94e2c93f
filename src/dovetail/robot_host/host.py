"""An actor for real arms: processes for control, inference, recording and a guard share memory. This module supervises them.

    supervisor ──settings─▶ control ◀──chunk── inference        recorder ──▶ spool        guard ──stop──▶ arm
        │ heartbeat          │ observations ──▶ │                 ▲                         ▲
        └────────────────────┴──── anonymous shared memory ───────┴─────────────────────────┘

Nothing remains of the memory after a kill, because it has no name. Each process notices the end of another as the end
of a pipe: control then stops the arm; inference and recorder end. If control cannot stop the arm, the guard does, and if the
guard cannot, the supervisor does.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dovetail.actor.actors import ActorConfig, board_layout, make_start
from dovetail.actor.board import Board
from dovetail.actor.episode_end import EpisodeEnd
from dovetail.actor.episode_prompt import prepare_prompt
from dovetail.config.plugins import resolve
from dovetail.config.schema import RunConfig
from dovetail.core import errors
from dovetail.core.abilities import HasMode
from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.errors import DovetailError, FailureError, RobotFault, StopRequested, StoreError, one_line
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Episode, EpisodeOrder, Outcome, Purpose, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.live.link import LiveLink
from dovetail.processes.shared_memory import anonymous_memory, map_memory
from dovetail.processes.temp_folder import LockedTempFolder
from dovetail.rewards.early_success import BoardSuccessDetector, SuccessDetection
from dovetail.robot_host.arm_stopper import call_within
from dovetail.robot_host.heartbeat import Heartbeat
from dovetail.robot_host.host_process import STOP_S, HostProcess, start_processes
from dovetail.robot_host.process_settings import ProcessSettings
from dovetail.robot_host.stop_sources import StopSources
from dovetail.robot_host.supervisor_stop import STOP_CALL_S, stop_without_control
from dovetail.runs.assembly.camera_rates import max_camera_fps
from dovetail.runs.assembly.workcell import Workcell
from dovetail.weights.store import DiskWeightStore

__all__ = ["RobotHost"]

_START_S = 120.0  # a large policy loads slowly
_REPLY_S, _REPLY_AFTER_FAULT_S = 60.0, 5.0
_POLL_S = 0.02
# the supervisor stops the arm itself if control and guard have not done so this long after a STOP
_BACKUP_S = 0.25


class RobotHost:
    """See the Actor contract. The first episode, or `start()`, starts the processes."""

    def __init__(
        self,
        config: RunConfig,
        *,
        workcell: Workcell,
        policy: PolicySpec,
        spool: Path | None = None,
        weights: Path | None = None,
        components: Path | None = None,
        run_id: str | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        link: LiveLink | None = None,
        success_detection: SuccessDetection | None = None,
        lock_descriptor: int | None = None,
    ) -> None:
        """`lock_descriptor` belongs to a locked file. The control process inherits it, so the lock lasts as long."""
        assert isinstance(config.actor.config, ActorConfig)
        plugin = resolve("actor", config.actor.type)
        assert isinstance(plugin, HasMode)
        plugin.mode.check(policy)  # before a process starts
        self._config, self._actor, self._workcell, self._policy = config, config.actor.config, workcell, policy
        self._temp_folder = LockedTempFolder("dovetail-host-")
        self._spool = Spool((spool or self._temp_folder.path / "spool").absolute())
        self._delete_episodes = spool is None
        self._weights = weights.absolute() if weights else None  # where the run publishes weights
        self._components = components.absolute() if components else None  # the initial components of the policy
        self._run_id = run_id
        self._should_stop, self._link, self._lock_descriptor = should_stop, link, lock_descriptor
        self._success_detection = success_detection  # ends an online episode that has succeeded
        self._processes: dict[str, HostProcess] = {}
        self._board: Board | None = None
        self._heartbeat: Heartbeat | None = None
        self._is_started = False  # all processes are ready and have the weights
        self._stopped = self._was_asked_to_stop = False
        self._telemetry: Mapping[str, float] = {}
        self._real_time = isinstance(workcell.clock, RealClock)
        self._snapshot: WeightSnapshot | None = None
        self._killed_at_start: str | None = None
        self.fault: str | None = None
        self._needs_person = False  # the fault has another cause than a killed process

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def processes(self) -> Mapping[str, int]:
        """Process ids of the arm's processes, by role."""
        return {name: process.pid for name, process in self._processes.items()}

    @property
    def killed_process(self) -> str | None:
        """Name of a process that another process killed, if nothing else has happened since the last acknowledged fault."""
        if self._needs_person or self._guard_ended_control:
            return None
        return self._killed_at_start or next(
            (one.name for one in self._processes.values() if one.was_killed), None
        )

    def telemetry(self) -> Mapping[str, float]:
        return self._telemetry

    # ---- episodes

    def run(self, order: EpisodeOrder) -> Episode | None:
        self._stopped = self._was_asked_to_stop = False
        try:
            self.start()
            if self._should_stop():
                raise StopRequested
            first = self._begin(order)
        except StopRequested:
            self._stopped = True
            return None
        except FailureError:
            if self._must_stop():  # the failure may be a result of the stop
                self._stopped = True
                return None
            raise
        failure: DovetailError | None = None
        with self._success_detector(order, first) as detector:
            try:
                ended = self._wait_for_end(first)
            except DovetailError as error:
                ended, failure = self._aborted(first), error
        self._finish(ended)
        episode = self._collect(order.id)
        self._stopped = ended["stopped"] or self._must_stop()
        if failure is None and detector is not None and detector.problem is not None:
            failure = FailureError(f"the success detector failed: {one_line(detector.problem)}")
        if failure is not None and not self._stopped:
            raise failure
        return episode

    def _success_detector(
        self, order: EpisodeOrder, first: int
    ) -> contextlib.AbstractContextManager[BoardSuccessDetector | None]:
        if self._success_detection is None or order.purpose is not Purpose.ONLINE:
            return contextlib.nullcontext()
        assert self._board is not None
        return BoardSuccessDetector(self._success_detection, self._board, first=first)

    def _begin(self, order: EpisodeOrder) -> int:
        """Start the episode in all processes; returns its first row on the board."""
        assert self._board is not None
        section = self._config.operator
        link = self._link
        console = self._workcell.console_control(link.mailbox, section, stop=link.stop) if link else None
        operator = self._workcell.operator(
            order.purpose, section, demo_noise=self._config.run.demo_noise, console=console
        ).name
        if self._success_detection is not None and order.purpose is Purpose.ONLINE:
            operator += f"+{self._success_detection.name}"
        prepare_prompt(self._workcell.task, order)
        start = make_start(order, task=self._workcell.task, robot=self._workcell.robot.spec, operator=operator)
        first = self._board.num_seen
        self._board.ask_to_stop(stop=False)
        try:
            self._request("inference", {"reset": True, "follow": order.purpose is Purpose.ONLINE})
            self._request("recorder", {"begin": start.to_json(), "first": first})
        except StopRequested:
            self._end()  # a late reply would find an episode that has not begun
            raise
        except FailureError as error:
            self.fault = str(error)
            raise RobotFault(f"robot '{self._workcell.robot.spec.name}' cannot start: {error}") from error
        self._processes["control"].send({"run": {**asdict(order), "purpose": order.purpose.value}})
        return first

    def _wait_for_end(self, first: int) -> dict[str, Any]:
        """How the episode ended. Raises the error that kept the control loop from starting."""
        assert self._board is not None
        control, stop_s = self._processes["control"], float("inf")
        began_ns, hang_ns = time.monotonic_ns(), round(self._actor.tick_timeout_s * NS_PER_S)
        reply = None
        while reply is None:
            if self._must_stop():
                self._board.ask_to_stop()
                stop_s = min(stop_s, time.monotonic() + STOP_S)
            if time.monotonic() > stop_s:  # for example in a driver that hangs
                control.kill("it did not stop when asked to, and was killed")
            elif time.monotonic_ns() - max(began_ns, self._board.ticked_ns) > hang_ns:
                control.kill(f"it had not ticked for {self._actor.tick_timeout_s:g} s, and was killed")
            try:
                reply = control.receive(timeout_s=_POLL_S)
                # a killed process that waits for a device in the kernel does not end
                if reply is None and (control.error or (self._guard_ended_control and self._board.guard_report)):
                    raise FailureError(control.exit_reason())
            except FailureError as error:
                self._after_death_of_control(str(error))
                return self._aborted(first)
        if "failed" in reply:
            failure = _error(reply["kind"], reply["failed"])
            if isinstance(failure, RobotFault) and not self._must_stop():
                self._set_fault(str(failure))
                raise RobotFault(self.fault or "")
            raise failure
        self._telemetry = reply["telemetry"]
        ended: dict[str, Any] = reply["ended"]
        if ended["fault"]:
            self._set_fault(ended["fault"])
        return ended

    def _set_fault(self, fault: str) -> None:
        """A fault of the control loop. Only the end of another process needs no person."""
        was_killed = any(f"{process.title} has died" in fault for process in self._processes.values())
        self._needs_person = not was_killed or "stop() failed" in fault
        self.fault = self._explain(fault)

    def _aborted(self, first: int) -> dict[str, Any]:
        assert self._board is not None
        num_steps = max(0, self._board.num_stepped - first)
        stopped = self._must_stop()
        end = EpisodeEnd(outcome=Outcome.ABORTED, judgement=None, num_steps=num_steps, stopped=stopped)
        return asdict(end)

    def _finish(self, ended: Mapping[str, Any]) -> None:
        """Let the recorder write the remaining steps. A failure is a fault; the written steps remain."""
        recorder = self._processes["recorder"]
        try:
            names = ("outcome", "judgement", "num_steps", "reset_s", "has_success")
            end = {name: ended[name] for name in names}
            # after a fault a person waits, and a disk may hang
            recorder.request({"end": end}, timeout_s=_REPLY_S if self.fault is None else _REPLY_AFTER_FAULT_S)
            if self.fault is None and not ended["stopped"]:
                self._telemetry = {**self._telemetry, **self._request("inference", {"report": True})["telemetry"]}
        except StopRequested:
            self._end()
        except FailureError as error:
            if not recorder.has_ended and str(error).startswith("the recorder"):
                recorder.kill("it did not reply, and was killed")  # it has the journal open
            if str(error) not in (self.fault or ""):
                self.fault = f"{self.fault}; {error}" if self.fault else str(error)

    def _explain(self, fault: str) -> str:
        """The fault, with the exit reason of the process that ended or the last problem of the policy."""
        for process in self._processes.values():
            if (ended := f"{process.title} has died") in fault:
                return fault.replace(ended, process.exit_reason())
        with contextlib.suppress(FailureError, StopRequested):  # it may hang; the fault then says so
            problem = self._processes["inference"].request({"report": True}, timeout_s=STOP_S)["problem"]
            return f"{fault}; {problem}" if problem else fault
        return fault

    def _request(self, name: str, message: Mapping[str, Any]) -> dict[str, Any]:
        return self._processes[name].request(message, timeout_s=_REPLY_S)

    @property
    def _guard_ended_control(self) -> bool:
        return self._board is not None and self._board.guard_kill_ns > 0

    def _after_death_of_control(self, reason: str) -> None:
        assert self._board is not None
        problem = stop_without_control(self._workcell.robot, self._board, self._processes["guard"])
        report = self._board.guard_report
        if self._guard_ended_control:
            if self._must_stop():
                return  # the end of a run is not a fault, even if the control process was too slow
            self.fault = report
        else:
            self.fault = f"{reason}; {report}" if report else reason
        if problem is not None:  # the arm may move on
            self.fault, self._needs_person = f"{self.fault}; {problem}", True

    def _stop_was_ignored(self, reason: str) -> None:
        """Called in the heartbeat's thread if the control process and the guard both hang."""
        control, guard, board = self._processes.get("control"), self._processes.get("guard"), self._board
        if control is None or guard is None or board is None or not control.is_ready:
            return
        control.kill(f"{reason}; neither it nor the guard stopped the arm, and it was ended")
        stop_without_control(self._workcell.robot, board, guard)

    def _collect(self, episode_id: str) -> Episode | None:
        episode = self._spool.load(episode_id)
        if episode is None or self._delete_episodes:
            self._spool.acknowledge(episode_id)
        return episode

    def load(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights from the next episode on. Weights that do not fit are refused.

        Raises StopRequested if they are not loaded because the arm was asked to stop.
        """
        if self._is_started and not self._guard_ended_control:
            self._send_weights(snapshot)
        self._snapshot = snapshot

    def _send_weights(self, snapshot: WeightSnapshot) -> None:
        folder, stored = self._on_disk(snapshot)
        reply = self._request("inference", {"load": stored, "folder": str(folder), "version": snapshot.version})
        if "refused" in reply:
            raise StoreError(reply["refused"])

    def _on_disk(self, snapshot: WeightSnapshot) -> tuple[Path, int]:
        """Folder and version under which inference finds these weights; writes them if the run's store lacks them."""
        if self._weights is not None:
            with contextlib.suppress(StoreError):  # pruned meanwhile, or weights of another run
                if DiskWeightStore(self._weights).hashes(snapshot.version) == snapshot.hashes:
                    return self._weights, snapshot.version
        folder = self._temp_folder.path / "weights"
        return folder, DiskWeightStore(folder, keep=1).publish(snapshot.components)

    def acknowledge(self) -> None:
        """Clear the fault. Processes that ended or hang are restarted with the next episode."""
        self.fault, self._killed_at_start, self._needs_person = None, None, False
        if not self._all_acknowledge():
            self._end()

    def _all_acknowledge(self) -> bool:
        """Whether all processes are alive and accept the acknowledgement."""
        processes = self._processes.values()
        if self._guard_ended_control or (processes and not self._is_started):
            return False
        if any(process.has_ended or process.error for process in processes):
            return False
        try:
            if self._processes:
                timeout_s = self._actor.inference_timeout_s
                self._processes["inference"].request({"report": True}, timeout_s=timeout_s)
                self._processes["guard"].request({"acknowledge": True}, timeout_s=timeout_s)
                self._processes["control"].send({"acknowledge": True})
        except (FailureError, StopRequested):
            return False
        return True

    # ---- processes

    def start(self) -> None:
        if self.fault is not None:
            raise RobotFault(f"robot '{self._workcell.robot.spec.name}' does not move after a fault: {self.fault}")
        self._raise_if_emergency()
        if self._guard_ended_control:
            self._end()  # the guard ended control between two episodes, and the emergency stop was acknowledged since
        try:
            if not self._processes:
                self._start_processes()
            if not self._is_started:
                self._wait_until_ready()
                if self._snapshot is not None:
                    self._send_weights(self._snapshot)
                self._is_started = True
        except StopRequested:  # an arm that was cut off: they go on starting meanwhile
            raise
        except BaseException:
            self._killed_at_start = self.killed_process
            self._end()
            raise

    def _start_processes(self) -> None:
        workcell = self._workcell
        layout = board_layout(
            self._actor,
            robot=workcell.robot.spec,
            policy=self._policy,
            extras={**workcell.probe(), **workcell.robot.safety_extras()},
            max_fps=max_camera_fps(self._config),
        )
        memory = anonymous_memory(layout.num_bytes)
        self._board = Board(layout, map_memory(memory, layout.num_bytes))
        for_control, for_guard = self._stop_descriptors(), self._stop_descriptors()
        if self._link is not None:
            self._link.show_board(memory, layout)
        if self._lock_descriptor is not None:
            for_control["lock"] = os.dup(self._lock_descriptor)
        self._processes = start_processes(memory, for_control, for_guard, should_stop=self._should_stop)
        self._heartbeat = Heartbeat(
            self._board,
            self._stop_sources(self._board),
            every_s=min(0.05, self._actor.heartbeat_timeout_s / 8),
            confirm_s=self._config.safety.stop_confirm_s + _BACKUP_S if self._real_time else 2 * STOP_S,
            on_ignored=self._stop_was_ignored,
        )
        detection = self._success_detection
        settings = ProcessSettings(
            config=self._config,
            spec=workcell.robot.spec,
            policy=self._policy,
            arm=self._link.stop.arm if self._link else None,
            real_time=self._real_time,
            consecutive=detection.consecutive if detection else None,
            components=self._components,
            run_id=self._run_id,
            weights=self._weights,
            spool=self._spool.folder,
            temp_folder=self._temp_folder.path,
        )
        for name, process in self._processes.items():
            process.send({"layout": layout.to_json(), **settings.of(name)})

    def _wait_until_ready(self) -> None:
        """Wait until all processes are ready. Raises FailureError if one ends before, and StopRequested."""
        until_s = time.monotonic() + _START_S
        while waiting := [process for process in self._processes.values() if not process.is_ready]:
            self._raise_if_emergency()
            for process in waiting:
                process.is_ready = process.receive(timeout_s=_POLL_S) is not None
            if time.monotonic() > until_s:
                names = " and ".join(process.name for process in waiting)
                raise FailureError(f"the {names} process is not ready after {_START_S:.0f} s")
            if self._should_stop():
                raise StopRequested

    def _must_stop(self) -> bool:
        """Whether the arm was asked to stop since the episode began, perhaps for a moment: it was cut off."""
        self._was_asked_to_stop = self._was_asked_to_stop or self._should_stop()
        return self._was_asked_to_stop

    def _raise_if_emergency(self) -> None:
        """Refuse to start while an emergency stop is in force. The arm gets a stop, even if nothing moves it."""
        if (reason := self._stop_sources().emergency()) is not None:
            control, problem = self._processes.get("control"), None
            if control is None or not control.is_ready:
                problem = call_within(self._workcell.robot.stop, STOP_CALL_S)
            self.fault = f"{reason}; {problem}" if problem else reason
            raise RobotFault(f"robot '{self._workcell.robot.spec.name}' does not start: {self.fault}")

    def _stop_sources(self, board: Board | None = None) -> StopSources:
        if self._link is None:
            return StopSources(board=board)
        return StopSources(mailbox=self._link.mailbox, run_stop=self._link.stop, board=board)

    def _stop_descriptors(self) -> dict[str, int]:
        if self._link is None:
            return {}
        return {
            "mailbox": os.dup(self._link.mailbox_descriptor),
            "run_stop": os.dup(self._link.stop.descriptor),
        }

    def close(self) -> None:
        self._end()
        self._spool.close()
        self._temp_folder.close()

    def _end(self) -> None:
        """End all processes: ask them, then kill them."""
        processes, self._processes, self._is_started = self._processes, {}, False
        guard = processes.pop("guard", None)
        if self._board is not None:
            self._board.ask_to_stop()
        for process in processes.values():
            process.send({"close": True})
        until_s = time.monotonic() + STOP_S
        for process in processes.values():
            ended = process.close(timeout_s=until_s - time.monotonic() if process.is_ready else 0.0)
            if process.name == "control" and process.is_ready and not ended and guard and self._board:
                stop_without_control(self._workcell.robot, self._board, guard)
        if self._heartbeat is not None:
            self._heartbeat.close()
        if guard is not None:  # last: it watches the end of the control process
            guard.send({"close": True})
            guard.close(timeout_s=STOP_S if guard.is_ready else 0.0)
        self._board = self._heartbeat = None


def _error(kind: str, message: str) -> DovetailError:
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, DovetailError):
        return found(message)
    return FailureError(message)
