"""How the supervisor stops an arm whose control process has ended or hangs."""

from __future__ import annotations

import time

from dovetail.actor.board import Board
from dovetail.core.contracts import Robot
from dovetail.robot_host.arm_stopper import call_within
from dovetail.robot_host.host_process import HostProcess
from dovetail.robot_host.stop_sources import is_at_rest

__all__ = ["STOP_CALL_S", "stop_without_control"]

STOP_CALL_S = 1.0
_GUARD_S = 1.0  # the longest wait for a guard that stops the arm
_GUARD_SILENT_NS = 200_000_000  # a guard without a heartbeat for this long is not waited for
_POLL_S = 0.005


def stop_without_control(robot: Robot, board: Board, guard: HostProcess) -> str | None:
    """Return when the arm is at rest, or what failed. Never waits for a driver that hangs.

    The guard comes first, because many arms accept only one connection.
    """
    until_s = time.monotonic() + _GUARD_S
    while _guard_acts(board, guard) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    if is_at_rest(board.command_times):
        return None
    problem = call_within(robot.stop, STOP_CALL_S)
    if problem is None:
        board.command_times[1] = time.monotonic_ns()
    return problem


def _guard_acts(board: Board, guard: HostProcess) -> bool:
    is_alive = not guard.has_ended and time.monotonic_ns() - board.guard_ns < _GUARD_SILENT_NS
    has_no_report = board.guard_kill_ns > 0 and not board.guard_report
    return is_alive and (has_no_report or not is_at_rest(board.command_times))
