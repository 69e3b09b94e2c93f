"""When a STOP counts as obeyed: the arm was stopped after it, and no command followed."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dovetail.actor.board import Board, BoardLayout
from dovetail.human.mailbox import Mailbox
from dovetail.live.run_stop import RunStop
from dovetail.robot_host.arm_stopper import ArmStopper, call_within
from dovetail.robot_host.stop_sources import StopConfirmation, StopSources
from dovetail.testing.fakes import FakeArm, FakeArmConfig

MS = 1_000_000


class Times:
    """Times of the last command and the last stop, relative to the start in ms."""

    def __init__(self, confirm_ms: int = 50) -> None:
        self.times = np.zeros(3, np.int64)
        self.stop = StopConfirmation(self.times, confirm_s=confirm_ms / 1000)
        self._start_ns = time.monotonic_ns()

    def commanded(self, at_ms: int) -> None:
        self.times[0] = self._start_ns + at_ms * MS

    def stopped(self, at_ms: int) -> None:
        self.times[1] = self._start_ns + at_ms * MS

    def is_overdue(self, at_ms: int, *, stop_wanted: bool = True) -> bool:
        return self.stop.is_overdue(self._start_ns + at_ms * MS, stop_wanted=stop_wanted)


def test_stop_in_time_is_confirmed():
    arm = Times()
    arm.commanded(5)
    assert not arm.is_overdue(10, stop_wanted=False)
    assert not arm.is_overdue(20)
    arm.stopped(30)
    assert [arm.is_overdue(at_ms) for at_ms in (40, 70, 1000)] == [False] * 3
    assert arm.stop.is_confirmed


def test_stop_that_does_not_come_is_overdue():
    arm = Times()
    arm.commanded(5)
    arm.is_overdue(10, stop_wanted=False)
    assert [arm.is_overdue(at_ms) for at_ms in (20, 69, 70)] == [False, False, True]


def test_arm_that_was_at_rest_before_must_be_stopped_again():
    arm = Times()
    arm.commanded(1)
    arm.stopped(2)
    arm.is_overdue(10, stop_wanted=False)
    assert [arm.is_overdue(at_ms) for at_ms in (20, 70)] == [False, True]


def test_stop_between_the_request_and_its_first_poll_counts():
    arm = Times()
    arm.commanded(5)
    arm.is_overdue(10, stop_wanted=False)
    arm.stopped(15)
    assert [arm.is_overdue(at_ms) for at_ms in (20, 70)] == [False, False]


def test_command_after_the_stop_is_overdue_at_once():
    arm = Times()
    arm.is_overdue(10, stop_wanted=False)
    arm.is_overdue(20)
    arm.stopped(30)
    arm.commanded(200)
    assert arm.is_overdue(210)


def test_second_stop_after_an_acknowledgement_counts_anew():
    arm = Times()
    arm.is_overdue(10)
    arm.stopped(20)
    arm.is_overdue(100, stop_wanted=False)
    arm.commanded(110)
    assert [arm.is_overdue(at_ms) for at_ms in (120, 160, 170)] == [False, False, True]


def test_each_press_is_confirmed_to_the_run_once(tmp_path):
    with RunStop.create(tmp_path, arm="left") as stop:
        stop.join("left")
        sources = StopSources(mailbox=Mailbox(7), run_stop=stop)
        assert sources.emergency() is None
        for _ in range(2):
            place = stop.press("test")
            assert sources.emergency() == "the emergency stop was pressed (test)"
            for _ in range(3):
                sources.confirm()
            assert stop.confirmed_ns("left", after=place) is not None
            stop.acknowledge()
            assert sources.emergency() is None
        stop.request_end("SIGTERM")
        assert sources.ending() == "the run is to end (SIGTERM)"


def test_guards_texts_on_the_board_are_cut():
    board = Board(BoardLayout.of(FakeArm(FakeArmConfig()).spec, extras={}, horizon=1, num_rows=4))
    assert (board.guard_request, board.guard_report) == ("", "")
    board.post_guard_request("too fast")
    board.post_guard_report("ü" * 5000)
    assert board.guard_request == "too fast"
    assert set(board.guard_report) == {"ü"}
    board.post_guard_request("")
    assert board.guard_request == ""


class HangingConnection:
    """Stops nothing: its stop() hangs or raises."""

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    def stop(self) -> None:
        if self._raises:
            raise ConnectionResetError("closed by the arm")
        time.sleep(1.0)

    def close(self) -> None:
        pass


class TwoWays(FakeArm):
    num_stops = 0

    def __init__(self, connection: HangingConnection) -> None:
        super().__init__(FakeArmConfig())
        self._connection = connection

    def open_stop(self) -> HangingConnection:
        return self._connection

    def stop(self) -> None:
        self.num_stops += 1


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "hangs"])
def test_independent_stop_that_fails_falls_back_to_the_driver(raises):
    driver = TwoWays(HangingConnection(raises=raises))
    assert ArmStopper(driver).stop(0.05) is None
    assert driver.num_stops == 1


def test_call_that_hangs_is_reported_in_time():
    began_s = time.monotonic()
    assert call_within(lambda: time.sleep(1.0), 0.05) == "stop() has not returned for 0.05 s"
    assert time.monotonic() - began_s < 0.5
    assert call_within(lambda: 1 / 0, 0.5) == "stop() failed: ZeroDivisionError: division by zero"
