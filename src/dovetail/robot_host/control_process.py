"""The control process: the tick, and nothing else. No torch, no ray, no lock that anybody else holds."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dovetail.actor.actors import ActorConfig, make_loop
from dovetail.actor.board import Board
from dovetail.actor.control import ControlLoop, Watch
from dovetail.actor.mind import SharedMind
from dovetail.actor.modes import Mode
from dovetail.actor.planner import Delays
from dovetail.actor.telemetry import Telemetry
from dovetail.config.plugins import resolve
from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.contracts import Operator
from dovetail.core.errors import DovetailError, RobotFault
from dovetail.core.specs import PolicySpec
from dovetail.core.types import EpisodeOrder, Purpose
from dovetail.human.browser import Desk
from dovetail.human.judged import Elsewhere, Judged
from dovetail.human.mailbox import Mailbox
from dovetail.processes.channel import Channel
from dovetail.processes.shared_memory import mapped
from dovetail.processes.wakeup import Ear, Ringer, wait_for
from dovetail.robot_host.attended_actor import DeskWatch
from dovetail.robot_host.process_main import Role
from dovetail.runs.assembly.workcell import Workcell, build_workcell

__all__ = ["run"]

_PRIORITY = 40  # of 1 to 99, where the system lets us: above whatever learns, below the kernel's own


class ProcessWatch(Watch):
    """Those that the loop depends on: a dead one is an alarm, a silent supervisor first a worry."""

    def __init__(
        self, board: Board, channel: Channel, ears: Mapping[str, Ear], *, heartbeat_s: float | None
    ) -> None:
        """Without a heartbeat, where time is simulated, only deaths count: what is late by the clock on the wall must
        not change what happens."""
        self._board, self._channel, self._ears = board, channel, dict(ears)
        self._heartbeat_ns = None if heartbeat_s is None else round(heartbeat_s * NS_PER_S)

    def worry(self) -> str | None:
        if self._heartbeat_ns is None or self._silent_ns() <= self._heartbeat_ns // 2:
            return None
        return "the supervisor is silent"

    def alarm(self) -> str | None:
        for name, ear in self._ears.items():
            if not ear.hears():
                return f"the {name} process has died"
        if not self._channel.is_open():
            return "the supervisor has died"
        if self._heartbeat_ns is not None and (silent_ns := self._silent_ns()) > self._heartbeat_ns:
            return f"the supervisor has not been heard of for {silent_ns / NS_PER_S:.1f} s"
        return None

    def _silent_ns(self) -> int:
        return time.monotonic_ns() - self._board.heartbeat_ns


def run(role: Role) -> None:
    orders, channel, board = role.orders, role.channel, role.board
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_end.append(number))
    cell = build_workcell(
        task=_section("task", orders["task"]) if orders["task"] else None,
        robot=_section("robot", orders["robot"]),
        safety=SafetyConfig.from_mapping(orders["safety"]),
        hides_success=orders["hides_success"],
    )
    try:
        telemetry = Telemetry()
        watch = ProcessWatch(
            board,
            channel,
            {name: Ear(role.descriptors[name]) for name in ("inference", "recorder")},
            heartbeat_s=orders["actor"]["heartbeat_s"] if isinstance(cell.clock, RealClock) else None,
        )
        desk = _desk(role, cell)
        loops = _Loops(
            role,
            cell,
            telemetry=telemetry,
            watch=DeskWatch(desk.box, watch) if desk else watch,
            desk=desk,
            should_stop=lambda: bool(asked_to_end) or board.stopping,
        )
        if isinstance(cell.clock, RealClock):  # simulated time runs as fast as it can: it must leave others some
            _take_priority()
        role.ready()
        while not asked_to_end:
            message = channel.receive(timeout_s=0.2)
            if message is None:
                continue
            if "run" in message:
                channel.send(_run_one(loops, message["run"], telemetry))
            elif "acknowledge" in message:
                cell.robot.acknowledge()
            elif "close" in message:
                return
    finally:
        cell.close()


class _Loops:
    """The control loop for each purpose: who may take over differs, and who acts."""

    def __init__(
        self,
        role: Role,
        cell: Workcell,
        *,
        telemetry: Telemetry,
        watch: Watch,
        desk: Desk | None,
        should_stop: Callable[[], bool],
    ) -> None:
        self._role, self._cell, self._desk = role, cell, desk
        self._telemetry, self._watch, self._should_stop = telemetry, watch, should_stop
        self._actor = _section("actor", role.orders["actor"])
        self._operator = _section("operator", role.orders["operator"])
        self._policy = PolicySpec.from_json(role.orders["policy"])
        self._mode: Mode = getattr(resolve("actor", self._actor.type), "mode")  # noqa: B009

        def listen(timeout_s: float) -> None:
            came = wait_for(role.descriptors["inference"], timeout_s=timeout_s)
            if (why := watch.alarm()) is not None:
                raise RobotFault(f"robot '{cell.robot.spec.name}' was stopped: {why}")
            if should_stop() and not came:  # it may never come
                raise RobotFault("asked to stop while the policy was thinking")

        self._mind = SharedMind(role.board, wake=Ringer(role.descriptors["ask"]).ring, listen=listen)
        assert isinstance(self._actor.config, ActorConfig)
        self._delays = Delays(self._actor.config.delay_window)  # this machine's, whatever the purpose
        self._made: dict[Purpose, ControlLoop] = {}

    def of(self, purpose: Purpose) -> ControlLoop:
        if purpose not in self._made:
            self._made[purpose] = self._make(purpose)
        return self._made[purpose]

    def _operator_for(self, purpose: Purpose) -> Operator:
        orders, board = self._role.orders, self._role.board
        operator = self._cell.operator(purpose, self._operator, demo_noise=orders["demo_noise"], desk=self._desk)
        if orders["consecutive"] is None or purpose is not Purpose.ONLINE:
            return operator
        judge = Elsewhere(lambda: board.judged, lambda: board.num_seen)  # the supervisor's
        return Judged(operator, judge, name="judge", probability=1.0, consecutive=orders["consecutive"])

    def _make(self, purpose: Purpose) -> ControlLoop:
        cell, acts = self._cell, purpose is not Purpose.DEMO
        assert isinstance(self._actor.config, ActorConfig)
        return make_loop(
            self._actor.config,
            self._mode,
            robot=cell.robot,
            task=cell.task_for(purpose),
            operator=self._operator_for(purpose),
            policy=self._policy if acts else None,
            mind=self._mind if acts else None,
            board=self._role.board,
            clock=cell.clock,
            telemetry=self._telemetry,
            probe=cell.probe,
            should_stop=self._should_stop,
            watch=self._watch,
            delays=self._delays,
        )


def _desk(role: Role, cell: Workcell) -> Desk | None:
    """A person's place, where the run has one."""
    if (descriptor := role.descriptors.get("mailbox")) is None:
        return None
    num_axes = cell.robot.spec.action.shape[0]
    box = Mailbox(num_axes, mapped(descriptor, Mailbox.num_bytes(num_axes)))
    os.close(descriptor)  # the mapping stays
    return cell.desk(box, _section("operator", role.orders["operator"]))


def _run_one(loops: _Loops, order: dict[str, Any], telemetry: Telemetry) -> dict[str, Any]:
    order["purpose"] = Purpose(order["purpose"])
    gc.collect()
    gc.disable()  # no pause within an episode
    try:
        ended = loops.of(order["purpose"]).run(EpisodeOrder(**order))
    except DovetailError as error:  # nothing was recorded; the arm stands still
        return {"failed": str(error), "kind": type(error).__name__}
    finally:
        gc.enable()
    return {"ended": asdict(ended), "telemetry": telemetry.summary()}


def _section(kind: str, data: Any) -> PluginSection:
    return PluginSection.parse(kind, data)


def _take_priority() -> None:
    with contextlib.suppress(OSError, AttributeError):  # not ours to take, or not that kind of system
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        return
    with contextlib.suppress(OSError):
        os.nice(-10)
