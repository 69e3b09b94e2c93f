"""No sequence of calls exceeds the limits: position, speed and step, per time and per observation.

A hypothesis state machine calls the filter in all orders, on model robots that execute commands after a delay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import RobotFault, StaleObservation
from dovetail.core.types import Array, Observation
from dovetail.robots.safety import SafeRobot, SafetyConfig
from support.delayed_robots import BOX, HZ, LAYOUTS, START, TICK_NS, DelayedRobot

SLACK = 1e-5  # rounding to float32
BURST = 1.5  # ticks of motion that the filter keeps in store
HOLD = 2.0  # ticks of motion by which holding may exceed it, once
MS = NS_PER_S // 1000

numbers = (
    st.floats(-1.0, 1.0)
    | st.sampled_from([0.0, -0.0, 0.02, -0.02, 1.0, -1.0])
    | st.sampled_from([1e9, -1e30, float("inf"), float("-inf"), float("nan")])
)


class FilterMachine(RuleBasedStateMachine):
    layout: ClassVar[str]

    @initialize(delay=st.integers(0, 3 * TICK_NS), seed=st.integers(0, 99))
    def build(self, delay: int, seed: int) -> None:
        layout = LAYOUTS[self.layout]
        self.robot = DelayedRobot(layout, delay_ns=delay)
        self.clock = SimulatedClock()
        self.clock.on_advance(self.robot.pass_time)
        config = SafetyConfig(workspace=BOX if layout.box else None, **layout.safety)
        self.filtered = Filtered(self.robot, config, self.clock)
        self.rng = np.random.default_rng(seed)

    # ---- calls

    @rule(value=numbers, spread=st.booleans())
    def send(self, value: float, spread: bool) -> None:
        action = np.full(self.robot.spec.action.shape, value)
        if spread and np.isfinite(value):
            action *= self.rng.uniform(-1.0, 1.0, action.shape)
        self.filtered.call(lambda safe: safe.send(action))

    @rule(count=st.integers(2, 30), sign=st.sampled_from([1.0, -1.0]), flips=st.booleans())
    def send_repeatedly_without_an_observation(self, count: int, sign: float, flips: bool) -> None:
        for index in range(count):
            value = -sign if flips and index % 2 else sign
            self.filtered.call(lambda safe, value=value: safe.send(np.full(self.robot.spec.action.shape, value)))

    @rule(count=st.integers(2, 30), sign=st.sampled_from([1.0, -1.0]), holds=st.booleans())
    def observe_and_send_at_1_khz(self, count: int, sign: float, holds: bool) -> None:
        for index in range(count):
            self.observe()
            if holds and index % 3 == 2:
                self.hold()
            else:
                self.filtered.call(lambda safe: safe.send(np.full(self.robot.spec.action.shape, sign)))
            self.clock.sleep_until(self.clock.now_ns() + MS)

    @rule(count=st.integers(1, 8), sign=st.sampled_from([1.0, -1.0]), flips=st.booleans())
    def move_for_some_ticks(self, count: int, sign: float, flips: bool) -> None:
        """A task's motion, homing or a policy: observe and send once per tick."""
        for index in range(count):
            self.observe()
            value = -sign if flips and index % 2 else sign
            self.filtered.call(lambda safe, value=value: safe.send(np.full(self.robot.spec.action.shape, value)))
            self.clock.sleep_until(self.clock.now_ns() + TICK_NS)

    @rule()
    def observe(self) -> None:
        self.filtered.observe(self.filtered.look(), is_true=True)

    @rule(back=st.integers(1, 20), late=st.booleans())
    def observe_an_old_state(self, back: int, late: bool) -> None:
        """With its own, older time, or with one in the past that is wrong."""
        time_ns, values = self.robot.history[-min(back, len(self.robot.history))]
        if not late:
            self.filtered.observe(Observation(time_ns=time_ns, values=values))
        else:
            self.filtered.observe(Observation(time_ns=time_ns - TICK_NS, values=values))

    @rule()
    def observe_nothing_valid(self) -> None:
        values = {key: np.full_like(value, np.nan) for key, value in self.filtered.look().values.items()}
        self.filtered.observe(Observation(time_ns=self.robot.now_ns, values=values))

    @rule(size=st.floats(0.7, 3.0), sign=st.sampled_from([1.0, -1.0]), count=st.integers(1, 4), wait=st.booleans())
    def observe_a_wrong_position(self, size: float, sign: float, count: int, wait: bool) -> None:
        """Finite, and once or several times in a row: a checksum that was taken for data."""
        for _ in range(count):
            values = dict(self.filtered.look().values)
            key = next((key for key in ("joint_pos", "ee_pose") if key in values), None)
            if key is None:
                return  # nothing measures a position
            values[key] = values[key].copy()
            values[key][0] += np.float32(sign * size)
            self.filtered.observe(Observation(time_ns=self.robot.now_ns, values=values), is_wrong=True)
            self.filtered.call(lambda safe: safe.send(np.full(self.robot.spec.action.shape, sign)))
            if wait:
                self.clock.sleep_until(self.clock.now_ns() + TICK_NS)

    @rule()
    def hold(self) -> None:
        self.filtered.call(lambda safe: safe.hold(), held=True)

    @rule()
    def ease(self) -> None:
        self.filtered.call(lambda safe: safe.ease(), held=True)

    @rule()
    def reset(self) -> None:
        self.filtered.safe.reset()
        self.filtered.has_forgotten = True

    @rule()
    def acknowledge_and_observe(self) -> None:
        self.filtered.safe.refuse_while(lambda: None)
        self.filtered.safe.acknowledge()
        self.filtered.has_forgotten = True
        self.observe()

    @rule(recovers=st.booleans())
    def trip(self, recovers: bool) -> None:
        self.filtered.safe.trip("a fault")
        if recovers:
            self.acknowledge_and_observe()

    @rule()
    def press_and_release_stop(self) -> None:
        self.filtered.safe.refuse_while(lambda: "pressed")
        self.hold()
        self.acknowledge_and_observe()

    @rule(ticks=st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.99, 1.0, 1.01, 2.5, 4.0, 12.0]))
    def wait(self, ticks: float) -> None:
        self.clock.sleep_until(self.clock.now_ns() + round(ticks * TICK_NS))

    # ---- limits

    @invariant()
    def position_stays_in_the_box(self) -> None:
        robot = self.robot
        if robot.layout.box:
            ends = [*robot.positions, *_after_queue(robot)]
            for position in ends:
                assert (position >= np.array(BOX.low) - SLACK).all(), position
                assert (position <= np.array(BOX.high) + SLACK).all(), position
        assert (np.abs(robot.joints) <= 1.0 + SLACK).all()

    @invariant()
    def velocity_is_zero_after_a_fault_or_hold(self) -> None:
        robot, filtered = self.robot, self.filtered
        assert (np.abs(robot.velocity) <= robot.max_velocity + SLACK).all()
        if filtered.safe.fault is not None or filtered.is_held:
            last = robot.queue[-1][1] if robot.queue else None
            bases = [robot.spec.slice_of(part.name) for part in robot.layout.parts if part.is_velocity]
            for at in bases:
                assert not (robot.velocity if last is None else last[at]).any()

    @invariant()
    def commanded_motion_stays_below_the_speed_limit(self) -> None:
        self.filtered.check_speed()


