"""Observes a robot without moving it, and measures rate, latency, age of its data, and pictures per second."""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from dovetail.core.abilities import DescribesLink
from dovetail.core.clock import SimulatedClock
from dovetail.core.contracts import Clock, Robot
from dovetail.core.errors import DovetailError, RobotError, one_line
from dovetail.core.types import Observation

__all__ = ["RobotLook", "Timing"]

_WINDOW = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How a robot answers, over the last observations. Ages are None in simulated time."""

    rate_hz: float  # of new observations
    wanted_hz: float
    latency_p50_ms: float
    latency_max_ms: float
    age_ms: float | None  # of the newest observation when it came, median
    cameras_hz: dict[str, float] = field(default_factory=dict)
    cameras_age_ms: dict[str, float] = field(default_factory=dict)

    @property
    def line(self) -> str:
        age = "" if self.age_ms is None else f", {self.age_ms:.1f} ms old"
        cameras = "".join(f", {key} {hz:.1f} Hz" for key, hz in self.cameras_hz.items())
        return (
            f"{self.rate_hz:.1f} of {self.wanted_hz:g} observations per second, latency {self.latency_p50_ms:.1f} ms "
            f"(at most {self.latency_max_ms:.1f} ms){age}{cameras}"
        )


class RobotLook:
    """Calls `observe` of a driver once per tick, and nothing else: a robot that another process moves is not stopped."""

    def __init__(self, robot: Robot, clock: Clock) -> None:
        self._robot, self._clock = robot, clock
        self._is_real = not isinstance(clock, SimulatedClock)
        self._tick_ns = round(1e9 / robot.spec.control_hz)
        self._due_ns = clock.now_ns()
        self._latency_s: deque[float] = deque(maxlen=_WINDOW)
        self._times_ns: deque[int] = deque(maxlen=_WINDOW)
        self._ages_ms: deque[float] = deque(maxlen=_WINDOW)
        self._captured: dict[str, deque[int]] = {}
        self._camera_ages_ms: dict[str, deque[float]] = {}
        self.newest: Observation | None = None

    def tick(self) -> Observation:
        """Wait for the next tick and observe. Raises RobotError."""
        self._due_ns = max(self._due_ns + self._tick_ns, self._clock.now_ns())
        self._clock.sleep_until(self._due_ns)
        began_s = time.perf_counter()
        try:
            observation = self._robot.observe()
        except DovetailError:
            raise
        except Exception as error:  # any driver
            raise RobotError(f"observe() of robot '{self._robot.spec.name}' failed: {one_line(error)}") from error
        self._latency_s.append(time.perf_counter() - began_s)
        now_ns = self._clock.now_ns()
        if self.newest is None or observation.time_ns > self.newest.time_ns:
            self._times_ns.append(observation.time_ns)
            self._ages_ms.append((now_ns - observation.time_ns) / 1e6)
        for key, captured_ns in observation.captured_ns.items():
            seen = self._captured.setdefault(key, deque(maxlen=_WINDOW))
            if not seen or captured_ns != seen[-1]:
                seen.append(captured_ns)
                ages = self._camera_ages_ms.setdefault(key, deque(maxlen=_WINDOW))
                ages.append((now_ns - captured_ns) / 1e6)
        self.newest = observation
        return observation

    def timing(self) -> Timing:
        """Needs at least one tick."""
        latency_ms = [1e3 * value for value in self._latency_s]
        return Timing(
            rate_hz=_rate(self._times_ns),
            wanted_hz=self._robot.spec.control_hz,
            latency_p50_ms=statistics.median(latency_ms),
            latency_max_ms=max(latency_ms),
            age_ms=statistics.median(self._ages_ms) if self._is_real and self._ages_ms else None,
            cameras_hz={key: _rate(times) for key, times in self._captured.items()},
            cameras_age_ms={key: statistics.median(ages) for key, ages in self._camera_ages_ms.items()},
        )

    def problem(self) -> str | None:
        """What is wrong with the newest observation: a missing or other array, a value that is not finite."""
        if self.newest is None:
            return "no observation yet"
        for key, spec in self._robot.spec.observation.items():
            value = self.newest.values.get(key)
            if value is None:
                return f"observation '{key}' is missing"
            if value.shape != spec.shape or value.dtype != spec.dtype:
                return f"observation '{key}' is {value.dtype}{list(value.shape)} instead of {spec.describe()}"
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                return f"observation '{key}' is not finite"
        return None

    def link(self) -> str | None:
        """The robot's description of its connection, if it has one."""
        return self._robot.describe_link() if isinstance(self._robot, DescribesLink) else None


def _rate(times_ns: deque[int]) -> float:
    if len(times_ns) < 2 or times_ns[-1] <= times_ns[0]:
        return 0.0
    return (len(times_ns) - 1) * 1e9 / (times_ns[-1] - times_ns[0])
