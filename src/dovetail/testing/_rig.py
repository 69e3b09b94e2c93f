"""Helpers of the suites: expectations, comparison of arrays, and a robot with its clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.clock import NS_PER_S, RealClock, SimulatedClock
from dovetail.core.contracts import Robot, SimulatedRobot
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.safety import SafeRobot, SafetyConfig

__all__ = ["Rig", "copied", "expect", "expect_array", "expect_finite_numbers", "expect_same", "random_array"]


def expect(condition: object, message: str) -> None:
    """Like `assert`, but also active under `python -O`."""
    if not condition:
        raise AssertionError(message)


def expect_array(value: Any, spec: ArraySpec, *, what: str, within: bool = False) -> None:
    """Expect a finite numpy array with a spec's shape and dtype, and within its limits on request."""
    expect(isinstance(value, np.ndarray), f"{what} should be a numpy array, got {type(value).__name__}")
    got = f"{value.dtype}{list(value.shape)}"
    expect(
        value.shape == spec.shape and value.dtype == np.dtype(spec.dtype),
        f"{what} should be {spec.describe()} as in the spec, got {got}",
    )
    expect(np.isfinite(value).all(), f"{what} is not finite: {value}")
    if within:
        low, high = spec.bounds
        slack = 1e-5 * np.minimum(1.0, high - low)
        inside = (value >= low - slack).all() and (value <= high + slack).all()
        expect(inside, f"{what} is outside the limits {list(spec.low)} to {list(spec.high)}: {value.tolist()}")


def expect_same(ours: Mapping[str, Array], theirs: Mapping[str, Array], message: str) -> None:
    """Expect equal keys and bitwise equal arrays."""
    expect(set(ours) == set(theirs), f"{message}: keys {sorted(ours)} and {sorted(theirs)} differ")
    for key, value in ours.items():
        expect(np.array_equal(value, theirs[key], equal_nan=False), f"{message}: '{key}' differs")


def expect_finite_numbers(values: Mapping[str, float], *, what: str) -> None:
    for name, value in values.items():
        expect(isinstance(name, str), f"{what} should have names, got {name!r}")
        number = isinstance(value, float | int | np.floating | np.integer) and math.isfinite(value)
        expect(number, f"{what} '{name}' should be a finite number, got {value!r}")


def copied(values: Mapping[str, Array]) -> dict[str, Array]:
    return {key: np.array(value) for key, value in values.items()}


def random_array(spec: ArraySpec, rng: np.random.Generator, *leading: int) -> Array:
    """Random values within a spec's limits, or around zero without limits; [*leading, *shape]."""
    shape = (*leading, *spec.shape)
    dtype = np.dtype(spec.dtype)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, min(int(np.iinfo(dtype).max), 1000), shape, dtype=dtype, endpoint=True)
    low, high = spec.bounds
    return rng.uniform(np.maximum(low, -1.0), np.maximum(np.minimum(high, 1.0), low), shape).astype(dtype)


class Rig:
    """A robot behind the safety filter with a suitable clock, moved tick by tick."""

    def __init__(self, robot: Robot) -> None:
        self.spec: RobotSpec = robot.spec
        self.simulated = isinstance(robot, SimulatedRobot)
        self._period_ns = round(NS_PER_S / self.spec.control_hz)
        clock = SimulatedClock() if isinstance(robot, SimulatedRobot) else RealClock()
        if isinstance(robot, SimulatedRobot) and isinstance(clock, SimulatedClock):
            clock.on_advance(robot.advance)
        self.clock = clock
        self.safe = SafeRobot(robot, SafetyConfig(), clock)

    def tick(self) -> None:
        self.clock.sleep_until(self.clock.now_ns() + self._period_ns)

    def step(self, action: Array) -> Observation:
        """Send an action through the filter and observe after one tick."""
        self.safe.send(action)
        self.tick()
        return self.safe.observe()

    def wait(self) -> Observation:
        """Hold for one tick."""
        self.safe.hold()
        self.tick()
        return self.safe.observe()
