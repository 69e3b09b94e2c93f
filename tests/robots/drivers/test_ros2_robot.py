"""The ros2 driver against an emulated igris_b in another process, over real DDS on loopback."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dovetail.core.clock import RealClock
from dovetail.core.errors import RobotError, RobotFault
from dovetail.emulators.emulator import EmulatorProcess
from dovetail.robots.drivers.ros2.dds import DdsNode
from dovetail.robots.drivers.ros2.driver import Ros2Robot
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import QosConfig
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing import check_robot
from support.ros2_robots import EmulatorFaults, free_domain, igris_config, igris_settings, loopback

START = np.radians([-20, -30, 0, 120, 0, 0, 20, 30, 0, -120, 0, 0]).astype(np.float32)  # left first
JOINTS = "sensor_msgs/msg/JointState"


def extended(fault: str, message: str) -> Any:
    """One of many alike."""
    return pytest.param(fault, message, marks=pytest.mark.extended)


@dataclass
class World:
    domain_id: int
    emulator: EmulatorProcess
    faults: EmulatorFaults


@pytest.fixture
def world() -> Iterator[World]:
    domain_id = free_domain()
    with EmulatorProcess("igris_b", f"domain_id={domain_id}", "pose=start") as emulator:
        faults = EmulatorFaults(domain_id)
        faults.wait()
        try:
            yield World(domain_id, emulator, faults)
        finally:
            faults.close()


@pytest.fixture
def robot(world: World) -> Iterator[Ros2Robot]:
    robot = Ros2Robot(igris_config(world.domain_id))
    yield robot
    robot.close()


def repeat(call: Callable[[], object]) -> None:
    """Call it at 20 Hz, for 10 s."""
    until_s = time.monotonic() + 10.0
    while time.monotonic() < until_s:
        call()
        time.sleep(0.05)


def heard_commands(domain_id: int) -> tuple[DdsNode, Any]:
    node = DdsNode(loopback(domain_id), Codec())
    heard = node.subscribe("/igris_b/packy/target_joints", JOINTS, QosConfig(), listens_only=True)
    node.start()
    return node, heard


def test_observations_have_the_left_side_first(robot: Ros2Robot) -> None:
    observation = robot.observe()
    assert observation.values["joint_pos"] == pytest.approx(START, abs=0.01)
    assert observation.values["finger_pos"] == pytest.approx([1, 1, 1, 1, 1, 0.5] * 2, abs=0.01)
    assert 0 <= time.monotonic_ns() - observation.time_ns < 0.2e9


def test_commands_have_the_right_side_first(world: World, robot: Ros2Robot) -> None:
    node, heard = heard_commands(world.domain_id)
    with node:
        robot.observe()
        action = np.concatenate((np.arange(12) / 10, np.linspace(0, 1, 12))).astype(np.float32)
        for _ in range(20):
            assert robot.send(action).tolist() == action.tolist()
            if node.wait(lambda: heard.newest is not None, timeout_s=0.1):
                break
        sent = Codec().decode(heard.newest.payload, JOINTS)
        assert sent.position == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.extended
def test_the_driver_passes_check_robot(robot: Ros2Robot) -> None:
    check_robot(lambda: robot)


def test_the_first_command_does_not_jump(world: World, robot: Ros2Robot) -> None:
    """A policy may ask for a far pose at once. What reaches the robot is one step of 5 degrees from the measured pose."""
    node, heard = heard_commands(world.domain_id)
    with node:
        safe = SafeRobot(robot, SafetyConfig(), RealClock())
        safe.observe()
        node.wait(lambda: False, timeout_s=0.5)  # until the second subscriber is known
        safe.observe()
        safe.send(np.concatenate((-START, np.zeros(12))).astype(np.float32))
        assert node.wait(lambda: heard.newest is not None, timeout_s=5.0)
        first = Codec().decode(heard.newest.payload, JOINTS).position
        step = np.abs(first - np.roll(START, 6))
        assert 0.05 < step.max() < np.radians(5.0) + 0.02


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "joint_states is invalid: 'position' has 0 numbers"),
        extended("missing_fingers", "finger_state is invalid: 'data' has 0 numbers"),
        extended("short", "joint_states is invalid: 'position' has 11 numbers instead of 12"),
        extended("long", "finger_state is invalid: 'data' has 13 numbers instead of 12"),
        ("nan", "joint_states is invalid: 'position' has a number that is not finite"),
        extended("nan_current", "finger_current is invalid"),
        extended("infinite", "finger_state is invalid"),
        ("wrong_order", "'joint_pos' on /igris_b/packy/joint_states jumped by 4"),
        extended("old_stamps", "joint_states is .* s old. New messages have stamps that are [45]"),
        extended("repeat", "joint_states is .* s old"),
        ("late", "joint_states is .* s old"),
        extended("silent_joints", "joint_states is .* s old"),
        ("silent_fingers", "finger_state is .* s old"),
        extended("silent_current", "finger_current is .* s old"),
        extended("no_publisher", "(finger_state has gone|finger_state is .* s old|joint_states is .* s old)"),
    ],
)
def test_a_fault_of_the_robot_is_a_fault_with_the_name_of_its_topic(
    world: World, robot: Ros2Robot, fault: str, message: str
) -> None:
    safe = SafeRobot(robot, SafetyConfig(), RealClock())
    safe.observe()
    world.faults.ask(fault)

    def tick() -> None:
        safe.observe()
        safe.hold()

    with pytest.raises(RobotFault, match=message):
        repeat(tick)
    assert safe.fault is not None


def test_a_robot_that_no_longer_listens_is_a_fault(world: World, robot: Ros2Robot) -> None:
    """The guard listens too, and does not count."""
    guard = robot.open_stop()
    robot.observe()
    world.faults.ask("deaf")
    action = np.concatenate((START, np.ones(12))).astype(np.float32)
    with pytest.raises(
        RobotError, match=r"robot no longer listens to /igris_b/packy/(target_joints|finger_target)"
    ):
        repeat(lambda: robot.send(action))
    guard.close()


def test_after_a_short_fault_an_acknowledged_robot_moves_again(world: World, robot: Ros2Robot) -> None:
    safe = SafeRobot(robot, SafetyConfig(), RealClock())
    safe.observe()
    world.faults.ask("nan", 0.4)
    with pytest.raises(RobotFault):
        repeat(safe.observe)
    time.sleep(0.6)
    safe.acknowledge()
    safe.observe()
    safe.hold()


@pytest.mark.extended
def test_a_paused_robot_is_a_fault_and_stop_reports_that_it_did_not_arrive(world: World, robot: Ros2Robot) -> None:
    robot.observe()
    os.kill(world.emulator.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RobotError, match="s old"):
            repeat(robot.observe)
        with pytest.raises(RobotError, match=r"no fresh measurement.*emergency stop"):
            robot.stop()
    finally:
        os.kill(world.emulator.process.pid, signal.SIGCONT)


def drive(robot: Ros2Robot, *, seconds: float, axis: int = 3) -> None:
    """Move one joint far away at the speed of the filter."""
    safe = SafeRobot(robot, SafetyConfig(), RealClock())
    target = np.concatenate((START, np.ones(12))).astype(np.float32)
    target[axis] -= 2.0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        safe.observe()
        safe.send(target)
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["stop", "stop of a new object", "open_stop"])
def test_stop_holds_a_moving_arm_where_it_is(world: World, robot: Ros2Robot, how: str) -> None:
    other = Ros2Robot(igris_config(world.domain_id))
    guard = other.open_stop() if how == "open_stop" else None
    drive(robot, seconds=1.0)
    here = robot.observe().values["joint_pos"]
    assert here[3] < START[3] - 0.1
    {"stop": robot.stop, "stop of a new object": other.stop, "open_stop": guard.stop if guard else other.stop}[
        how
    ]()
    time.sleep(0.5)
    robot.observe()
    time.sleep(0.2)
    there = robot.observe().values["joint_pos"]
    assert (
        np.abs(there - here).max() < 0.1
    )  # without a stop it would follow its last target by up to 0.09 rad more
    time.sleep(0.3)
    assert robot.observe().values["joint_pos"] == pytest.approx(there, abs=0.005)
    if guard is not None:
        guard.close()
    other.close()


def test_a_stop_over_the_second_connection_keeps_the_last_grip(world: World, robot: Ros2Robot) -> None:
    """Its process never sent a finger target: it listens to the commands of others."""
    guard = robot.open_stop()
    grip = np.full(12, 0.3, np.float32)
    robot.observe()
    time.sleep(0.3)
    for _ in range(20):
        robot.observe()
        robot.send(np.concatenate((START, grip)).astype(np.float32))
        time.sleep(0.02)
    guard.stop()
    time.sleep(1.0)
    assert robot.observe().values["finger_pos"] == pytest.approx(grip, abs=0.01)
    guard.close()


def test_a_missing_robot_is_an_error_that_names_the_topic_and_domain() -> None:
    domain_id = free_domain()
    robot = Ros2Robot(igris_config(domain_id, {"connect_s": 0.3}))
    with pytest.raises(
        RobotError, match=f"not found in DDS domain {domain_id} within 0.3 s: .*joint_states has no publ"
    ):
        robot.observe()
    with pytest.raises(RobotError, match="emergency stop"):
        robot.stop()
    robot.close()


def test_another_quality_of_service_is_named(world: World) -> None:
    settings = igris_settings(world.domain_id)
    settings["state"][0]["qos"] = {"durability": "transient_local"}
    robot = Ros2Robot(igris_config(world.domain_id, {"state": settings["state"], "connect_s": 1.0}))
    with pytest.raises(RobotError, match=r"joint_states is published with another quality of service"):
        robot.observe()
    robot.close()


def test_two_publishers_of_one_topic_are_a_fault(world: World, robot: Ros2Robot) -> None:
    robot.observe()
    codec = Codec()
    with DdsNode(loopback(world.domain_id), codec) as node:
        name = "std_msgs/msg/Float32MultiArray"
        second = node.publish("/igris_b/packy/finger_state", name, QosConfig())
        message = codec.blank(name)
        message.data = np.full(12, 0.5, np.float32)

        def tick() -> None:
            second.write(codec.encode(message, name))
            robot.observe()

        with pytest.raises(RobotError, match="two publishers take turns on /igris_b/packy/finger_state"):
            repeat(tick)
