"""LeRobot's own code, in its own environment, against the emulated Feetech bus.

`scripts/lerobot-env` makes the environment the first time, which takes minutes and the network; LEROBOT_ENV sets where
else one is.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.clock import RealClock
from dovetail.core.errors import DovetailError, RobotError
from dovetail.emulators.feetech.emulator import FeetechEmulator, FeetechEmulatorConfig
from dovetail.processes.priority import CONTROL_PRIORITY
from dovetail.robots.drivers.lerobot.dovetail_bridge.priority import BRIDGE_PRIORITY
from dovetail.robots.drivers.lerobot.driver import LeRobotRobot
from dovetail.robots.drivers.lerobot.settings import LeRobotConfig, LeRobotLeaderConfig
from dovetail.robots.drivers.lerobot.teleoperator import LeRobotTeleoperator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing import check_robot
from support import SUPPORT
from support.lerobot_arm import wait_for

pytestmark = pytest.mark.slow

TICK_RAD = 2 * np.pi / 4096


@pytest.fixture
def make_bus(tmp_path):
    made = []

    def build(name="arm", **settings):
        config = FeetechEmulatorConfig(calibration_file=str(tmp_path / f"{name}.json"), **settings)
        made.append(FeetechEmulator(config))
        made[-1].start()
        return made[-1]

    yield build
    for bus in made:
        bus.close()


@pytest.fixture
def make_robot(python, tmp_path, lerobot_root):
    made = []

    def build(bus, **changes):
        given = {
            "python": python,
            "imports": ["dovetail_lerobot_env"],
            "env": {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            "robot": "so101_follower",
            "config": {
                "port": bus.port,
                "id": "arm",
                "calibration_dir": str(tmp_path),
                **changes.pop("config", {}),
            },
            "linger_s": 0.5,
            "timeout_s": 3.0,
            "control_hz": 10.0,
        }
        made.append(LeRobotRobot(LeRobotConfig.model_validate(given | changes)))
        return made[-1]

    yield build
    for robot in made:
        robot.close()


def test_lerobots_own_bus_reads_writes_and_calibrates(python, make_bus):
    bus = make_bus(falls=False)
    script = SUPPORT / "lerobot_feetech_script.py"
    done = subprocess.run([python, script, bus.port], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ping"] == {str(i): 777 for i in range(1, 7)}
    registers = found["registers"]
    assert registers["Present_Voltage"] == 74 and registers["Homing_Offset"] == -15
    assert (registers["Min_Position_Limit"], registers["Max_Position_Limit"]) == (0, 4095)
    assert all(abs(value) < 0.1 for value in found["degrees"].values())  # all joints are in the middle
    assert all(abs(value - 2047) <= 1 for value in found["after_homing"].values())
    assert set(found["torque"].values()) == {1}
    assert not bus.motor(1).has_torque  # disconnect() switches it off


def test_so101_follower_connects_moves_and_holds(make_bus, make_robot):
    bus = make_bus()
    robot = make_robot(bus)
    observation = robot.observe()
    assert bus.motor(1).get("P_Coefficient") == 16 and bus.motor(6).get("Max_Torque_Limit") == 500
    assert all(bus.motor(i).has_torque for i in range(1, 7))
    target = np.concatenate([observation.values["joint_pos"], observation.values["gripper"]])
    target[:3] += (0.3, 0.2, -0.2)
    target[5] = 0.8
    robot.send(target)
    wait_for(lambda: np.abs(robot.observe().values["joint_pos"] - target[:5]).max() < 0.01)  # it sags
    wait_for(lambda: abs(robot.observe().values["gripper"][0] - 0.8) < 0.01)
    wait_for(lambda: abs(bus.motor(1).position - (2047.5 + np.rad2deg(target[0]) * 4095 / 360)) <= 1)
    robot.send(target - np.array([0.8, 0, 0, 0, 0, 0], np.float32))
    time.sleep(0.05)
    robot.stop()
    stopped = bus.motor(1).position
    time.sleep(0.3)
    assert abs(bus.motor(1).position - stopped) <= 60  # it was on its way at up to 3000 ticks a second
    assert bus.motor(1).has_torque
    robot.close()
    wait_for(lambda: not robot._process.socket_path.exists())
    assert all(bus.motor(i).has_torque for i in range(1, 7))  # `release` is off


def test_looking_writes_to_no_motor_and_leaves_the_torque_as_it_is(make_bus, make_robot):
    bus = make_bus(falls=False)
    bus.motor(2).set("Torque_Enable", 1)
    bus.motor(1).set("Goal_Position", bus.motor(1).position + 900)  # of an earlier use
    robot = make_robot(bus, release=True)
    robot.look_only()
    for _ in range(5):
        robot.observe()
    robot.close()
    wait_for(lambda: not robot._process.socket_path.exists())
    assert bus.num_packets > 10 and bus.num_writes == 0
    assert [bus.motor(i).has_torque for i in range(1, 7)] == [False, True, False, False, False, False]


def real_time_priorities(robot):
    """Of all threads of the bridge; those with the usual priority are left out."""
    threads = [int(thread) for thread in os.listdir(f"/proc/{robot._link.pid}/task")]
    return [
        os.sched_getparam(one).sched_priority for one in threads if os.sched_getscheduler(one) == os.SCHED_FIFO
    ]


def test_only_threads_that_drive_the_arm_have_a_priority_and_it_is_below_that_of_the_control_process(
    make_bus, make_robot
):
    bus = make_bus()
    looking = make_robot(bus)
    looking.look_only()
    looking.observe()
    assert real_time_priorities(looking) == []
    looking.close()
    robot = make_robot(bus)
    robot.observe()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pytest.skip("this user may not use real-time priorities")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    assert real_time_priorities(robot) == [BRIDGE_PRIORITY]
    assert BRIDGE_PRIORITY < CONTROL_PRIORITY
    robot.stop()
    assert real_time_priorities(robot) in ([BRIDGE_PRIORITY], [BRIDGE_PRIORITY] * 2)  # the second one is ending


def test_the_bridge_sleeps_while_it_waits_for_a_slow_bus(make_bus, make_robot):
    bus = make_bus(falls=False)
    robot = make_robot(bus)
    robot.observe()
    bus.misbehave(delay_s=0.004)  # of each motor
    before_s, began_s = processor_s(robot._link.pid), time.monotonic()
    while time.monotonic() - began_s < 3.0:
        robot.observe()
    assert processor_s(robot._link.pid) - before_s < 0.5


def processor_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_check_robot_passes(make_bus, make_robot):
    robot = make_robot(make_bus(), control_hz=5.0)
    check_robot(lambda: robot, num_ticks=10)


def test_old_targets_do_not_move_the_arm_when_it_is_connected(make_bus, make_robot):
    bus = make_bus(falls=False)
    before = bus.motor(1).position
    bus.motor(1).set("Goal_Position", before + 900)  # of an earlier use
    make_robot(bus).observe()
    time.sleep(0.3)
    assert abs(bus.motor(1).position - before) <= 2


def test_a_calibration_that_differs_from_the_motors_is_one_line_and_no_torque(make_bus, make_robot, tmp_path):
    bus = make_bus()
    calibration = json.loads((tmp_path / "arm.json").read_text())
    calibration["elbow_flex"]["homing_offset"] += 10
    (tmp_path / "arm.json").write_text(json.dumps(calibration))
    with pytest.raises(RobotError, match=r"Run: lerobot-calibrate --robot.type=so101_follower") as caught:
        make_robot(bus).observe()
    assert "\n" not in str(caught.value)
    assert not any(bus.motor(i).has_torque for i in range(1, 7))


def test_a_dead_motor_and_a_wrong_port_are_one_line(make_bus, make_robot):
    bus = make_bus(faults={"dead": [3]})
    with pytest.raises(RobotError, match="Missing motor IDs: - 3") as caught:
        make_robot(bus).observe()
    assert "\n" not in str(caught.value)
    with pytest.raises(RobotError, match="Could not connect on port '/dev/nowhere'"):
        make_robot(bus, config={"port": "/dev/nowhere"}).observe()


def test_two_bridges_with_different_settings_do_not_share_a_port(make_bus, make_robot):
    bus = make_bus()
    first, second = make_robot(bus), make_robot(bus, release=True)
    first.observe()
    with pytest.raises(RobotError, match=f"{bus.port} is used by another LeRobot bridge, process [0-9]+"):
        second.observe()


def test_faults_of_the_bus_are_faults_and_never_zeros(make_bus, make_robot):
    bus = make_bus()
    robot = make_robot(bus)
    here = robot.observe().values["joint_pos"]
    for faults, message in (
        ({"lose": 1.0}, "no status packet"),
        ({"corrupt": 1.0}, "Incorrect status packet"),
        ({"shorten": 1.0}, "Incorrect status packet"),  # LeRobot itself takes the checksum for data
        ({"dead": (4,)}, "no status packet"),
    ):
        bus.misbehave(**faults)
        with pytest.raises(RobotError, match=message) as caught:
            robot.observe()
        assert "\n" not in str(caught.value)
        bus.misbehave()
        np.testing.assert_allclose(robot.observe().values["joint_pos"], here, atol=3 * TICK_RAD)
    bus.misbehave(overload=(2,))  # LeRobot's synchronous reads ignore the error byte

    def overloaded():
        try:
            robot.observe()
        except RobotError as error:
            return "motor 'shoulder_lift' " in str(error) and "Overload error" in str(error)
        return False

    wait_for(overloaded)


def test_200_random_faults_of_the_bus_never_move_the_arm_out_of_its_limits(make_bus, make_robot):
    bus = make_bus()
    robot = make_robot(bus, control_hz=20.0, timeout_s=1.0)
    safe = SafeRobot(robot, SafetyConfig(stale_after_s=2.0, stop_after_s=4.0), RealClock())
    safe.observe()
    rng = random.Random(11)
    texts: list[str] = []
    for _ in range(200):
        kind = rng.choice(["lose", "corrupt", "shorten", "garbage", "delay_s", "dead", "overload"])
        amount = {"delay_s": 0.03, "dead": (rng.randint(1, 6),), "overload": (rng.randint(1, 6),)}
        bus.misbehave(**{kind: amount.get(kind, rng.choice([0.2, 1.0]))})
        began_s = time.monotonic()
        before = [bus.motor(i).position for i in range(1, 7)]
        for _ in range(3):
            try:
                observation = safe.observe()
                assert np.isfinite(observation.values["joint_pos"]).all()
                low, high = safe.spec.action.bounds
                safe.send(np.asarray(low + (high - low) * np.float32(rng.random()), np.float32))
            except DovetailError as error:
                texts.append(str(error))
                break
            time.sleep(0.01)
        passed_s = time.monotonic() - began_s
        assert passed_s < 8.0, kind
        bus.misbehave()
        if safe.fault is not None:
            safe.acknowledge()
        wait_for(lambda: _observes(safe))
        if kind != "overload":  # such a joint has no torque and falls
            for joint in range(6):
                limit = safe.spec.parts[0].max_speed[0] if joint < 5 else 4.0
                moved = abs(bus.motor(joint + 1).position - before[joint]) * TICK_RAD
                assert moved <= limit * (time.monotonic() - began_s + 0.3) + 0.1, (kind, joint)
    assert len(texts) > 40 and not any("\n" in text for text in texts)


def _observes(safe):
    try:
        safe.observe()
    except DovetailError:
        if safe.fault is not None:
            safe.acknowledge()
        return False
    return safe.problem is None


def test_so101_leader_is_read_and_a_leader_of_this_version_cannot_follow(python, make_bus, tmp_path, lerobot_root):
    bus = make_bus("lead", mode="leader", script="wave", script_period_s=2.0, script_amplitude=250)
    given = {
        "python": python,
        "imports": ["dovetail_lerobot_env"],
        "env": {"OMP_NUM_THREADS": "1"},
        "teleoperator": "so101_leader",
        "config": {"port": bus.port, "id": "lead", "calibration_dir": str(tmp_path)},
        "linger_s": 0.5,
        "timeout_s": 3.0,
    }
    leader = LeRobotTeleoperator(LeRobotLeaderConfig.model_validate(given))
    seen = []
    for _ in range(30):
        seen.append(leader.read())
        time.sleep(0.03)
    assert np.ptp(np.array(seen), axis=0)[:5].min() > 0.1
    assert not any(bus.motor(i).has_torque for i in range(1, 7)) and leader.events() == {}
    leader.close()
    wait_for(lambda: not leader._process.socket_path.exists())
    follows = LeRobotTeleoperator(LeRobotLeaderConfig.model_validate(given | {"follow": True}))
    with pytest.raises(RobotError, match=r"LeRobot 0.4.4 cannot follow"):
        follows.read()
