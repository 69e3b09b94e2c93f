"""The filter works by part, refuses what is unknown, and limits motion per time and per observation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import ConfigError, RobotFault, SpecMismatch
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.safety import Reason, SafeRobot, SafetyConfig, Workspace
from support.delayed_robots import BOX, LAYOUTS, START, TICK_NS, DelayedRobot, Layout, cartesian, joints

STEP = 0.015  # m per tick of the model arms: 0.15 m/s at 10 Hz


def build(
    layout: str | Layout, *, delay_ns: int = 0, **config: Any
) -> tuple[SafeRobot, DelayedRobot, SimulatedClock]:
    layout = LAYOUTS[layout] if isinstance(layout, str) else layout
    robot, clock = DelayedRobot(layout, delay_ns=delay_ns), SimulatedClock()
    clock.on_advance(robot.pass_time)
    config = {"workspace": BOX if layout.box else None} | config
    safe = SafeRobot(robot, SafetyConfig(**config), clock)
    safe.observe()
    return safe, robot, clock


def tick(safe: SafeRobot, clock: SimulatedClock, ticks: float = 1) -> None:
    clock.sleep_until(clock.now_ns() + round(ticks * TICK_NS))
    safe.observe()


class Opaque:
    """A real robot whose actions have an unknown kind, or limits that 0.6 did not check."""

    def __init__(self, kind: str = "torque", **action: Any) -> None:
        limits = {"low": (-5.0, -5.0), "high": (5.0, 5.0)} | action
        self.spec = RobotSpec(
            name="opaque",
            embodiment="opaque",
            observation={"joint_pos": ArraySpec(shape=(2,))},
            action=ArraySpec(shape=(2,), **limits),
            action_kind=kind,
            control_hz=10.0,
        )
        self.time_ns = 0
        self.sent: list[Array] = []

    def observe(self) -> Observation:
        return Observation(time_ns=self.time_ns, values={"joint_pos": np.array((1.2, 1.2), np.float32)})

    def send(self, action: Array) -> Array:
        self.sent.append(action)
        return action

    def stop(self) -> None: ...


# ---- unknown or missing


def test_unknown_kind_is_refused_before_anything_moves() -> None:
    with pytest.raises(SpecMismatch, match=r"must not move.*kind 'torque' needs a known kind.*safety.hold_action"):
        SafeRobot(Opaque(), SafetyConfig(), SimulatedClock())
    with pytest.raises(SpecMismatch, match="must not move"):  # a limit without a way to hold is not enough
        SafeRobot(Opaque(), SafetyConfig(max_velocity=0.1), SimulatedClock())
    with pytest.raises(SpecMismatch, match="must not move"):
        SafeRobot(Opaque("gym"), SafetyConfig(), SimulatedClock())  # only simulated robots


def test_unknown_kind_with_hold_and_limits_is_limited_and_holds() -> None:
    robot = Opaque()
    safe = SafeRobot(robot, SafetyConfig(hold_action=(1.2, 1.2), max_velocity=0.1), SimulatedClock())
    safe.observe()
    np.testing.assert_allclose(safe.send(np.array((np.nan, 0.0))), 1.2, rtol=1e-6)
    np.testing.assert_allclose(
        safe.send(np.array((5.0, 5.0))), 1.2 + 0.015, rtol=1e-6
    )  # 1.5 ticks at 0.1 per second
    np.testing.assert_allclose(safe.send(np.array((5.0, 5.0))), 1.2 + 0.015, rtol=1e-6)


@pytest.mark.parametrize("kind", ["ee_delta", "joint_target"])
@pytest.mark.parametrize("limits", [{"low": (), "high": ()}, {"low": (-math.inf, -1.0), "high": (1.0, 1.0)}])
def test_missing_or_infinite_limits_are_refused(kind: str, limits: dict[str, Any]) -> None:
    with pytest.raises(SpecMismatch, match=r"must not move.*needs finite `low` and `high`"):
        SafeRobot(Opaque(kind, **limits), SafetyConfig(), SimulatedClock())


def test_empty_range_is_refused() -> None:
    with pytest.raises(SpecMismatch, match="low below high"):
        SafeRobot(Opaque("joint_target", low=(1.0, 0.0), high=(1.0, 1.0)), SafetyConfig(), SimulatedClock())


def test_whatever_the_limits_compute_only_finite_values_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    safe, robot, _ = build("deltas")
    monkeypatch.setattr(safe._limiter, "limit", lambda action, now_ns: action.fill(np.nan) or 0)
    with pytest.raises(RobotFault, match="the filter computed"):
        safe.send(np.zeros(6))
    assert (robot.sent, robot.num_stops) == ([], 1)


def test_workspace_is_refused_where_it_cannot_hold() -> None:
    with pytest.raises(ConfigError, match="workspace needs ee_delta or ee_target"):
        build("mobile", workspace=BOX)
    both = Layout(parts=(joints("left", "joint_pos"), cartesian("right", "ee_delta", "ee_pose", "base")))
    with pytest.raises(ConfigError, match="cannot limit part 'left'"):
        build(both, workspace=BOX)
    with pytest.raises(ConfigError, match="frame tool"):
        build(Layout(parts=(cartesian("arm", "ee_delta", "ee_pose", "tool"),)), workspace=BOX)
    with pytest.raises(SpecMismatch, match="use frame base"):
        build(Layout(parts=(cartesian("arm", "ee_target", "ee_pose", "reset"),)))


# ---- by part


def test_joints_gripper_and_base_are_one_robot() -> None:
    safe, _robot, clock = build("mobile")  # base vx vy, two joints, gripper
    executed = safe.send(np.array((9.0, -9.0, 9.0, 0.05, 0.9)))
    np.testing.assert_allclose(executed, (0.5, -0.1, 0.1, 0.05, 0.9), rtol=1e-6)
    assert safe.last_report.reasons == Reason.LIMIT | Reason.STEP
    np.testing.assert_array_equal(safe.last_report.clipped, (1, 1, 1, 0, 0))
    tick(safe, clock)
    np.testing.assert_allclose(safe.hold(), (0.0, 0.0, 0.1, 0.05, 0.9), rtol=1e-6)
    tick(safe, clock)
    # a gripper at 2/s moves 0.2 per tick, and has 1.5 ticks in store
    np.testing.assert_allclose(safe.send(np.array((0, 0, 0.1, 0.05, 0.0)))[4], 0.6, rtol=1e-5)


def test_nan_holds_every_part_in_its_own_way() -> None:
    safe, _, clock = build("mobile")
    safe.send(np.array((0.5, 0.1, 0.1, 0.1, 0.9)))
    tick(safe, clock)
    np.testing.assert_allclose(safe.send(np.full(5, np.nan)), (0, 0, 0.1, 0.1, 0.9), rtol=1e-5)


def test_two_arms_have_frames_of_their_own() -> None:
    safe, robot, _ = build("two arms", workspace=Workspace(low=(0.0, -1.0, 0.195), high=(1.0, 1.0, 1.0)))
    down_left = robot.frames[0].T @ (0.0, 0.0, -0.01)
    action = np.concatenate((down_left, np.zeros(3), [1.0], (0.0, 0.0, -0.01), np.zeros(3)))
    executed = safe.send(action)
    assert (robot.frames[0] @ executed[:3])[2] == pytest.approx(-0.005, abs=1e-6)
    assert executed[9] == pytest.approx(-0.005, abs=1e-6)


def test_pose_target_moves_one_step_and_stays_in_the_box() -> None:
    safe, robot, clock = build("targets in a box")
    far = np.array((*START, 0.0, 0.0, 0.0)) + (1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    executed = safe.send(far)
    np.testing.assert_allclose(executed, (*(START + (STEP, 0, 0)), 0, 0, 0.08), atol=1e-6)
    for _ in range(20):
        tick(safe, clock)
        safe.send(far)
    assert robot.positions[0][0] == pytest.approx(0.6, abs=1e-5)


def test_hold_values_of_a_gripper_are_sent() -> None:
    open_hold = dataclasses.replace(LAYOUTS["mobile"].parts[2], hold=(0.75,))
    safe, _, _ = build(Layout(parts=(joints("arm", "joint_pos"), open_hold)))
    assert safe.hold()[2] == pytest.approx(0.75)


# ---- per observation and per time


def test_all_sends_after_one_observation_share_one_step() -> None:
    """0.6: 200 sends after one observation moved 2 m in 4 ms, through a box of 3 cm."""
    small = Workspace(low=tuple(START - 0.015), high=tuple(START + 0.015))
    safe, robot, _ = build("deltas in a box", workspace=small)
    for _ in range(200):
        safe.send(np.full(6, 1.0))
    moved = sum(action for _, action in robot.sent)
    assert (np.abs(moved[:3]) <= STEP + 1e-6).all()
    assert (np.abs(robot.positions[0] - START) <= 0.015 + 1e-6).all()


@pytest.mark.parametrize("layout", ["deltas", "joints"])
def test_observing_and_sending_at_1_khz_is_no_faster(layout: str) -> None:
    safe, robot, clock = build(layout)
    for _ in range(1000):  # one second
        safe.observe()
        safe.send(np.full(robot.spec.action.shape, 1.0))
        clock.sleep_until(clock.now_ns() + NS_PER_S // 1000)
    start = robot.history[0][1]
    if layout == "joints":
        moved, speed = robot.joints - 0.0, 1.0
    else:
        moved, speed = sum(action for _, action in robot.sent)[:3], 0.15
    assert start is not None
    assert (np.abs(moved) <= speed * 1.15 + 1e-6).all()
    assert np.abs(moved).max() >= min(0.9 * speed, 1.0 - 1e-6)  # and not slower


@pytest.mark.parametrize("delay_ticks", [0, 1, 2, 3])
def test_box_holds_for_an_arm_with_delay(delay_ticks: int) -> None:
    safe, robot, clock = build("deltas in a box", delay_ns=delay_ticks * TICK_NS)
    for _ in range(60):
        safe.send(robot.frames[0].T @ (0.02, 0.0, 0.0) @ np.eye(3, 6))
        tick(safe, clock)
        assert robot.positions[0][0] <= 0.6 + 1e-6
    assert robot.positions[0][0] == pytest.approx(0.6, abs=1e-3)  # it arrives


def test_reset_and_acknowledge_give_no_new_allowance() -> None:
    safe, robot, _ = build("deltas")
    for _ in range(20):
        safe.send(np.full(6, 1.0))
        safe.reset()
        safe.observe()
        safe.send(np.full(6, 1.0))
        safe.trip("pressed")
        safe.acknowledge()
        safe.observe()
    moved = sum(action for _, action in robot.sent)
    assert (np.abs(moved[:3]) <= 1.5 * STEP + 1e-6).all()


def test_holding_an_arm_with_delay_does_not_repeat_its_past_motion() -> None:
    """The measurement lags: if each hold followed it, the arm would swing for ever."""
    safe, robot, clock = build("joints", delay_ns=2 * TICK_NS + 1)
    for _ in range(4):
        safe.send(np.ones(2))
        tick(safe, clock)
    targets = []
    for _ in range(12):
        targets.append(safe.hold())
        tick(safe, clock)
    np.testing.assert_array_equal(targets, [targets[0]] * 12)
    np.testing.assert_allclose(robot.joints, targets[0])


def test_hold_follows_an_arm_that_is_pushed_away_and_starts_again_after_a_fault() -> None:
    safe, robot, clock = build("joints")
    safe.hold()
    robot.joints = np.full(2, 0.3)
    tick(safe, clock)
    np.testing.assert_allclose(safe.hold(), 0.2, atol=1e-6)  # one step behind
    safe.trip("a fault")
    safe.acknowledge()
    robot.joints = np.full(2, 0.25)
    tick(safe, clock)
    np.testing.assert_allclose(safe.hold(), 0.25, atol=1e-6)


def test_gripper_that_nothing_measures_keeps_its_last_command_after_a_reset() -> None:
    """It may hold an object."""
    safe, _, clock = build("mobile")
    for _ in range(6):
        safe.send(np.zeros(5))
        tick(safe, clock)
    assert safe.hold()[4] == 0.0
    safe.reset()
    tick(safe, clock)
    assert safe.hold()[4] == 0.0


def test_older_observation_after_a_reset_is_no_measurement() -> None:
    safe, robot, clock = build("joints")
    old = robot.observe()
    for _ in range(5):
        safe.send(np.full(2, 1.0))
        tick(safe, clock)
    safe.reset()
    robot.observe = lambda: old  # type: ignore[method-assign]
    safe.observe()
    num_sent = len(robot.sent)
    with pytest.raises(Exception, match="no observation since the reset"):
        safe.send(np.zeros(2))
    assert len(robot.sent) == num_sent


def test_exact_ticks_have_a_whole_step_for_ever() -> None:
    """1/30 s is no whole number of ns; the allowance must not run out by rounding."""
    layout = Layout(parts=(dataclasses.replace(LAYOUTS["deltas"].parts[0], max_speed=(0.15,) * 3 + (0.8,) * 3),))
    robot, clock = DelayedRobot(layout, delay_ns=0), SimulatedClock()
    robot.spec = dataclasses.replace(robot.spec, control_hz=30.0)
    clock.on_advance(robot.pass_time)
    safe = SafeRobot(robot, SafetyConfig(), clock)
    safe.observe()
    first, began_ns = None, clock.now_ns()
    for number in range(3000):
        safe.observe()
        executed = safe.send(np.full(6, 1.0 if number % 2 else -1.0))
        first = np.abs(executed) if first is None else first
        np.testing.assert_array_equal(np.abs(executed), first)
        clock.sleep_until(began_ns + round((number + 1) * NS_PER_S / 30))


def test_part_facts_limit_the_robot_besides_the_settings() -> None:
    safe, _, _ = build("joints", max_velocity=0.5)
    np.testing.assert_allclose(safe.send(np.ones(2)), 0.05, rtol=1e-6)
    safe, _, _ = build("joints", max_velocity=50.0)
    np.testing.assert_allclose(safe.send(np.ones(2)), 0.1, rtol=1e-6)


def test_action_part_without_measurement_cannot_be_held() -> None:
    with pytest.raises(SpecMismatch, match="set `measured`"):
        ActionPart(
            name="arm", kind="joint_target", unit="rad", names=("j",), low=(-1.0,), high=(1.0,), max_speed=(1.0,)
        )


# ---- what a review found


def test_gripper_holds_inside_its_limits_if_the_driver_returns_another_scale() -> None:
    safe, robot, clock = build("mobile")
    gripper = robot.spec.slice_of("gripper")
    robot.send = lambda action: np.where(np.arange(action.size) == gripper.start, 255.0, action)  # type: ignore[method-assign]
    safe.hold()
    tick(safe, clock)
    sent: list[Array] = []
    robot.send = lambda action: sent.append(action) or action  # type: ignore[method-assign,func-returns-value]
    safe.hold()
    assert sent[0][gripper] <= safe.spec.action.bounds[1][gripper]


@pytest.mark.parametrize("name", ["max_velocity", "max_step"])
def test_infinite_speed_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"safety.{name} must be above zero and finite"):
        build("joints", **{name: math.inf})


def test_ease_holds_while_the_observation_is_invalid() -> None:
    safe, robot, clock = build("joints", delay_ns=TICK_NS)
    safe.send(np.full(2, 0.01, np.float32))
    robot.joints = np.full(2, np.nan)
    clock.sleep_until(clock.now_ns() + TICK_NS // 2)
    safe.observe()
    held = safe.hold()
    np.testing.assert_array_equal(safe.ease(), held)


def test_stop_that_fails_without_an_observation_is_a_fault() -> None:
    safe, robot, _ = build("joints")
    safe.reset()

    def fail() -> None:
        raise OSError("no route")

    robot.stop = fail  # type: ignore[method-assign]
    with pytest.raises(RobotFault, match=r"no observation since the reset.*stop\(\) failed.*no route"):
        safe.hold()
    assert safe.fault is not None


def test_command_times_tell_whether_a_velocity_goes_on() -> None:
    safe, robot, clock = build("mobile")
    base = robot.spec.slice_of("base")
    action = safe.hold().copy()
    assert safe.command_times[2] == 0
    action[base] = 0.05
    tick(safe, clock)
    safe.send(action)
    assert safe.command_times[2] == safe.command_times[0] > 0
    tick(safe, clock)
    safe.hold()
    assert safe.command_times[2] == 0
