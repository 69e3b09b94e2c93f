"""`robot.type: remote` over loopback: the contract, control by one client, stops, the watchdog, pictures, the spec."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dovetail.config.schema import PluginSection
from dovetail.core.abilities import IndependentStop
from dovetail.core.clock import RealClock
from dovetail.core.errors import RobotError, RobotFault, UsageError
from dovetail.robots.drivers.remote.driver import RemoteRobot
from dovetail.robots.drivers.remote.settings import RemoteSpecConfig
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing import check_robot
from support.remote_arm import connected, emulated, is_at_rest, wait_until

FAR = np.array([1.0, 0, 0, 0, 0, 0, 0.5], np.float32)


def test_driver_passes_the_robot_checks() -> None:
    with emulated(control_hz=10.0, cameras=["front"]) as emulator, connected(emulator) as robot:
        robot.stop()  # before any other call, as in the guard process: it connects by itself
        check_robot(lambda: robot, num_ticks=8)
        assert isinstance(robot, IndependentStop)


def test_constructor_connects_to_nothing_and_knows_the_spec(tmp_path) -> None:
    with emulated(token_file=str(tmp_path / "robot.token")) as emulator:
        settings = emulator.robot_settings()
    section = PluginSection.parse("robot", {"type": "remote", **settings})  # the server has ended
    robot = section.build(task=None)
    assert robot.spec.action.shape == (7,)
    assert [part.name for part in robot.spec.parts] == ["arm", "gripper"]
    with pytest.raises(RobotError, match=r"no connection.*Is its server running"):
        robot.observe()
    with pytest.raises(RobotError, match="did not confirm the stop: use its emergency stop"):
        robot.stop()


def test_command_moves_the_arm_and_returns_the_executed_action() -> None:
    with emulated(watchdog_s=5.0) as emulator, connected(emulator) as robot:
        robot.observe()
        assert np.array_equal(robot.send(FAR), FAR)
        assert wait_until(lambda: emulator.arm.position()[0] > 0.5)
        assert robot.observe().values["joint_pos"][0] > 0.5


def test_watchdog_stops_the_arm_without_commands_and_a_new_command_moves_it_again() -> None:
    with emulated(watchdog_s=0.1) as emulator, connected(emulator) as robot:
        robot.observe()
        robot.send(FAR)
        assert wait_until(lambda: emulator.arm.stops_ns)
        assert is_at_rest(emulator)
        here = emulator.arm.position()[0]
        assert here < 0.9  # it was on its way
        robot.send(FAR)
        assert wait_until(lambda: emulator.arm.position()[0] > here + 0.01)


def test_lost_connection_stops_the_arm() -> None:
    with emulated(watchdog_s=9.0) as emulator, connected(emulator) as robot:
        robot.observe()
        robot.send(FAR)
        robot.close()
        assert wait_until(lambda: emulator.arm.stops_ns)
        assert is_at_rest(emulator)


@pytest.mark.parametrize("fault", ["hang_observe", "hang_send"])
def test_stop_is_answered_while_a_call_of_the_robot_hangs(fault: str) -> None:
    with emulated(watchdog_s=9.0) as emulator, connected(emulator) as robot:
        robot.observe()
        robot.send(FAR)
        stopper = robot.open_stop()
        emulator.misbehave(fault)
        call = {"hang_observe": robot.observe, "hang_send": lambda: robot.send(FAR)}[fault]
        errors: list[str] = []

        def hang() -> None:
            try:
                call()
            except RobotError as error:
                errors.append(str(error))

        thread = threading.Thread(target=hang)
        thread.start()
        time.sleep(0.1)
        began_s = time.monotonic()
        stopper.stop()
        assert time.monotonic() - began_s < 1.0
        assert is_at_rest(emulator)
        emulator.behave()  # the call returns now, and must not move the arm again
        thread.join()
        assert is_at_rest(emulator)
        if fault == "hang_send":
            assert "stopped" in errors[0]
        stopper.close()


def test_command_before_a_stop_of_the_same_client_is_refused_after_it() -> None:
    with emulated() as emulator, connected(emulator) as robot:
        robot.observe()
        robot.send(FAR)
        robot.stop()
        robot._num_stops -= 1  # as if the command had been sent before the stop and arrived after it
        with pytest.raises(RobotError, match="stopped after this command was sent"):
            robot.send(FAR)
        robot._num_stops += 1
        robot.observe()
        robot.send(FAR)  # a later command is fine


def test_stop_of_another_client_bars_the_controller_until_it_connects_again() -> None:
    with emulated() as emulator, connected(emulator) as robot, connected(emulator) as guard:
        robot.observe()
        robot.send(FAR)
        guard.stop()
        with pytest.raises(RobotError, match="stopped over another connection"):
            robot.send(FAR)
        assert is_at_rest(emulator)
        robot.observe()  # connects again
        robot.send(FAR)


def test_only_one_client_controls_and_others_may_observe() -> None:
    with emulated() as emulator, connected(emulator) as robot, connected(emulator) as other:
        robot.observe()
        robot.send(FAR)
        assert other.observe().values["joint_pos"].shape == (6,)
        num_commands = len(emulator.arm.commands)
        with pytest.raises(RobotError, match=r"controls the robot already\. End that run first"):
            other.send(FAR)
        assert len(emulator.arm.commands) == num_commands
        robot.close()
        assert wait_until(lambda: emulator.server._controller is None)
        other.observe()
        other.send(FAR)


def test_late_command_is_not_executed() -> None:
    with emulated() as emulator, connected(emulator, timeout_s=0.3) as robot:
        robot.observe()
        emulator.misbehave("hang_observe")
        with pytest.raises(RobotError):
            robot.observe()
        threading.Timer(0.6, emulator.behave).start()
        with pytest.raises(RobotError):  # waits behind the hanging call for longer than it is valid
            robot.send(FAR)
        time.sleep(0.8)
        assert emulator.arm.commands == []


def test_action_outside_the_limits_never_reaches_the_robot_and_stops_it() -> None:
    for bad in (np.full(7, np.nan, np.float32), np.full(7, 9.0, np.float32), np.zeros(6, np.float32)):
        with emulated() as emulator, connected(emulator) as robot:
            robot.observe()
            with pytest.raises(RobotError, match="action"):
                robot.send(bad)  # past the filter, which would not let it through
            assert emulator.arm.commands == []
            assert emulator.arm.stops_ns


def test_pictures_are_sent_only_when_they_are_new() -> None:
    with emulated(cameras=["front"]) as emulator, connected(emulator) as robot:
        first = robot.observe()
        emulator.misbehave("frozen")
        robot.observe()
        frozen, again = robot.observe(), robot.observe()
        assert again.values["front"] is frozen.values["front"]
        assert again.captured_ns == frozen.captured_ns
        emulator.behave()
        time.sleep(0.02)  # its picture changes every 10 ms
        new = robot.observe()
        assert new.captured_ns["front"] > frozen.captured_ns["front"] >= first.captured_ns["front"]
        assert not np.array_equal(new.values["front"], frozen.values["front"])


def test_time_stamps_are_those_of_our_clock() -> None:
    with emulated(cameras=["front"]) as emulator:
        emulator.server._clock_ns = 77_000_000_000  # the other computer was booted earlier
        with connected(emulator, max_clock_error_s=0.5) as robot:
            before_ns = time.monotonic_ns()
            observation = robot.observe()
            after_ns = time.monotonic_ns()
            slack_ns = robot._clock.error_ns
            assert before_ns - slack_ns <= observation.time_ns <= after_ns + slack_ns
            assert before_ns - slack_ns <= observation.captured_ns["front"] <= after_ns + slack_ns


def test_other_spec_on_the_robot_is_a_fault_that_names_the_difference() -> None:
    with (
        emulated() as emulator,
        connected(emulator, control_hz=33.0) as robot,
        pytest.raises(RobotError, match=r"differs from the config in control_hz.*dovetail robot spec"),
    ):
        robot.observe()


def test_invalid_spec_of_a_robot_is_refused_in_one_line() -> None:
    with pytest.raises(RobotError, match=r"invalid spec: .*unit 'kg' does not fit joint_target"):
        RemoteSpecConfig.from_robot(
            {
                "name": "x",
                "control_hz": 10,
                "observation": {"joint_pos": {"shape": [1]}},
                "action": [
                    {"name": "arm", "kind": "joint_target", "unit": "kg", "low": 0, "high": 1, "max_speed": 1}
                ],
            }
        )


def test_wrong_or_missing_token_is_refused(tmp_path, monkeypatch) -> None:
    wrong = tmp_path / "wrong.token"
    wrong.write_text("f" * 64)
    wrong.chmod(0o600)
    with emulated() as emulator:
        with connected(emulator, token_file=str(wrong)) as robot, pytest.raises(RobotError, match="wrong token"):
            robot.observe()
        monkeypatch.delenv("DOVETAIL_ROBOT_TOKEN", raising=False)
        with connected(emulator, token_file=None) as robot, pytest.raises(UsageError, match="token is missing"):
            robot.observe()
        monkeypatch.setenv("DOVETAIL_ROBOT_TOKEN", emulator.token_file.read_text())
        with connected(emulator, token_file=None) as robot:
            robot.observe()
        wrong.chmod(0o644)
        with connected(emulator, token_file=str(wrong)) as robot, pytest.raises(UsageError, match="chmod 600"):
            robot.observe()


def test_restarted_server_is_a_fault_and_then_works_again() -> None:
    with emulated() as emulator:
        port, token = emulator.server.address.rpartition(":")[2], emulator.token_file.read_text()
        robot = RemoteRobot(emulator.robot_config(timeout_s=5.0, token_file=None, max_clock_error_s=1.0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOVETAIL_ROBOT_TOKEN", token)
            safe = SafeRobot(robot, SafetyConfig(), RealClock())
            safe.observe()
            safe.send(np.zeros(7, np.float32))
            emulator.server.close()
            with pytest.raises(RobotFault):
                safe.observe()
            file = emulator.token_file.with_name("second.token")
            file.write_text(token)
            file.chmod(0o600)
            with emulated(port=int(port), token_file=str(file)) as second:
                safe.acknowledge()
                safe.observe()
                safe.send(np.zeros(7, np.float32))
                robot.stop()  # its old stop connection is gone: it connects again
                assert second.arm.stops_ns
        robot.close()


def test_panda_body_passes_the_robot_checks() -> None:
    with emulated(control_hz=10.0, body="panda") as emulator, connected(emulator) as robot:
        check_robot(lambda: robot, num_ticks=4)
