"""What the guard notices by itself, by the times on the board."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from dovetail.actor.board import Board, BoardLayout
from dovetail.robot_host.guard_process import Guard
from dovetail.robot_host.stop_sources import StopSources
from dovetail.testing.fakes import FakeArm, FakeArmConfig

TIMEOUT_S = 0.2


@pytest.fixture
def guard_and_board():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    control = os.pidfd_open(child.pid)
    board = Board(BoardLayout.of(FakeArm(FakeArmConfig()).spec, extras={}, horizon=1, num_rows=4))
    guard = Guard(
        board,
        StopSources(board=board),
        name="arm",
        control=control,
        stopper=None,
        confirm_s=60.0,
        heartbeat_timeout_s=TIMEOUT_S,
    )
    yield guard, board
    os.close(control)
    child.kill()
    child.wait()


def test_velocity_without_a_new_command_is_noticed_during_a_reset(guard_and_board):
    guard, board = guard_and_board
    board.beat_control(0)  # a reset: no tick is due
    now_ns = time.monotonic_ns()
    board.command_times[:] = (now_ns, 0, now_ns)
    guard.poll()
    assert board.guard_request == ""
    time.sleep(1.2 * TIMEOUT_S)
    guard.poll()
    assert "moves by velocity, without a command for 0.2 s" in board.guard_request


def test_reset_that_waits_at_rest_is_allowed(guard_and_board):
    guard, board = guard_and_board
    board.beat_control(0)
    past_ns = time.monotonic_ns() - 10_000_000_000
    for times in ((past_ns, 0, 0), (past_ns, past_ns + 1, past_ns)):  # a position command; a velocity, then a stop
        board.command_times[:] = times
        guard.poll()
        assert board.guard_request == ""
