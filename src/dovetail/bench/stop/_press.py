"""The sources of STOP, and the time until every arm stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import FailureError
from dovetail.live.run_stop import Kind, NotRunning

if TYPE_CHECKING:
    from dovetail.bench.stop._system import StopSystem

__all__ = ["Press", "press"]

LIMIT_S = 15.0  # a stop that has not arrived by then counts as never
SETTLE_S = 0.5  # no arm may move for this long after its stop
_MS = NS_PER_S / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """A press and how long each arm moved after it."""

    source: str
    pressed_ns: int
    delays_ms: tuple[float | None, ...]  # by arm; 0: it stood already; None: it did not stop
    start_ms: float = 0.0  # of the command `dovetail stop`, from its start to its press
    problem: str = ""  # why the source could not press: the run had ended

    @property
    def worst_ms(self) -> float:
        """Infinite if an arm did not stop."""
        return max(float("inf") if delay is None else delay for delay in self.delays_ms)


def press(system: StopSystem, source: str) -> Press:
    began_ns = pressed_ns = time.monotonic_ns()
    problem = ""
    try:
        if source == "dovetail stop":
            pressed_ns = _press_by_command(system)
        else:
            _trigger(system, source)
    except (OSError, FailureError, NotRunning) as error:
        problem = str(error)
    until_ns = pressed_ns + round(LIMIT_S * NS_PER_S)
    while time.monotonic_ns() < until_ns:
        if all(arm.delay_ns(pressed_ns) is not None for arm in system.arms):
            break
        time.sleep(0.01)
    time.sleep(SETTLE_S)
    delays = [arm.delay_ns(pressed_ns) for arm in system.arms]
    return Press(
        source=source,
        pressed_ns=pressed_ns,
        delays_ms=tuple(None if delay is None else delay / _MS for delay in delays),
        start_ms=(pressed_ns - began_ns) / _MS,
        problem=problem,
    )


def _trigger(system: StopSystem, source: str) -> None:
    if source == "console":
        system.console.post("emergency")
    elif source == "keyboard":
        os.write(system.terminal, b"\x1b")
    elif source == "Ctrl-C":
        os.write(system.terminal, b"\x03")
    elif source == "SIGTERM":
        system.process.send_signal(signal.SIGTERM)
    elif source == "SIGHUP":
        system.hang_up()
    elif source == "gamepad":
        system.gamepad.stop()
    else:
        system.pedal.stop()


def _press_by_command(system: StopSystem) -> int:
    """Run `dovetail stop`; returns when it pressed. Its start is not part of the delay."""
    stop = system.stop()
    known = stop.position
    command = [sys.executable, "-P", "-m", "dovetail.cli", "stop", str(system.run_folder)]
    process = subprocess.Popen(
        command, env=system.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        while True:
            presses = [one for one in stop.records(start=known) if one.kind is Kind.PRESS]
            if presses:
                return presses[0].time_ns
            if process.poll() is not None:
                raise FailureError(f"`dovetail stop` did not press: {process.communicate()[0]}")
            time.sleep(0.002)
    finally:
        stop.close()