class Filtered:
    """The filter, with checks of each command."""

    def __init__(self, robot: DelayedRobot, config: SafetyConfig, clock: SimulatedClock) -> None:
        self.robot, self.clock = robot, clock
        self.safe = SafeRobot(robot, config, clock)
        self.is_held = False
        self._given: Observation | None = None
        robot.observe = self._observe  # type: ignore[method-assign]
        self._is_wrong = False  # the last observation
        self._was_true = True  # the last accepted observation had the right time
        self._newest_ns: int | None = None
        self.has_forgotten = False  # then an observation with the newest time is accepted again
        self._measured: dict[str, Array] = {}
        self._since: Array = np.zeros(robot.spec.action.shape)  # deltas since the measurement
        self._last: Array | None = None
        self._motions: list[tuple[int, Array, bool]] = []  # time, motion in steps [A], whether it was a hold
        spec = robot.spec
        self._is_delta = spec.axes_of("ee_delta")
        self._is_target = spec.axes_of("joint_target", "ee_target", "gripper")
        self._is_near = spec.axes_of("joint_target")
        speeds = [part.max_speed for part in spec.parts]
        self._step = np.array([speed / HZ for part in speeds for speed in part])
        low, high = spec.action.bounds
        self._low, self._high = low.astype(np.float64), high.astype(np.float64)

    def look(self) -> Observation:
        """The true state."""
        return DelayedRobot.observe(self.robot)

    def _observe(self) -> Observation:
        """What a test gives, once; then the true state."""
        given, self._given = self._given, None
        return self.look() if given is None else given

    def observe(self, given: Observation, *, is_true: bool = False, is_wrong: bool = False) -> None:
        self._given = given
        newest_ns = given.time_ns - 1 if self._newest_ns is None else self._newest_ns - self.has_forgotten
        try:
            seen = self.safe.observe()
        except RobotFault:
            assert is_wrong or not self._was_true
            self._is_wrong = is_wrong
            return
        is_wrong, is_true, given = is_wrong and seen is given, is_true or seen is not given, seen
        self._is_wrong = is_wrong and given.time_ns > newest_ns
        if self._is_wrong:
            assert self.safe.problem is not None
            assert "was measured at" in self.safe.problem
        if is_true and self._was_true:
            assert self.safe.problem is None
        if self.safe.problem is None and given.time_ns > newest_ns:
            self._was_true = is_true
            self._newest_ns, self.has_forgotten = given.time_ns, False
            self._measured = given.values
            self._since = sum(
                (motion * self._is_delta for time_ns, motion, _ in self._all() if time_ns >= given.time_ns),
                np.zeros(self._step.shape),
            )

    def call(self, command: Callable[[SafeRobot], Array], *, held: bool = False) -> None:
        num_sent, num_stops, fault = len(self.robot.sent), self.robot.num_stops, self.safe.fault
        try:
            command(self.safe)
        except (RobotFault, StaleObservation):
            assert self.robot.num_stops > num_stops or fault is not None
            if fault is not None:
                assert len(self.robot.sent) == num_sent
            self.is_held = False
            return
        assert fault is None
        for time_ns, sent in self.robot.sent[num_sent:]:
            if self._is_wrong:  # it stands still, where it was measured before
                assert self.safe.last_report.held
                assert not sent[self._is_delta].any()
            self._check(time_ns, sent, held=held or self.safe.last_report.held)
        self.is_held = self.safe.last_report.held and not held

    def check_speed(self) -> None:
        motions = self._motions[-60:]
        if not motions:
            return
        now_ns = motions[-1][0]
        total, holds = np.zeros(self._step.shape), False
        for time_ns, motion, held in reversed(motions):
            total, holds = total + np.abs(motion), holds or held
            ticks = (now_ns - time_ns) / TICK_NS + BURST + (HOLD if holds else 0.0)
            assert (total <= ticks + 1e-3).all(), (total, ticks)

    def _all(self) -> list[tuple[int, Array, bool]]:
        return [(time_ns, motion * self._step, held) for time_ns, motion, held in self._motions]

    def _check(self, time_ns: int, sent: Array, *, held: bool) -> None:
        assert sent.dtype == np.float32
        assert np.isfinite(sent).all()
        assert (sent >= self._low - SLACK).all()
        assert (sent <= self._high + SLACK).all()
        sent = sent.astype(np.float64)
        assert (np.abs(sent[self._is_delta]) <= self._step[self._is_delta] + SLACK).all()
        if self._is_near.any():
            away = np.abs(sent[self._is_near] - self._measured["joint_pos"])
            assert (away <= self._step[self._is_near] + SLACK).all()
        # commands that an older measurement allowed may count for a newer one of the same time; then nothing is added
        before = np.abs(self._since)
        self._since = self._since + sent * self._is_delta
        assert (np.abs(self._since) <= np.maximum(self._step, before) + SLACK).all()
        last = self._first() if self._last is None else self._last
        if (
            self._is_near.any()
        ):  # a command that brings a target back to the measured joints cannot wait, as a hold
            was_away = (
                np.abs(last[self._is_near] - self._measured["joint_pos"]) > self._step[self._is_near] + SLACK
            )
            held = held or bool(was_away.any())
        motion = np.where(self._is_target, sent - last, np.where(self._is_delta, sent, 0.0)) / self._step
        self._motions.append((time_ns, motion, held))
        self._last = sent

    def _first(self) -> Array:
        """Where the first command starts: the measured joints and poses, and an open gripper."""
        first = np.where(self._is_target, self._high, 0.0)
        first[self._is_near] = self.robot.history[0][1].get("joint_pos", ())
        if (poses := self.robot.spec.axes_of("ee_target")).any():
            first[poses] = (*START, 0.0, 0.0, 0.0)
        return first


def _after_queue(robot: DelayedRobot) -> list[Array]:
    """Positions of the arms after each command that is still to be executed."""
    later = DelayedRobot(robot.layout, delay_ns=0)
    later.positions = [position.copy() for position in robot.positions]
    ends: list[Array] = []
    for _, action in robot.queue:
        later.send(action)
        ends += [position.copy() for position in later.positions]
    return ends


def _settings(examples: int) -> Any:
    return settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )


def _run(layout: str, examples: int) -> None:
    machine = type("Machine", (FilterMachine,), {"layout": layout})
    machine.TestCase.settings = _settings(examples)
    machine.TestCase("runTest").runTest()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_order_of_calls_exceeds_the_limits(layout: str) -> None:
    _run(layout, examples=15)


@pytest.mark.extended
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_order_of_calls_exceeds_the_limits_in_many_examples(layout: str) -> None:
    _run(layout, examples=100)
