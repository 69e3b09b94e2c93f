"""The driver and the bridge process with a miniature of LeRobot: real processes and sockets, no LeRobot package."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.abilities import IndependentStop, LooksOnly, UsesBuffers
from dovetail.core.clock import RealClock
from dovetail.core.errors import ConfigError, RobotError
from dovetail.robots.drivers.lerobot.driver import LeRobotRobot
from dovetail.robots.drivers.lerobot.settings import SO_JOINTS, LeRobotConfig
from dovetail.runs.assembly.leaders import RobotLeader
from dovetail.testing import check_robot
from support.lerobot_arm import CAMERA, FAKE, bridge_pid, follower_config, is_running, wait_for


@pytest.fixture
def make(arm):
    made = []

    def build(**changes):
        made.append(LeRobotRobot(follower_config(arm, **changes)))
        return made[-1]

    yield build
    for robot in made:
        robot.close()


def test_check_robot_passes(make):
    robot = make(control_hz=5.0)
    check_robot(lambda: robot, num_ticks=5)


def test_degrees_and_percent_become_radians_and_a_fraction(make, arm):
    arm.set_state(positions={"shoulder_pan": 90.0, "shoulder_lift": -30.0, "elbow_flex": 0.0, "wrist_flex": 10.0,
                             "wrist_roll": -45.0, "gripper": 25.0})  # fmt: skip
    robot = make()
    values = robot.observe().values
    np.testing.assert_allclose(values["joint_pos"], np.deg2rad([90, -30, 0, 10, -45]), atol=1e-6)
    np.testing.assert_allclose(values["gripper"], [0.25])
    action = np.array([0.1, 0.2, -0.3, 0.4, 0.5, 0.75], np.float32)
    np.testing.assert_array_equal(robot.send(action), action)
    sent = arm.sent[-1]
    assert sent["wrist_roll.pos"] == pytest.approx(math.degrees(0.5), abs=1e-4)
    assert sent["gripper.pos"] == pytest.approx(75.0)


def test_the_constructor_does_no_io_and_a_missing_interpreter_is_one_line(make, lerobot_root):
    robot = make(python="/nonexistent/python")
    assert robot.spec.action.shape == (6,) and list(lerobot_root.iterdir()) == []
    with pytest.raises(
        RobotError, match=r"cannot start .*so101_follower.* with python '/nonexistent/python'"
    ) as caught:
        robot.observe()
    assert "\n" not in str(caught.value)


def test_connecting_never_asks_on_the_terminal_and_holds_at_once(make, arm):
    make().observe()
    events = arm.events()
    assert events[0] == {**events[0], "what": "connect", "calibrate": False}
    assert arm.sent[0] == pytest.approx({**dict.fromkeys(arm.sent[0], 0.0), "gripper.pos": 50.0})


def test_looking_does_not_configure_command_or_release_the_arm(make, arm):
    robot = make(linger_s=0.0, release=True)
    assert isinstance(robot, LooksOnly)
    robot.look_only()
    robot.observe()
    with pytest.raises(RobotError, match="connected only to measure"):
        robot.send(np.zeros(6, np.float32))
    pid = bridge_pid(robot)
    robot.stop()
    robot.close()
    wait_for(lambda: not is_running(pid))
    assert [event["what"] for event in arm.events()] == ["connect", "disconnect"]


def test_run_after_a_look_connects_completely_and_holds(make, arm):
    look = make(linger_s=5.0)
    look.look_only()
    look.observe()
    look.close()
    make(linger_s=5.0).observe()  # the same bridge
    names = [event["what"] for event in arm.events() if event["what"] != "begin_send"]
    assert names == ["connect", "disconnect", "connect", "configure", "send", "send"]


def test_look_at_an_arm_that_is_held_keeps_it_held(make, arm):
    first = make(linger_s=5.0)
    first.observe()
    first.close()
    wait_for(lambda: len(arm.sent) == 4)  # held as the client left
    look = make(linger_s=5.0)
    look.look_only()
    look.observe()
    assert len(arm.events("connect")) == 1 and len(arm.sent) == 4
    look.close()
    wait_for(lambda: len(arm.sent) == 6)
    assert arm.sent[-1] == arm.sent[0]


def test_lerobot_robot_as_a_leader_is_only_observed(make, arm):
    arm.set_state(positions=dict.fromkeys((*SO_JOINTS, "gripper"), 30.0))
    leader = RobotLeader(make(), RealClock())
    assert leader.axes == (*SO_JOINTS, "gripper") and not leader.can_follow
    np.testing.assert_allclose(leader.read(), (*np.radians([30.0] * 5), 0.3), atol=1e-5)
    leader.follow(np.zeros(6))
    leader.release()
    leader.close()
    assert [event["what"] for event in arm.events()] == ["connect"]


def test_a_calibration_mismatch_names_the_lerobot_command(make, arm):
    arm.set_state(calibrated=False)
    with pytest.raises(
        RobotError, match=r"calibration .* Run: lerobot-calibrate --robot.type=so101_follower"
    ) as caught:
        make(config={"id": "left"}).observe()
    assert "--robot.id=left" in str(caught.value) and f"--robot.port={arm.path}" in str(caught.value)
    assert arm.sent == []


def test_features_that_do_not_fit_are_refused_before_the_device_is_connected(make, arm):
    robot = make(observation={"load": ["shoulder_pan.load"]}, units={"shoulder_pan.load": "1"})
    with pytest.raises(RobotError, match=r"no observation shoulder_pan.load. It has shoulder_pan.pos"):
        robot.observe()
    assert arm.events("connect") == []


def test_an_unknown_robot_lists_the_known_ones(make):
    robot = make(
        robot="so1001",
        action=[{"name": "a", "kind": "gripper", "unit": "1", "low": 0, "high": 1, "max_speed": 1}],
        observation={"x": ["a.pos"]},
        units={"a.pos": "1"},
    )
    with pytest.raises(
        RobotError, match=r"has no robot 'so1001'. It has so100_follower, so101_follower, turntable"
    ):
        robot.observe()


def test_an_unknown_field_of_lerobot_is_refused(make):
    with pytest.raises(RobotError, match=r"refuses the config of 'so101_follower'.*colour"):
        make(config={"colour": "red"}).observe()


def test_a_plugin_with_velocities_is_found_by_its_distribution(make, arm):
    robot = make(
        robot="turntable",
        config={"angle_deg": 90.0},
        action=[{"name": "table", "kind": "velocity", "unit": "rad/s", "axes": ["turn"], "low": -1, "high": 1}],
        keys={"turn": "turn.vel"},
        observation={"angle": ["angle.pos"], "speed": ["speed"]},
        units={"turn.vel": "deg/s", "angle.pos": "deg", "speed": "deg/s"},
    )
    robot._process._settings["config"].pop("port")
    assert robot.observe().values["angle"] == pytest.approx([math.pi / 2])
    robot.send(np.array([0.5], np.float32))
    assert robot.observe().values["speed"] == pytest.approx([0.5])
    robot.stop()
    assert robot.observe().values["speed"] == pytest.approx([0.0])  # a velocity stands still by zero


def test_cameras_are_images_with_capture_times_and_depth(make):
    robot = make(config={"cameras": {"front": CAMERA}})
    assert isinstance(robot, UsesBuffers) and robot.spec.observation["front_depth"].dtype == "uint16"
    buffers = []

    def next_buffer(key):
        shape, dtype = robot.spec.observation[key].shape, robot.spec.observation[key].dtype
        buffers.append(np.zeros(shape, dtype))
        return buffers[-1]

    robot.use_buffers(next_buffer)
    first = robot.observe()
    time.sleep(0.1)
    second = robot.observe()
    assert any(second.values["front"] is buffer for buffer in buffers)
    assert second.values["front"].shape == (24, 32, 3) and second.values["front_depth"].shape == (24, 32, 1)
    assert first.values["front"][0, 0, 0] != second.values["front"][0, 0, 0]
    assert first.captured_ns["front"] < second.captured_ns["front"] <= second.time_ns
    assert second.time_ns - second.captured_ns["front"] < 2e9


def test_a_frozen_camera_keeps_its_old_capture_time_and_then_is_a_fault(make):
    robot = make(config={"cameras": {"front": {**CAMERA, "freeze_after": 20}}})
    observation = robot.observe()

    def lost():
        nonlocal observation
        try:
            observation = robot.observe()
        except RobotError as error:
            return str(error)
        return None

    text = wait_for(lost)
    assert "too old" in text
    robot.stop()  # holds without the camera


def test_stop_holds_the_measured_pose_with_torque(make, arm):
    robot = make()
    robot.observe()
    robot.send(np.array([0.5, 0, 0, 0, 0, 0.2], np.float32))
    state = json.loads((arm.path / "state.json").read_text())
    state["positions"]["shoulder_pan"] = 12.0  # the arm is on its way
    (arm.path / "state.json").write_text(json.dumps(state))
    robot.stop()
    assert arm.sent[-1]["shoulder_pan.pos"] == 12.0  # where it was measured
    assert arm.sent[-1]["gripper.pos"] == pytest.approx(20.0)  # a gripper keeps its target
    count = len(arm.sent)
    robot.stop()
    assert len(arm.sent) > count and arm.sent[-1] == arm.sent[count - 1]  # the same targets: no creeping


def test_a_lost_packet_is_measured_again_but_a_command_is_not_repeated(make, arm):
    robot = make()
    robot.observe()
    arm.misbehave(observe="raise once")
    robot.observe()
    count = len(arm.sent)
    arm.misbehave(send="raise once")
    with pytest.raises(RobotError, match="no status packet"):
        robot.send(np.zeros(6, np.float32))
    assert len(arm.sent) == count
    lossy = make(config={"id": "other"}, retries=0)
    robot.close()
    lossy.observe()
    arm.misbehave(observe="raise once")
    with pytest.raises(RobotError, match="no status packet"):
        lossy.observe()


def test_stop_without_a_bridge_starts_nothing(make, lerobot_root):
    make().stop()
    assert list(lerobot_root.iterdir()) == []


def test_stop_after_a_killed_bridge_is_an_error(make):
    robot = make()
    robot.observe()
    os.kill(bridge_pid(robot), signal.SIGKILL)
    with pytest.raises(RobotError, match=r"lost|closed"):
        robot.observe()
    wait_for(lambda: not _accepts(robot))
    with pytest.raises(RobotError, match=r"has crashed.*power switch"):
        robot.stop()
    robot.observe()  # a new bridge


def _accepts(robot):
    try:
        robot._process.connect("stop", start=False).close()
    except RobotError:
        return False
    return True


def test_stop_from_another_process_uses_the_same_bridge(make, arm, lerobot_root):
    robot = make()
    robot.observe()
    robot.send(np.array([0.3, 0, 0, 0, 0, 0.5], np.float32))
    count = len(arm.sent)
    script = (
        "import sys, pathlib, dovetail.robots.drivers.lerobot._client as c\n"
        "c.user_folder = lambda: pathlib.Path(sys.argv[1])\n"
        "from dovetail.robots.drivers.lerobot.driver import LeRobotRobot, LeRobotConfig\n"
        "LeRobotRobot(LeRobotConfig.model_validate_json(sys.argv[2])).stop()\n"
    )
    config = robot._config.model_dump_json()
    subprocess.run([sys.executable, "-c", script, str(lerobot_root), config], check=True, timeout=60)
    assert len(arm.sent) > count and arm.sent[-1]["shoulder_pan.pos"] == pytest.approx(math.degrees(0.3), abs=1e-4)


def test_stop_while_the_bus_hangs_refuses_older_commands_and_holds_afterwards(make, arm):
    robot = make()
    other = make()
    assert isinstance(robot, IndependentStop)
    robot.observe()
    stop = other.open_stop()
    arm.misbehave(send="hang")
    failures = []

    def send():
        try:
            robot.send(np.array([0.7, 0, 0, 0, 0, 0.5], np.float32))
        except RobotError as error:
            failures.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    wait_for(lambda: len(arm.events("begin_send")) == len(arm.sent) + 1)
    began_s = time.monotonic()
    with pytest.raises(RobotError, match="No new command can reach the arm"):
        stop.stop()
    assert time.monotonic() - began_s < 1.0
    arm.misbehave()
    thread.join()
    count = len(arm.sent)
    stop.stop()  # now the arm can be held
    assert len(arm.sent) > count
    stop.close()


def test_a_command_from_before_a_stop_is_refused(make, arm, monkeypatch):
    robot = make()
    robot.observe()
    earlier_ns = time.monotonic_ns()
    robot.stop()
    count = len(arm.sent)
    monkeypatch.setattr("dovetail.robots.drivers.lerobot.driver.time.monotonic_ns", lambda: earlier_ns)
    with pytest.raises(RobotError, match="before a STOP"):
        robot.send(np.zeros(6, np.float32))
    monkeypatch.undo()
    assert len(arm.sent) == count
    robot.send(np.zeros(6, np.float32))
    assert len(arm.sent) == count + 1


def test_the_arm_is_held_if_the_control_process_is_killed(arm, lerobot_root):
    script = (
        "import sys, pathlib, time, numpy as np, dovetail.robots.drivers.lerobot._client as c\n"
        "c.user_folder = lambda: pathlib.Path(sys.argv[1])\n"
        "from dovetail.robots.drivers.lerobot.driver import LeRobotRobot, LeRobotConfig\n"
        "robot = LeRobotRobot(LeRobotConfig.model_validate_json(sys.argv[2]))\n"
        "robot.observe()\n"
        "robot.send(np.array([0.4, 0, 0, 0, 0, 0.5], np.float32))\n"
        "print('moving', flush=True)\n"
        "time.sleep(60)\n"
    )
    config = follower_config(arm, linger_s=0.5)
    command = [sys.executable, "-c", script, str(lerobot_root), config.model_dump_json()]
    control = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert control.stdout is not None and control.stdout.readline() == b"moving\n"
    pid = bridge_pid(LeRobotRobot(config))
    count = len(arm.sent)
    os.killpg(control.pid, signal.SIGKILL)  # Ctrl-C and kill reach a whole process group
    control.wait()
    control.stdout.close()
    wait_for(lambda: len(arm.sent) > count)
    assert arm.sent[-1]["shoulder_pan.pos"] == pytest.approx(math.degrees(0.4), abs=1e-4)
    wait_for(lambda: not is_running(pid))  # it ends after linger_s
    assert arm.events("disconnect")[-1]["torque_off"] is False  # an SO-101 would fall


def test_a_second_controller_is_refused(make):
    first, second = make(), make()
    first.observe()
    with pytest.raises(RobotError, match="another process controls"):
        second.observe()
    second.stop()


def test_a_client_without_the_token_gets_nothing(make, arm):
    robot = make()
    robot.observe()
    token = robot._process._folder / "token"
    assert token.stat().st_mode & 0o777 == 0o600 and token.parent.stat().st_mode & 0o777 == 0o700
    command = Path(f"/proc/{bridge_pid(robot)}/cmdline").read_bytes()
    assert token.read_bytes() not in command
    token.write_text("guess")
    with pytest.raises(RobotError, match="token is wrong"):
        make().stop()


def test_a_client_that_says_nothing_does_not_block_a_stop(make, arm):
    import socket

    robot = make()
    robot.observe()
    idle = []
    for _ in range(4):
        idle.append(socket.socket(socket.AF_UNIX))
        idle[-1].connect(str(robot._process.socket_path))
    began_s = time.monotonic()
    robot.stop()
    assert time.monotonic() - began_s < 1.0
    for link in idle:
        link.close()


def test_a_run_that_starts_again_finds_the_arm_held(make, arm):
    first = make(linger_s=5.0)
    first.observe()
    first.close()
    second = make(linger_s=5.0)
    second.observe()
    assert len(arm.events("connect")) == 1  # LeRobot was not connected again: that switches the torque off


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"use_degrees": False}}, "use_degrees is off"),
        ({"robot": "koch_follower"}, "needs `action`, `observation` and `units`"),
        ({"config": {"cameras": {"front": {"type": "mini"}}}}, "needs height and width"),
        ({"units": {"gripper.pos": "deg"}}, "in deg, which cannot become 1"),
        ({"units": {"gripper.pos": "furlong"}}, "unknown unit 'furlong'"),
        ({"keys": {"elbow": "x"}}, "names the axis 'elbow'"),
    ],
)
def test_wrong_settings_are_refused_without_a_process(make, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def test_lerobots_own_limit_and_values_that_are_no_json_are_refused(arm):
    with pytest.raises(ValueError, match="max_relative_target"):
        follower_config(arm, config={"max_relative_target": 5.0})
    with pytest.raises(ValueError, match="no JSON"):
        LeRobotConfig(python="p", robot="r", config={"x": float("nan")})


def test_the_bridge_does_not_inherit_our_python_path(make, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    robot = make()
    robot.observe()
    environment = Path(f"/proc/{bridge_pid(robot)}/environ").read_bytes()
    assert b"/ours" not in environment and str(FAKE).encode() in environment
