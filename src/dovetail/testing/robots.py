"""Conformance suite for robots."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dovetail.core.contracts import Robot, SimulatedRobot
from dovetail.core.errors import RobotError
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing._directions import STEP, check_directions
from dovetail.testing._rig import Rig, copied, expect, expect_array, expect_same

__all__ = ["check_robot"]

_log = logging.getLogger("dovetail.testing")
_WARNING = "check_robot moves robot '{name}' now, by up to 5 % of its range. Keep clear, with a hand on its emergency stop."
_TERMINAL = "/dev/tty"
_MAX_CALL = 0.5  # share of a tick that a call on hardware may take


def check_robot(make_robot: Callable[[], Robot], *, num_ticks: int = 20, seed: int = 0) -> None:
    """THE ARM MOVES: drive a robot with small actions around its pose and check the contract.

    Each axis moves by up to 5 % of its range from where it stands. `make_robot` returns a robot that is
    ready to move, with room around it. A simulated robot is built several times, equal each time. It is also checked that
    no measured axis moves against its command. On hardware, each joint must move when it gets a new target, and a call
    must take less than half a tick.
    """
    robot = make_robot()
    expect(
        isinstance(robot, Robot),
        f"{type(robot).__name__} does not implement all of Robot: spec, observe, send, stop",
    )
    _check_spec(robot.spec)
    _check_parts(robot)
    _check_observation(robot, robot.observe())
    if not isinstance(robot, SimulatedRobot):
        _warn(_WARNING.format(name=robot.spec.name))
    rig = Rig(robot)
    start = _pose(rig)
    broken: RobotError | None = None
    try:
        check_directions(rig)  # first, because a reversed axis makes larger motions dangerous
    except RobotError as error:
        broken = error
    rng = np.random.default_rng(seed)
    _check_motion(robot, around=start, num_ticks=num_ticks, rng=rng)  # says more precisely what is wrong
    if broken is not None:
        raise broken
    _check_stop(robot)
    if isinstance(robot, SimulatedRobot):
        _check_determinism(make_robot, num_ticks=num_ticks, seed=seed)
        robot = make_robot()
    _check_filtered(robot)


def _warn(text: str) -> None:
    """Log, and write to the terminal too where stderr is not the terminal: pytest shows the log only after a test failed."""
    _log.warning("%s", text)
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError):  # there is none
            terminal = os.open(_TERMINAL, os.O_WRONLY | os.O_NOCTTY)
            try:
                os.write(terminal, f"\n{text}\n".encode())
            finally:
                os.close(terminal)


def _check_spec(spec: RobotSpec) -> None:
    expect(isinstance(spec, RobotSpec), f"spec should be a RobotSpec, got {type(spec).__name__}")
    expect(RobotSpec.from_json(spec.to_json()).hash() == spec.hash(), "spec does not survive to_json / from_json")
    expect(spec.control_hz > 0, f"spec.control_hz should be above zero, got {spec.control_hz}")
    expect(len(spec.action.shape) == 1, f"spec.action should have one axis, got shape {spec.action.shape}")
    expect(spec.action.dtype == "float32", f"spec.action should be float32, got {spec.action.dtype}")
    expect(spec.observation, "spec.observation is empty: the safety filter needs observations")
    expect(spec.parts, "spec has no action parts")
    expect(
        sum(part.num_axes for part in spec.parts) == spec.action.shape[0],
        "the parts do not cover the action vector",
    )
    for key, array in spec.observation.items():
        expect(not key.endswith("/mask"), f"observation '{key}': names ending in /mask are for history masks")
        kind = (array.dtype, len(array.shape))
        proper = array.dtype == "float32" or kind in (("uint8", 3), ("uint16", 3))
        expect(
            proper,
            f"observation '{key}' is {array.describe()}: proprioception is float32, images uint8 [H, W, 3], "
            "depth uint16 [H, W, 1]",
        )


def _check_parts(robot: Robot) -> None:
    """Each part must say what the safety filter needs. A simulated robot may leave out limits and kinds."""
    if isinstance(robot, SimulatedRobot):
        return
    for part in robot.spec.parts:
        missing = part.missing()
        expect(missing is None, f"action part '{part.name}' of kind '{part.kind}' needs {missing}")
        expect(
            part.max_speed or part.derived_from in ("ee_delta", "joint_target"),
            f"action part '{part.name}' needs `max_speed`",
        )


def _check_observation(robot: Robot, observation: Observation) -> None:
    spec = robot.spec
    expect(isinstance(observation, Observation), f"observe() should return an Observation, got {observation!r}")
    expect(
        isinstance(observation.time_ns, int | np.integer),
        f"observation.time_ns should be whole nanoseconds, got {observation.time_ns!r}",
    )
    expect(
        set(observation.values) == set(spec.observation),
        f"observed {sorted(observation.values)}, but the spec has {sorted(spec.observation)}",
    )
    for key, array in spec.observation.items():
        expect_array(observation.values[key], array, what=f"observation '{key}'")


def _check_motion(robot: Robot, *, around: Array, num_ticks: int, rng: np.random.Generator) -> None:
    rig = Rig(robot)
    observation = rig.safe.observe()
    calls_s: dict[str, list[float]] = {"send": [], "observe": []}
    for _ in range(num_ticks):
        asked = _near(around, robot.spec, rng)
        before = asked.copy()
        began_s = time.perf_counter()
        # call a simulated robot directly, because the filter copies the action
        executed = robot.send(asked) if rig.simulated else rig.safe.send(asked)
        calls_s["send"].append(time.perf_counter() - began_s)
        expect_array(executed, robot.spec.action, what="send() returned an action that", within=True)
        expect(np.array_equal(asked, before), "send() changed the action")
        expect(not np.shares_memory(asked, executed), "send() returned the caller's array: copy it")
        kept = copied(observation.values)
        if rig.simulated:
            here = robot.observe()
            expect(here.time_ns == observation.time_ns, "send() let simulated time pass: only advance() may")
        asked[:] = np.nan  # the caller may reuse its array
        was_ns = rig.clock.now_ns()
        rig.tick()
        began_s = time.perf_counter()
        new = rig.safe.observe()
        calls_s["observe"].append(time.perf_counter() - began_s)
        _check_observation(robot, new)
        expect(new.time_ns > observation.time_ns, "observation.time_ns did not advance over a control tick")
        if rig.simulated:
            passed_ns, tick_ns = new.time_ns - observation.time_ns, rig.clock.now_ns() - was_ns
            expect(
                abs(passed_ns - tick_ns) < tick_ns // 2,
                f"advance({tick_ns}) changed observation.time_ns by {passed_ns} ns",
            )
            again = robot.observe()
            expect(again.time_ns == new.time_ns, "observe() let simulated time pass: only advance() may")
            expect_same(copied(new.values), again.values, "two observe() calls at one moment differ")
        expect_same(kept, observation.values, "an observation changed after it was returned")
        observation = new
    if not rig.simulated:
        _check_durations(calls_s, tick_s=1.0 / robot.spec.control_hz)


def _check_durations(calls_s: Mapping[str, Sequence[float]], *, tick_s: float) -> None:
    """A call that takes a whole tick makes every tick late."""
    for name, durations_s in calls_s.items():
        typical_s = statistics.median(durations_s)
        expect(
            typical_s <= _MAX_CALL * tick_s,
            f"{name}() takes {1e3 * typical_s:.1f} ms, and a tick has {1e3 * tick_s:.1f} ms: return at once, and let "
            "another thread wait for the hardware",
        )


def _pose(rig: Rig) -> Array:
    """The action that keeps the robot where it stands."""
    rig.safe.observe()
    return np.array(rig.safe.hold(), np.float32)


def _near(pose: Array, spec: RobotSpec, rng: np.random.Generator) -> Array:
    """A random action near a pose. Steps from the newest pose would add up to a long way."""
    low, high = spec.action.bounds
    units = np.concatenate([np.full(part.num_axes, _unit_size(part)) for part in spec.parts])
    reach = STEP * np.minimum(units, 0.5 * (high - low))
    return np.asarray(np.clip(pose + reach * rng.uniform(-1.0, 1.0, pose.shape), low, high), np.float32)


def _unit_size(part: ActionPart) -> float:
    """1 rad or 1 m in the unit of the part."""
    return math.degrees(1.0) if part.unit.startswith("deg") else 1.0


def _check_stop(robot: Robot) -> None:
    for _ in range(2):
        robot.stop()
    _check_observation(robot, robot.observe())


def _check_determinism(make_robot: Callable[[], Robot], *, num_ticks: int, seed: int) -> None:
    def roll() -> list[dict[str, Array]]:
        rig, rng = Rig(make_robot()), np.random.default_rng(seed)
        seen, pose = [copied(rig.safe.observe().values)], _pose(rig)
        for _ in range(num_ticks):
            seen.append(copied(rig.step(_near(pose, rig.spec, rng)).values))
        return seen

    for tick, (ours, theirs) in enumerate(zip(roll(), roll(), strict=True)):
        expect_same(ours, theirs, f"two simulated robots with the same actions differ at tick {tick}")


class _Spy:
    """Records the actions that pass the safety filter."""

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self.spec = robot.spec
        self.received: list[Array] = []

    def observe(self) -> Observation:
        return self._robot.observe()

    def send(self, action: Array) -> Array:
        self.received.append(action.copy())
        return self._robot.send(action)

    def stop(self) -> None:
        self._robot.stop()


class _SimulatedSpy(_Spy):
    def advance(self, duration_ns: int) -> None:
        """The clock advances the robot itself."""


def _check_filtered(robot: Robot) -> None:
    """Invalid actions must not pass the safety filter."""
    rig = Rig(robot)
    spy = _SimulatedSpy(robot) if rig.simulated else _Spy(robot)
    safe = SafeRobot(spy, SafetyConfig(max_bad_actions=100), rig.clock)
    size = robot.spec.action.shape
    nan_once = np.zeros(size, np.float32)
    nan_once[-1] = np.nan
    for bad in (np.full(size, np.nan), nan_once, np.full(size, np.inf), np.full(size, -1e30)):
        safe.observe()
        safe.send(bad)
        rig.tick()
    for received in spy.received:
        expect_array(
            received, robot.spec.action, what="through the safety filter came an action that", within=True
        )
    robot.stop()
