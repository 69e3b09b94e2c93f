"""A measured position that the robot cannot have reached is invalid, and nothing is commanded towards it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.errors import RobotFault
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.safety import Reason, SafeRobot, SafetyConfig
from support.delayed_robots import LAYOUTS, DelayedRobot, cartesian, joints

HZ = 50.0
TICK_NS = round(NS_PER_S / HZ)
FAULT = r"'arm_0' of part 'arm' was measured at 0.800 rad, 0.020 s after 0.000 rad: at most 0.110 rad of motion"


class Arm:
    """Two joints that stand where a test places them, measured with errors. Not a simulated robot for the filter."""

    def __init__(self, *parts: ActionPart, **observation: tuple[float, ...]) -> None:
        self.values = {key: np.array(value, np.float32) for key, value in observation.items()}
        self.spec = RobotSpec(
            name="arm",
            embodiment="arm",
            observation={key: ArraySpec(shape=value.shape) for key, value in self.values.items()},
            parts=parts,
            control_hz=HZ,
        )
        self.now_ns = 0
        self.errors: deque[float] = deque()  # of the first value, in the next observations
        self.num_looks = self.num_stops = 0
        self.sent: list[Array] = []

    def observe(self) -> Observation:
        self.num_looks += 1
        values = {key: value.copy() for key, value in self.values.items()}
        next(iter(values.values()))[0] += self.errors.popleft() if self.errors else 0.0
        return Observation(time_ns=self.now_ns, values=values)

    def send(self, action: Array) -> Array:
        self.sent.append(action.copy())
        return action

    def stop(self) -> None:
        self.num_stops += 1

    def pass_time(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


def two_joints() -> Arm:
    return Arm(joints("arm", "joint_pos"), joint_pos=(0.0, 0.0))


def guard(arm: Arm, **config: Any) -> tuple[SafeRobot, SimulatedClock]:
    clock = SimulatedClock()
    clock.on_advance(arm.pass_time)
    safe = SafeRobot(arm, SafetyConfig(**config), clock)
    safe.observe()
    return safe, clock


def tick(safe: SafeRobot, clock: SimulatedClock, ticks: float = 1.0) -> None:
    clock.sleep_until(clock.now_ns() + round(ticks * TICK_NS))
    safe.observe()


def test_one_wrong_measurement_is_never_commanded_and_the_robot_goes_on() -> None:
    arm = two_joints()
    safe, clock = guard(arm)
    for command in (safe.hold, safe.ease, lambda: safe.send(np.full(2, 0.8))):
        arm.errors.append(0.8)
        tick(safe, clock)
        assert safe.problem is not None
        assert "'arm_0' of part 'arm' was measured at 0.800 rad" in safe.problem
        np.testing.assert_array_equal(command(), 0.0)
        tick(safe, clock)
        assert safe.problem is None
    assert safe.fault is None
    np.testing.assert_allclose(safe.send(np.full(2, 0.8)), 0.02, atol=1e-6)  # one step
    np.testing.assert_array_less(np.abs(arm.sent), 0.021)


def test_wrong_measurement_that_stays_is_a_fault_with_axis_and_both_values() -> None:
    arm = two_joints()
    safe, clock = guard(arm)
    arm.errors.extend([0.8] * 100)
    for _ in range(5):
        tick(safe, clock)
        np.testing.assert_array_equal(safe.send(np.ones(2)), 0.0)
        assert safe.last_report.reasons is Reason.BAD_OBSERVATION
    with pytest.raises(RobotFault, match=FAULT):
        tick(safe, clock)
    assert arm.num_stops == 1
    with pytest.raises(RobotFault, match=FAULT):
        safe.hold()
    assert len(arm.sent) == 5


@pytest.mark.parametrize("size", [0.12, 0.3, 0.8, 3.0])
def test_wrong_value_that_stays_does_not_become_possible_with_time(size: float) -> None:
    arm = two_joints()
    safe, clock = guard(arm, jump_stop_after_s=10.0, stale_after_s=20.0, stop_after_s=20.0)
    arm.errors.extend([size] * 400)
    for _ in range(400):  # 8 s at 1 rad/s
        tick(safe, clock)
        np.testing.assert_array_equal(safe.hold(), 0.0)


def test_robot_that_was_pushed_needs_an_acknowledgement_and_is_then_accepted_where_it_is() -> None:
    arm = two_joints()
    safe, clock = guard(arm)
    arm.values["joint_pos"] += 0.5
    for _ in range(5):
        tick(safe, clock)
        safe.hold()
    with pytest.raises(RobotFault, match=r"was measured at 0\.500 rad"):
        tick(safe, clock)
    assert (np.abs(arm.sent) <= 0.0).all()
    safe.acknowledge()
    tick(safe, clock)
    np.testing.assert_allclose(safe.hold(), 0.5)


def test_motion_at_the_speed_limit_is_possible_at_every_rate_of_observations() -> None:
    rng = np.random.default_rng(0)
    arm = two_joints()
    safe, clock = guard(arm)
    where_ns = clock.now_ns()
    for _ in range(2000):
        clock.sleep_until(clock.now_ns() + int(rng.uniform(0.05, 2.9) * TICK_NS))
        where_ns, passed_ns = clock.now_ns(), clock.now_ns() - where_ns
        arm.values["joint_pos"] += np.float32(1.2 * passed_ns / NS_PER_S)  # 20 % above the limit
        safe.observe()
        assert safe.problem is None


@pytest.mark.parametrize("restart", ["reset", "acknowledge"])
def test_robot_that_was_moved_before_a_reset_or_acknowledgement_is_accepted(restart: str) -> None:
    arm = two_joints()
    safe, clock = guard(arm)
    arm.values["joint_pos"] += 0.9
    getattr(safe, restart)()
    tick(safe, clock)
    assert safe.problem is None
    np.testing.assert_allclose(safe.hold(), 0.9)


def test_robot_that_its_driver_moved_before_a_reset_is_accepted() -> None:
    class Homing(Arm):
        def prepare_reset(self, robot: SafeRobot, *, tick: Callable[[], None]) -> None:
            self.values["joint_pos"] -= 0.9

    arm = Homing(joints("arm", "joint_pos"), joint_pos=(0.0, 0.0))
    safe, clock = guard(arm)
    safe.prepare_reset(tick=lambda: None)
    tick(safe, clock)
    np.testing.assert_allclose(safe.hold(), -0.9)


@pytest.mark.parametrize("when", ["first", "reset", "gap"])
def test_wrong_measurement_without_a_recent_one_is_found_by_a_second_look(when: str) -> None:
    arm = two_joints()
    if when == "first":
        arm.errors.append(0.8)
    safe, clock = guard(arm)
    if when != "first":
        if when == "reset":
            safe.reset()
        arm.errors.append(0.8)
        tick(safe, clock, 1 if when == "reset" else 8)
    np.testing.assert_array_equal(safe.hold(), 0.0)
    assert safe.problem is None


def test_first_measurements_that_never_agree_are_a_fault() -> None:
    arm = two_joints()
    arm.errors.extend([0.8, -0.8, 0.4, -0.4, 0.8, -0.8])
    with pytest.raises(RobotFault, match="no two of the first measurements agree"):
        guard(arm)
    assert arm.sent == []
    assert arm.num_stops == 1


def test_wrong_measurement_after_a_reset_is_not_accepted_during_a_fault_either() -> None:
    arm = two_joints()
    safe, clock = guard(arm)
    measured: list[float] = []
    safe.report_measurements(lambda seen: measured.append(float(seen.values["joint_pos"][0])))
    safe.trip("a fault")
    safe.reset()
    arm.errors.append(0.8)
    tick(safe, clock)
    assert measured == [0.0]


def test_robot_that_has_not_moved_is_looked_at_once_after_a_reset() -> None:
    arm = two_joints()
    safe, clock = guard(arm)
    num_looks = arm.num_looks
    safe.reset()
    tick(safe, clock)
    assert arm.num_looks == num_looks + 1


POSE = (0.4, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("kind", ["ee_delta", "ee_target"])
def test_jump_of_an_end_effector_is_found_in_position_and_rotation(kind: str) -> None:
    arm = Arm(cartesian("arm", kind, "ee_pose", "base"), ee_pose=POSE)
    safe, clock = guard(arm)
    still = safe.hold()
    arm.errors.append(0.3)
    tick(safe, clock)
    assert safe.problem is not None
    assert "the position of part 'arm' was measured at (0.700, 0.000, 0.200) m, " in safe.problem
    assert " s after (0.400, 0.000, 0.200) m" in safe.problem
    np.testing.assert_array_equal(safe.hold(), still)
    tick(safe, clock)
    assert safe.problem is None
    arm.values["ee_pose"][3:] = (-np.sqrt(0.5), 0.0, 0.0, -np.sqrt(0.5))  # 90 degrees around z
    tick(safe, clock)
    assert safe.problem is not None
    assert safe.problem.startswith("the rotation of part 'arm' was measured at (-0.707, 0.000, 0.000, -0.707)")
    np.testing.assert_array_equal(safe.hold(), still)
    arm.values["ee_pose"][3:] = (-1.0, 0.0, 0.0, 0.0)  # the same rotation as at first
    tick(safe, clock)
    assert safe.problem is None


def test_degrees_have_their_own_allowance() -> None:
    part = replace(
        joints("arm", "joint_pos"), unit="deg", max_speed=(57.3, 57.3), low=(-90.0,) * 2, high=(90.0,) * 2
    )
    arm = Arm(part, joint_pos=(0.0, 0.0))
    safe, clock = guard(arm)
    for error, found in ((6.0, False), (6.6, True)):  # at most 57.3 * 0.06 + 2.86 degrees
        arm.errors.append(error)
        tick(safe, clock)
        assert (safe.problem is not None) == found
        tick(safe, clock)


def test_gripper_that_holds_where_it_is_measured_is_checked() -> None:
    part = ActionPart(
        name="grip", kind="gripper", unit="1", names=("jaw",), low=(0.0,), high=(1.0,), max_speed=(2.0,),
        hold="measured", measured="gripper",
    )  # fmt: skip
    arm = Arm(part, gripper=(0.2,))
    safe, clock = guard(arm)
    arm.errors.append(0.6)
    tick(safe, clock)
    assert safe.problem is not None
    assert "'jaw' of part 'grip'" in safe.problem
    np.testing.assert_allclose(safe.hold(), 0.2)


def test_settings_turn_the_check_off_and_change_it() -> None:
    for config in ({"check_jumps": False}, {"jump_allowance": 0.8}, {"jump_speed_margin": 20.0}):
        arm = two_joints()
        safe, clock = guard(arm, **config)
        arm.errors.append(0.8)
        tick(safe, clock)
        assert safe.problem is None


def test_simulated_robot_may_be_placed_anywhere_unless_the_check_is_on() -> None:
    class Simulated(DelayedRobot):
        def advance(self, duration_ns: int) -> None:
            self.pass_time(duration_ns)

    for check, found in ((None, False), (True, True)):
        robot, clock = Simulated(LAYOUTS["joints"], delay_ns=0), SimulatedClock()
        clock.on_advance(robot.advance)
        safe = SafeRobot(robot, SafetyConfig(check_jumps=check), clock)
        safe.observe()
        robot.joints = np.full(2, 0.9)
        tick(safe, clock)
        assert (safe.problem is not None) == found
