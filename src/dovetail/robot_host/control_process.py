"""The control process: runs the control loop and nothing else. It loads neither torch nor Ray, and shares no locks."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dovetail.actor.actors import ActorConfig, make_loop
from dovetail.actor.board import Board
from dovetail.actor.control import ControlLoop
from dovetail.actor.episode_end import HealthCheck
from dovetail.actor.inference import ProcessInference
from dovetail.actor.modes import Mode
from dovetail.actor.planner import Delays
from dovetail.actor.telemetry import Telemetry
from dovetail.config.plugins import resolve
from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import HasMode
from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.contracts import Operator
from dovetail.core.errors import DovetailError, RobotFault
from dovetail.core.specs import PolicySpec
from dovetail.core.types import EpisodeOrder, Purpose
from dovetail.human.axes import num_drive_axes
from dovetail.human.browser import ConsoleControl
from dovetail.human.success_detection import OperatorWithDetector, ProcessDetector
from dovetail.live.emergency import EmergencyStopCheck
from dovetail.processes.channel import Channel
from dovetail.processes.priority import CONTROL_PRIORITY, take_priority
from dovetail.processes.wakeup import WakeupReader, WakeupWriter, wait_for
from dovetail.robot_host.process_main import ProcessContext
from dovetail.robot_host.stop_sources import StopConfirmation, StopSources
from dovetail.runs.assembly.stop_devices import StopDevices
from dovetail.runs.assembly.workcell import Workcell, build_workcell

__all__ = ["run"]

_IDLE_S = 0.01  # between two checks of the emergency stop while no episode runs


class ProcessHealthCheck(HealthCheck):
    """Health check of the other processes. An ended process stops the robot; a late heartbeat first makes it hold.

    `heartbeat_timeout_s` is None for a simulated clock: then real time must not change the result, and only ends count.
    """

    def __init__(
        self,
        board: Board,
        channel: Channel,
        pipes: Mapping[str, WakeupReader],
        *,
        heartbeat_timeout_s: float | None,
    ) -> None:
        self._board, self._channel, self._pipes = board, channel, dict(pipes)
        self._heartbeat_ns = None if heartbeat_timeout_s is None else round(heartbeat_timeout_s * NS_PER_S)

    def hold_reason(self) -> str | None:
        if self._heartbeat_ns is None:
            return None
        for name, silent_ns in self._silent_ns().items():
            if silent_ns > self._heartbeat_ns // 2:
                return f"no heartbeat from the {name}"
        return None

    def stop_reason(self) -> str | None:
        for name, pipe in self._pipes.items():
            if not pipe.drain():
                return f"the {name} process has died"
        if not self._channel.is_open():
            return "the supervisor has died"
        if self._heartbeat_ns is not None:
            for name, silent_ns in self._silent_ns().items():
                if silent_ns > self._heartbeat_ns:
                    return f"the {name} has sent no heartbeat for {silent_ns / NS_PER_S:.1f} s"
        return self._board.guard_request or None

    def _silent_ns(self) -> dict[str, int]:
        now_ns = time.monotonic_ns()
        return {"supervisor": now_ns - self._board.heartbeat_ns, "guard": now_ns - self._board.guard_ns}


def run(context: ProcessContext) -> None:
    settings, channel, board = context.settings, context.channel, context.board
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    operator, policy = _section("operator", settings["operator"]), PolicySpec.from_json(settings["policy"])
    stop, devices = StopSources.inherited_stop(context.descriptors, arm=settings["arm"]), None
    if stop is not None:  # first: a press counts while the rest is built
        devices = StopDevices(operator)
        devices.report_to(stop)
    workcell = build_workcell(
        task=_section("task", settings["task"]) if settings["task"] else None,
        robot=_section("robot", settings["robot"]),
        cameras={name: _section("camera", camera) for name, camera in settings["cameras"].items()},
        safety=SafetyConfig.from_mapping(settings["safety"]),
        hides_success=settings["hides_success"],
        operator=operator,
        early_devices=devices,
        proposal_steps=policy.horizon if policy.base else 0,
        embedding_size=policy.base.embedding_size if policy.base else 0,
    )
    try:
        telemetry, real_time = Telemetry(), isinstance(workcell.clock, RealClock)
        health: HealthCheck = ProcessHealthCheck(
            board,
            channel,
            {name: WakeupReader(context.descriptors[name]) for name in ("inference", "recorder", "guard")},
            heartbeat_timeout_s=settings["actor"]["heartbeat_timeout_s"] if real_time else None,
        )
        workcell.robot.write_command_times(board.command_times)
        workcell.robot.report_measurements(board.measure)
        sources = StopSources.inherited(
            context.descriptors,
            num_axes=num_drive_axes(workcell.robot.spec),
            run_stop=stop,
            board=board,
        )
        console = _console_control(sources, workcell, operator)
        loops = _Loops(
            context,
            workcell,
            telemetry=telemetry,
            health=EmergencyStopCheck(console.box, health, stop=stop) if console else health,
            console=console,
            should_stop=lambda: bool(signals) or sources.ending() is not None,
        )
        if real_time:  # a simulation uses all the CPU time it can get
            take_priority(CONTROL_PRIORITY, threads=devices.threads if devices else ())
        if stop is not None:  # its thread has the priority, too
            workcell.watch_device(operator, stop)
        context.report_ready()
        stopped = StopConfirmation(board.command_times, confirm_s=0.0)
        while not signals:
            now_ns = time.monotonic_ns()
            if stopped.is_overdue(now_ns, stop_wanted=bool(sources.emergency() or sources.ending())):
                # an arm at rest is stopped again: the guard and the run expect a confirmation
                with contextlib.suppress(Exception):  # any driver: the filter latches it, and the guard acts
                    workcell.robot.stop()
            message = channel.receive(timeout_s=_IDLE_S)
            if message is None:
                continue
            if "run" in message:
                channel.send(_run_one(loops, message["run"], telemetry))
            elif "acknowledge" in message:
                workcell.robot.acknowledge()
            elif "close" in message:
                return
    finally:
        workcell.close()


class _Loops:
    """The control loop of each purpose. The operator and the policy depend on the purpose."""

    def __init__(
        self,
        context: ProcessContext,
        workcell: Workcell,
        *,
        telemetry: Telemetry,
        health: HealthCheck,
        console: ConsoleControl | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self._context, self._workcell, self._console = context, workcell, console
        self._telemetry, self._health, self._should_stop = telemetry, health, should_stop
        self._actor = _section("actor", context.settings["actor"])
        self._operator = _section("operator", context.settings["operator"])
        self._policy = PolicySpec.from_json(context.settings["policy"])
        plugin = resolve("actor", self._actor.type)
        assert isinstance(plugin, HasMode)
        self._mode: Mode = plugin.mode

        def listen(timeout_s: float) -> None:
            answered = wait_for(context.descriptors["inference"], timeout_s=timeout_s)
            if (reason := health.stop_reason()) is not None:
                raise RobotFault(f"robot '{workcell.robot.spec.name}' was stopped: {reason}")
            if should_stop() and not answered:  # the answer may never come
                raise RobotFault("asked to stop during inference")

        self._inference = ProcessInference(
            context.board, wake=WakeupWriter(context.descriptors["request"]).wake, listen=listen
        )
        assert isinstance(self._actor.config, ActorConfig)
        self._delays = Delays()  # measured on this machine, shared by all purposes
        self._made: dict[Purpose, ControlLoop] = {}

    def of(self, purpose: Purpose) -> ControlLoop:
        if purpose not in self._made:
            self._made[purpose] = self._make(purpose)
        return self._made[purpose]

    def _operator_for(self, purpose: Purpose) -> Operator:
        settings, board = self._context.settings, self._context.board
        operator = self._workcell.operator(
            purpose, self._operator, demo_noise=settings["demo_noise"], console=self._console
        )
        if settings["consecutive"] is None or purpose is not Purpose.ONLINE:
            return operator
        judge = ProcessDetector(lambda: board.success_check, lambda: board.num_seen)  # computed by the supervisor
        return OperatorWithDetector(
            operator, judge, name="judge", probability=1.0, consecutive=settings["consecutive"]
        )

    def _make(self, purpose: Purpose) -> ControlLoop:
        workcell, acts = self._workcell, purpose is not Purpose.DEMO or self._policy.base is not None
        assert isinstance(self._actor.config, ActorConfig)
        return make_loop(
            self._actor.config,
            self._mode,
            robot=workcell.robot,
            task=workcell.task_for(purpose),
            operator=self._operator_for(purpose),
            policy=self._policy if acts else None,
            inference=self._inference if acts else None,
            board=self._context.board,
            clock=workcell.clock,
            telemetry=self._telemetry,
            probe=workcell.probe,
            should_stop=self._should_stop,
            health_check=self._health,
            delays=self._delays,
        )


def _console_control(sources: StopSources, workcell: Workcell, section: PluginSection) -> ConsoleControl | None:
    if sources.mailbox is None:
        return None
    return workcell.console_control(sources.mailbox, section, stop=sources.run_stop)


def _run_one(loops: _Loops, order: dict[str, Any], telemetry: Telemetry) -> dict[str, Any]:
    order["purpose"] = Purpose(order["purpose"])
    gc.collect()
    gc.disable()  # a collection would delay a tick
    try:
        ended = loops.of(order["purpose"]).run(EpisodeOrder(**order))
    except DovetailError as error:  # nothing was recorded, and the arm does not move
        return {"failed": str(error), "kind": type(error).__name__}
    finally:
        gc.enable()
    return {"ended": asdict(ended), "telemetry": telemetry.summary()}


def _section(kind: str, data: Any) -> PluginSection:
    return PluginSection.parse(kind, data)
