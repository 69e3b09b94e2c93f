"""One process moves an arm at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail.config.schema import PluginSection
from dovetail.core.errors import RobotError
from dovetail.robot_host import arm_lock
from dovetail.robot_host.arm_lock import ArmLock

SPEC = {
    "type": "remote",
    "address": "10.0.0.1:7412",
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
def _own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(arm_lock, "_WAIT_S", 0.1)


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
