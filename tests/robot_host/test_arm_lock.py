"""One process moves an arm at a time."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.schema import PluginSection
from dovetail.core.errors import RobotError
from dovetail.robot_host import arm_lock
from dovetail.robot_host.arm_lock import ArmLock

SPEC = {
    "type": "remote",
    "address": f"arm-{secrets.token_hex(8)}:7412",
    "name": "x",
    "control_hz": 10,
    "observation": {"joint_pos": {"shape": [1]}},
    "action": [
        {
            "name": "a",
            "kind": "joint_target",
            "unit": "rad",
            "low": 0,
            "high": 1,
            "max_speed": 1,
            "measured": "joint_pos",
        }
    ],
}
HOLD = """
import json, sys
from dovetail.config.schema import PluginSection
from dovetail.robot_host.arm_lock import ArmLock
ArmLock(PluginSection.parse("robot", json.loads(sys.argv[1]))).acquire()
"""


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch) -> None:
    monkeypatch.setattr(arm_lock, "_WAIT_S", 0.1)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(arm_lock, "user_folder", lambda: tmp_path / "user")
    return tmp_path / "user"


def _lock(**changes: object) -> ArmLock:
    return ArmLock(PluginSection.parse("robot", {**SPEC, **changes}))


def test_second_process_is_refused_and_told_who_holds_the_lock() -> None:
    import json
    import os

    lock = _lock()
    lock.acquire()
    lock.acquire()  # again in the same object
    command = [sys.executable, "-c", HOLD, json.dumps({**SPEC, "timeout_s": 1.0})]  # the same arm, other settings
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"process {os.getpid()} moves this 'remote' robot already. End it first" in refused.stderr
    lock.close()
    assert subprocess.run(command, check=False).returncode == 0
    lock.acquire()  # a process that has ended holds nothing


def test_other_arm_and_drivers_of_other_packages_are_not_locked() -> None:
    _lock().acquire()
    other = _lock(address="10.0.0.2:7412")
    other.acquire()
    fake = PluginSection.parse("robot", "dovetail.testing.mobile_arm:FakeMobileArm")
    first, second = ArmLock(fake), ArmLock(fake)
    first.acquire()
    second.acquire()
    with pytest.raises(RobotError, match="End it first"):
        _lock(address="10.0.0.2:7412").acquire()


JOINT = {
    "name": "arm",
    "kind": "joint_target",
    "unit": "rad",
    "axes": ["j1"],
    "low": -1,
    "high": 1,
    "max_speed": 1,
}
JOINT |= {"measured": "joint_pos"}
STATE = {"topic": "/s", "msg_type": "JointState", "fields": {"joint_pos": {"attr": "position", "size": 1}}}


def _ros2(*topics: str, domain_id: int = 0, **more: Any) -> dict[str, Any]:
    command = [{"topic": one, "msg_type": "JointState", "fields": {"arm": "position"}} for one in topics]
    dds = {"domain_id": domain_id}
    return {"type": "ros2", "state": [STATE], "command": command, "action": [JOINT], "dds": dds, **more}


def _franka(address: str, **more: Any) -> dict[str, Any]:
    return {"type": "franka", "address": address, "gripper": "none", **more}


def _lerobot(robot: str = "so101_follower", python: str = "p", **config: Any) -> dict[str, Any]:
    return {"type": "lerobot", "robot": robot, "python": python, "config": config}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_franka("a:5000"), _franka("http://A:5000/", control_hz=20.0)),
        (_franka("127.0.0.1:5000"), {"type": "franka_emulated", "address": "localhost:5000"}),
        (_franka("a:5000", right_address="b:5000"), _franka("b:5000")),
        (_ros2("/left", "/right"), _ros2("/right", control_hz=50.0, name="other")),
        (_lerobot(port="/dev/ttyACM0"), _lerobot("so100_follower", "other", port="/dev/ttyACM0", id="b")),
        (_lerobot(port="/dev/ttyACM0"), _lerobot(left_arm_config={"port": "/dev/ttyACM0"})),
        (_lerobot("lekiwi_client", remote_ip="10.0.0.9"), _lerobot("lekiwi_client", remote_ip="10.0.0.9", id="b")),
        (_lerobot("plugin", id="a"), _lerobot("plugin", "other", id="a")),
    ],
)
def test_one_arm_is_locked_although_other_settings_differ(folder, one: Any, other: Any) -> None:
    first, second = (ArmLock(PluginSection.parse("robot", section)) for section in (one, other))
    first.acquire()
    with pytest.raises(RobotError, match="End it first"):
        second.acquire()
    first.close()
    second.acquire()
    with pytest.raises(RobotError, match="End it first"):
        first.acquire()
    second.close()
    first.acquire()
    first.close()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_franka("a:5000"), _franka("a:5001")),
        (_ros2("/left"), _ros2("/right")),
        (_ros2("/left"), _ros2("/left", domain_id=1)),
        (_lerobot(port="/dev/ttyACM0"), _lerobot(port="/dev/ttyACM1")),
        (
            _lerobot(port="/dev/ttyACM0", cameras={"a": {"port": "/dev/video0"}}),
            _lerobot(port="/dev/ttyACM1", cameras={"a": {"port": "/dev/video0"}}),
        ),
    ],
)
def test_two_arms_are_moved_at_the_same_time(folder, one: Any, other: Any) -> None:
    locks = [ArmLock(PluginSection.parse("robot", section)) for section in (one, other)]
    for lock in locks:
        lock.acquire()
    for lock in locks:
        lock.close()


def test_link_to_a_serial_port_is_the_same_arm(folder, tmp_path) -> None:
    (tmp_path / "ttyACM0").touch()
    (tmp_path / "by-id").symlink_to(tmp_path / "ttyACM0")
    names = [_lerobot(port=str(tmp_path / name)) for name in ("ttyACM0", "by-id")]
    first, second = (ArmLock(PluginSection.parse("robot", section)) for section in names)
    first.acquire()
    with pytest.raises(RobotError, match="End it first"):
        second.acquire()
    first.close()


def test_lock_file_that_is_a_link_is_refused_and_its_target_kept(folder, tmp_path) -> None:
    """In /tmp, another user could have made the folder first."""
    lock = _lock()
    (folder / "arms").mkdir(parents=True)
    (tmp_path / "precious").write_text("data")
    arm_lock._lock_file(lock._ids[0]).symlink_to(tmp_path / "precious")
    with pytest.raises(RobotError, match=r"cannot lock the 'remote' robot: .*symbolic link"):
        lock.acquire()
    assert (tmp_path / "precious").read_text() == "data"


def test_folder_of_locks_is_private_also_its_parent(folder) -> None:
    """The LeRobot bridge refuses a folder that others can read, and both use the same one."""
    lock = _lock()
    lock.acquire()
    lock.close()
    assert folder.stat().st_mode & 0o777 == (folder / "arms").stat().st_mode & 0o777 == 0o700


def test_folder_of_another_user_is_refused(folder, monkeypatch) -> None:
    folder.mkdir()
    monkeypatch.setattr("dovetail.core.disk.os.getuid", lambda: 12345)
    with pytest.raises(RobotError, match=r"cannot lock the 'remote' robot: .* belongs to another user"):
        _lock().acquire()
