"""Real robots: latency and jitter that each driver adds, against its emulator, and late ticks at 50 Hz under load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np

from dovetail.bench._busy_cores import busy_cores
from dovetail.bench._robot_drivers import HZ, drivers
from dovetail.bench.rows import Row, at_most
from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.contracts import Robot
from dovetail.processes.priority import CONTROL_PRIORITY, take_priority
from dovetail.robots.safety import SafeRobot, SafetyConfig

__all__ = ["bench"]


def bench(*, quick: bool) -> Iterator[Row]:
    seconds = 4.0 if quick else 60.0
    for name, opened in drivers().items():
        with opened() as robot:
            yield from _latency(name, robot, seconds=seconds / 2)
            with busy_cores():
                yield _late_ticks(name, robot, seconds=seconds)


def _latency(name: str, robot: Robot, *, seconds: float) -> Iterator[Row]:
    """Calls of a driver, tick by tick. The jitter is what the slowest percent of calls takes longer than the median."""
    clock, calls_ms = RealClock(), {"observe": list[float](), "send": list[float]()}
    action = _still(robot)
    for _ in range(round(seconds * HZ)):
        due_ns = clock.now_ns() + round(NS_PER_S / HZ)
        began_s = time.perf_counter()
        robot.observe()
        observed_s = time.perf_counter()
        robot.send(action)
        calls_ms["observe"].append(1e3 * (observed_s - began_s))
        calls_ms["send"].append(1e3 * (time.perf_counter() - observed_s))
        clock.sleep_until(due_ns)
    robot.stop()
    for call, values in calls_ms.items():
        typical = median(values)
        yield Row(name=f"{name}: {call} p50", value=1e3 * typical, unit="us")
        yield Row(name=f"{name}: {call} jitter, p99", value=1e3 * (np.percentile(values, 99) - typical), unit="us")


def _late_ticks(name: str, robot: Robot, *, seconds: float) -> Row:
    """Share of ticks whose command is sent after the next tick was due, while all cores compute."""
    clock, safe = RealClock(), SafeRobot(robot, SafetyConfig(stop_after_s=5.0), RealClock())
    period_ns, num_ticks, num_late = round(NS_PER_S / HZ), round(seconds * HZ), 0
    with _control_priority():
        safe.observe()  # not a tick: the filter looks twice at the first measurement
        safe.hold()
        due_ns = clock.now_ns()
        for _ in range(num_ticks):
            clock.sleep_until(due_ns)
            safe.observe()
            safe.hold()
            due_ns += period_ns
            if clock.now_ns() > due_ns:
                num_late += 1
                due_ns = clock.now_ns()  # skip missed ticks, or all later ones would be late
    safe.stop()
    label = f"{name}: {HZ:g} Hz under load, late ticks of {num_ticks}"
    return at_most(label, 100 * num_late / num_ticks, "%", 0.1)


@contextmanager
def _control_priority() -> Iterator[None]:
    """The priority of a control process, as far as this user may have it."""
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    take_priority(CONTROL_PRIORITY)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def _still(robot: Robot) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The action that keeps the robot where it is."""
    safe = SafeRobot(robot, SafetyConfig(), RealClock())
    safe.observe()
    return np.array(safe.hold(), np.float32)
