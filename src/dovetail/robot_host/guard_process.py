"""The guard process: watches an arm through shared memory, and stops it if the control process does not.

The control loop sees the same emergency stops, and the guard's requests on the board. If it has not stopped the arm within
`safety.stop_confirm_s`, the guard stops the arm over the driver's independent connection, ends the control process, and
stops the arm again, because the last command of that process may have arrived in between. Without an independent connection,
the guard's own driver object connects once the control process has ended.

It loads neither torch nor Ray. It polls every 10 ms and never waits for a driver longer than a fixed time.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import time
from typing import Any

from dovetail.actor.board import Board
from dovetail.config.safety import SafetyConfig
from dovetail.config.schema import PluginSection
from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import RobotSpec
from dovetail.human.axes import num_drive_axes
from dovetail.processes.channel import ChannelClosed
from dovetail.processes.priority import GUARD_PRIORITY, take_priority
from dovetail.processes.wakeup import wait_for
from dovetail.robot_host.arm_stopper import ArmStopper
from dovetail.robot_host.measured_limits import MeasuredLimits
from dovetail.robot_host.process_main import ProcessContext
from dovetail.robot_host.stop_sources import StopConfirmation, StopSources, is_at_rest
from dovetail.runs.assembly.workcell import build_driver

__all__ = ["Guard", "run"]

_POLL_S = 0.01
_DEATH_S = 0.05  # a killed process normally ends within 2 ms
_FIRST_STOP_S = 0.02  # the control process is ended after this time even if the independent stop() hangs
_STOP_S = 1.0
_RECONNECT_S = 0.25
_RETRY_S, _MAX_RETRY_S = 0.1, 10.0  # pause after a stop() that failed; doubles each time
_SIMULATED_CONFIRM_S = 0.5  # a tick of a simulation may take long, and its arm hurts nothing


def run(context: ProcessContext) -> None:
    settings = context.settings
    safety, spec = SafetyConfig.from_mapping(settings["safety"]), RobotSpec.from_json(settings["spec"])
    real_time: bool = settings["real_time"]
    stopper = _build_stopper(settings["robot"], settings["task"]) if real_time else None
    limits = MeasuredLimits(context.board, spec, safety) if real_time else None
    guard = Guard(
        context.board,
        StopSources.inherited(
            context.descriptors,
            num_axes=num_drive_axes(spec),
            run_stop=StopSources.inherited_stop(context.descriptors, arm=settings["arm"]),
            board=context.board,
        ),
        name=spec.name,
        control=context.descriptors["control"],
        stopper=stopper,
        confirm_s=safety.stop_confirm_s if real_time else _SIMULATED_CONFIRM_S,
        heartbeat_timeout_s=settings["heartbeat_timeout_s"] if real_time else None,
        limits=limits,
    )
    take_priority(GUARD_PRIORITY)
    context.report_ready()
    channel = context.channel
    try:
        while True:
            guard.poll()
            message = channel.receive(timeout_s=_POLL_S)
            if message is not None and "close" in message:
                return
            if message is not None:
                guard.acknowledge()
                channel.send({"acknowledged": True})
    except ChannelClosed:
        guard.supervisor_has_died()
        while not guard.is_done:
            guard.poll()
            time.sleep(_POLL_S)
    finally:
        if stopper is not None:
            stopper.close()


def _build_stopper(robot: Any, task: Any) -> ArmStopper:
    section = PluginSection.parse("task", task) if task else None
    driver, _ = build_driver(task=section, robot=PluginSection.parse("robot", robot))
    return ArmStopper(driver)


class Guard:
    """See the module. Call `poll` every 10 ms. `control` is a pidfd of the control process.

    `stopper` is None for a simulated robot: to end its process is enough. `heartbeat_timeout_s` is None there too, because
    real time must not change a simulation.
    """

    def __init__(
        self,
        board: Board,
        sources: StopSources,
        *,
        name: str,
        control: int,
        stopper: ArmStopper | None,
        confirm_s: float,
        heartbeat_timeout_s: float | None,
        limits: MeasuredLimits | None = None,
    ) -> None:
        self._board, self._sources, self._control, self._stopper = board, sources, control, stopper
        self._name, self._confirm_s, self._limits = name, confirm_s, limits
        self._heartbeat_ns = None if heartbeat_timeout_s is None else round(heartbeat_timeout_s * NS_PER_S)
        self._confirmation = StopConfirmation(board.command_times, confirm_s=confirm_s)
        self._supervisor_died = self._control_died = False
        self._found: str | None = None  # what the guard itself has found, until it is acknowledged
        self._reason_to_kill: str | None = None
        self._retry_ns, self._retry_s = 0, _RETRY_S
        board.beat_guard(time.monotonic_ns())

    @property
    def is_done(self) -> bool:
        """Whether the control process has ended and the arm is at rest."""
        return self._control_died and is_at_rest(self._board.command_times)

    def acknowledge(self) -> None:
        """Forget what the guard has found. The arm may have restarted, or a person may have moved it."""
        self._found = None
        if self._stopper is not None:
            self._stopper.reconnect(_RECONNECT_S)
        if self._limits is not None:
            self._limits.restart()
        self._board.post_guard_request("")

    def supervisor_has_died(self) -> None:
        self._supervisor_died = True

    def poll(self) -> None:
        now_ns = time.monotonic_ns()
        self._board.beat_guard(now_ns)
        if self._control_died or wait_for(self._control, timeout_s=0.0):
            self._after_death(now_ns)
            return
        reason = self._reason(now_ns)
        overdue = self._confirmation.is_overdue(now_ns, stop_wanted=reason is not None)
        if reason is not None and overdue:
            self._stop_and_kill(reason)
        elif reason is not None and self._confirmation.is_confirmed:
            self._sources.confirm()

    def _reason(self, now_ns: int) -> str | None:
        """Why the arm must stop, or None."""
        if (reason := self._sources.emergency() or self._sources.ending()) is not None:
            return reason
        if self._supervisor_died:
            return "the supervisor has died"
        if self._found is None and (found := self._lost_heartbeat(now_ns) or self._violation()) is not None:
            self._found = found
            self._board.post_guard_request(found)
        return self._found

    def _violation(self) -> str | None:
        return self._limits.violation() if self._limits is not None else None

    def _lost_heartbeat(self, now_ns: int) -> str | None:
        if self._heartbeat_ns is None:
            return None
        beat_ns = self._board.control_ns
        if beat_ns and now_ns - beat_ns > self._heartbeat_ns:
            return f"the control loop has not ticked for {(now_ns - beat_ns) / NS_PER_S:.1f} s"
        # no tick is due in a reset, but a velocity lasts until the next command
        _, stopped_ns, moving_ns = self._board.command_times.tolist()
        if not beat_ns and moving_ns > stopped_ns and now_ns - moving_ns > self._heartbeat_ns:
            return f"the robot moves by velocity, without a command for {(now_ns - moving_ns) / NS_PER_S:.1f} s"
        return None

    # ---- acting

    def _stop_and_kill(self, reason: str) -> None:
        self._reason_to_kill = (
            f"{reason}; the control process did not stop the arm in {self._confirm_s:g} s and was ended"
        )
        self._board.post_guard_kill(time.monotonic_ns())
        stopped_ns: int | None = None
        if self._stopper is not None and self._stopper.is_independent:
            problem = self._stopper.stop_independently(_FIRST_STOP_S)
            stopped_ns = None if problem else time.monotonic_ns()
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            signal.pidfd_send_signal(self._control, signal.SIGKILL)
        self._control_died = wait_for(self._control, timeout_s=_DEATH_S)
        self._stop_arm(self._reason_to_kill, since_ns=self._confirmation.seen_ns, stopped_ns=stopped_ns)

    def _after_death(self, now_ns: int) -> None:
        """The control process has ended. It may have left the arm in motion, and a STOP may follow."""
        self._control_died = True
        pressed = self._sources.emergency()
        self._confirmation.is_overdue(now_ns, stop_wanted=pressed is not None)
        is_stopped = is_at_rest(self._board.command_times)
        if (not is_stopped or (pressed and not self._confirmation.is_confirmed)) and now_ns >= self._retry_ns:
            reason = self._reason_to_kill or "the control process has ended"
            self._stop_arm(
                f"{pressed}; {reason}" if pressed and pressed not in reason else reason, since_ns=now_ns
            )

    def _stop_arm(self, reason: str, *, since_ns: int | None, stopped_ns: int | None = None) -> None:
        """Stop the arm and report it. `stopped_ns`: when it was stopped before."""
        problem = self._stopper.stop(_STOP_S) if self._stopper is not None else None
        now_ns = time.monotonic_ns()
        after_ms = ((stopped_ns or now_ns) - (since_ns or now_ns)) / 1e6
        at = datetime.datetime.now().strftime("%H:%M:%S.%f")[:-3]
        result = (
            f"{problem}. Use the arm's own emergency stop" if problem else f"it stopped after {after_ms:.0f} ms"
        )
        # the report first: the supervisor reads it once the arm is at rest
        self._board.post_guard_report(f"the guard stopped robot '{self._name}' at {at}: {reason}; {result}")
        if problem is None:
            self._board.command_times[1] = time.monotonic_ns()
            self._sources.confirm()
        else:
            self._retry_ns = now_ns + round(self._retry_s * NS_PER_S)
            self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
