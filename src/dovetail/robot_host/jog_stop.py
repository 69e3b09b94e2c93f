"""STOP for a robot that one process moves without a guard. For `dovetail robot move`.

A thread waits for `dovetail stop` and for signals. It first lets the loop stop the robot. If the loop does not, because a
call of the driver hangs, the thread stops the robot itself: over the driver's independent connection, or else with `stop()`
of the driver that hangs. It is weaker than the guard process of a run, which can end the process that hangs.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from dovetail.core.abilities import IndependentStop
from dovetail.core.contracts import Robot
from dovetail.live.run_stop import RunStop
from dovetail.robot_host.arm_stopper import ArmStopper, call_within

__all__ = ["JogStop"]

_POLL_S = 0.01
_LOOP_S, _LOOP_TICKS = 0.3, 3.0  # in which the loop stops the robot, unless its driver hangs
_STOP_S = 1.0  # for a call that stops the robot
_END_S = 1.0  # after a second signal
_EXIT_CODE = 130
_LAST_RESORT = "Press the robot's own emergency stop"


class JogStop:
    """`with JogStop(...) as stop:` makes `stop()` True after a STOP; call `stopped()` once the loop has stopped the robot.

    `robot`: the driver in use. `other`: a second driver object of the same robot. `report` prints a line.
    """

    def __init__(
        self, robot: Robot, other: Callable[[], Robot], *, name: str, report: Callable[[str], None]
    ) -> None:
        self._robot, self._other, self._name, self._report = robot, other, name, report
        self._loop_s = max(_LOOP_S, _LOOP_TICKS / robot.spec.control_hz)
        self._signaled, self._loop_ended = threading.Event(), threading.Event()
        self._closed, self._aborts = threading.Event(), threading.Event()

    def __call__(self) -> bool:
        return self._signaled.is_set() or self._stop.emergency

    @property
    def source(self) -> str:
        """What pressed STOP, empty after a signal."""
        return self._stop.source

    @property
    def folder(self) -> Path:
        """`dovetail stop FOLDER` reaches this robot."""
        return self._folder

    def on_signal(self, number: signal.Signals) -> None:
        """The first signal stops the robot. A second one also ends this process, whatever it waits for."""
        if self._signaled.is_set() and number is not signal.SIGHUP:  # a terminal that closes after Ctrl-C
            self._aborts.set()
        self._signaled.set()

    def stopped(self) -> None:
        """The loop has stopped the robot."""
        if self():
            self._stop.confirm(self._stop.position)
        self._loop_ended.set()

    def __enter__(self) -> Self:
        uses_other = isinstance(self._robot, IndependentStop)
        self._stopper = ArmStopper(self._other() if uses_other else self._robot)
        self._folder = Path(tempfile.mkdtemp(prefix="dovetail-move-"))
        self._stop = RunStop.create(self._folder, arm=self._name)
        self._stop.join(self._name)
        self._thread = threading.Thread(target=self._watch, name="STOP", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._aborts.is_set():
            return  # the thread ends this process, unless it ends by itself
        self._loop_ended.set()
        self._closed.set()
        self._thread.join(_STOP_S)
        self._stopper.close()
        self._stop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- its thread

    def _watch(self) -> None:
        while not self():
            if self._closed.wait(_POLL_S):
                return
        if not self._loop_ended.wait(self._loop_s):
            self._stop_robot()
        while not self._closed.is_set():
            if self._aborts.wait(_POLL_S):
                time.sleep(_END_S)
                self._stop_robot()  # it may have moved on
                shutil.rmtree(self._folder, ignore_errors=True)
                os._exit(_EXIT_CODE)

    def _stop_robot(self) -> None:
        seen = self._stop.position
        problem = self._stopper.stop(_STOP_S)
        if problem is not None and self._stopper.is_independent:
            other = call_within(self._robot.stop, _STOP_S)
            problem = None if other is None else f"{problem}; {other}"
        if problem is None:
            self._stop.confirm(seen)
            self._report(
                f"robot '{self._name}' does not answer: stopped from another thread. {_LAST_RESORT} if it moves"
            )
        else:
            self._report(
                f"robot '{self._name}' does not answer, and it was NOT stopped: {problem}. {_LAST_RESORT}"
            )
