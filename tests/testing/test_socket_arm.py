"""The emulated arm behind a socket: it conforms, keeps a journal, and misbehaves on request."""

import contextlib
import os
import threading
import time

import numpy as np
import pytest

from dovetail.core.abilities import IndependentStop
from dovetail.core.errors import RobotError
from dovetail.testing import check_robot
from dovetail.testing.socket_arm import SocketArm, SocketArmConfig, SocketArmWithStop
from dovetail.testing.socket_arm_process import ArmProcess
from support.waiting import wait_until


@pytest.fixture
def arm():
    with ArmProcess() as process:
        yield process


@pytest.fixture
def driver(arm):
    robot = SocketArm(SocketArmConfig(address=arm.address))
    yield robot
    robot.close()


def target(angle):
    return np.array([angle] * 6 + [0.0], np.float32)


@pytest.mark.parametrize("action", ["joint_target", "ee_delta"])
def test_driver_conforms_to_the_robot_contract(arm, action):
    robot = SocketArm(SocketArmConfig(address=arm.address, camera=True, control_hz=50.0, action=action))
    check_robot(lambda: robot)
    robot.close()
    assert not arm.violations()


def test_constructor_does_not_connect():
    SocketArm(SocketArmConfig(address="127.0.0.1:1"))


def test_arm_moves_with_a_lag_and_stops_on_command(arm, driver):
    driver.send(target(0.1))
    time.sleep(0.1)
    driver.stop()
    at = driver.observe().values["joint_pos"]
    assert (at > 0.02).all()
    assert (at < 0.099).all()
    time.sleep(0.1)
    np.testing.assert_allclose(driver.observe().values["joint_pos"], at, atol=1e-4)
    assert [entry["kind"] for entry in arm.journal()] == ["connected", "target", "stop"]


def test_command_beyond_speed_or_limit_is_a_violation(arm, driver):
    driver.send(target(1.4))  # within the limits, but far away
    assert "speed" in arm.violations()[0]["violations"][0]


def test_stop_needs_no_earlier_connection_and_closes_its_own(arm):
    robot = SocketArm(SocketArmConfig(address=arm.address))
    robot.stop()
    robot.stop()
    assert len(arm.stops()) == 2


def test_stop_arrives_while_another_thread_waits_for_an_answer(arm, driver):
    driver.observe()
    arm.behave(observe="silent")

    def observe():
        with contextlib.suppress(RobotError):
            driver.observe()

    stuck = threading.Thread(target=observe)
    stuck.start()
    time.sleep(0.05)
    driver.stop()
    wait_until(lambda: arm.stops())
    assert stuck.is_alive()
    arm.behave(drop=True)
    stuck.join(timeout=5.0)
    assert not stuck.is_alive()


def test_second_driver_waits_until_the_first_one_disconnects(arm, driver):
    driver.observe()
    other = SocketArm(SocketArmConfig(address=arm.address))
    with pytest.raises(RobotError, match="did not confirm"):
        other.stop()
    driver.close()
    other.stop()
    assert len(arm.stops()) >= 1


def test_deaf_arm_serves_a_new_connection(arm):
    first = SocketArm(SocketArmConfig(address=arm.address, timeout_s=0.2))
    first.observe()
    arm.behave(deaf=True)
    with pytest.raises(RobotError, match="does not answer"):
        first.observe()
    first.stop()  # the failed call closed the connection
    assert arm.stops()


def test_stop_port_stops_a_deaf_arm(arm, driver):
    robot = SocketArmWithStop(SocketArmConfig(address=arm.address, stop_address=arm.stop_address))
    assert isinstance(robot, IndependentStop)
    connection = robot.open_stop()
    driver.send(target(0.1))
    arm.behave(deaf=True, accept=False)
    connection.stop()
    assert len(arm.stops()) == 1
    assert arm.client_pid == os.getpid()
    connection.close()


def test_arm_that_accepts_no_connection_is_an_error_after_the_timeout(arm):
    arm.behave(accept=False)
    robot = SocketArm(SocketArmConfig(address=arm.address, timeout_s=0.2))
    with pytest.raises(RobotError, match="does not answer"):
        robot.observe()


def test_driver_reconnects_after_a_dropped_connection(arm, driver):
    driver.observe()
    arm.behave(drop=True)
    time.sleep(0.1)
    with pytest.raises(RobotError, match="the connection"):
        driver.observe()
    assert driver.observe().values["joint_pos"].shape == (6,)


def test_frozen_camera_repeats_its_picture(arm):
    robot = SocketArm(SocketArmConfig(address=arm.address, camera=True))
    assert (robot.observe().values["front"] != robot.observe().values["front"]).all()
    arm.behave(frozen=True)
    assert (robot.observe().values["front"] == robot.observe().values["front"]).all()
    robot.close()


def test_driver_blocks_while_the_file_names_the_call(arm, tmp_path):
    robot = SocketArm(SocketArmConfig(address=arm.address, block_file=str(tmp_path / "block")))
    robot.observe()
    (tmp_path / "block").write_text("send observe")
    stuck = threading.Thread(target=robot.observe)
    stuck.start()
    time.sleep(0.1)
    assert stuck.is_alive()
    robot.stop()
    assert arm.stops()
    (tmp_path / "block").write_text("")
    stuck.join(timeout=5.0)
    assert not stuck.is_alive()
    robot.close()


def test_delay_is_the_time_to_the_stop_that_no_motion_followed(arm, driver):
    driver.observe()
    assert arm.delay_ns(time.monotonic_ns()) == 0  # it never moved
    driver.send(target(0.1))
    pressed_ns = time.monotonic_ns()
    assert arm.delay_ns(pressed_ns) is None
    driver.stop()
    driver.send(target(0.2))
    assert arm.delay_ns(pressed_ns) is None
    driver.stop()
    driver.stop()
    assert arm.delay_ns(pressed_ns) == arm.stops()[1] - pressed_ns > 0
    assert arm.delay_ns(time.monotonic_ns()) == 0  # it stood before that press
