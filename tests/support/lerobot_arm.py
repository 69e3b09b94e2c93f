"""The miniature of LeRobot in `fake_lerobot`: its settings, its faults, and what its arm was told to do."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.robots.drivers.lerobot.driver import LeRobotRobot
from dovetail.robots.drivers.lerobot.settings import LeRobotConfig, LeRobotLeaderConfig

FAKE = Path(__file__).parent / "fake_lerobot"
CAMERA = {"type": "mini", "width": 32, "height": 24, "fps": 60, "use_depth": True}


class ArmFolder:
    """The folder that is the hardware of the miniature."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def misbehave(self, **words: str) -> None:
        temporary = self.path / "faults.tmp"
        temporary.write_text(json.dumps(words))
        temporary.rename(self.path / "faults.json")

    def set_state(self, **changes: Any) -> None:
        positions = dict.fromkeys(("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll"), 0.0)
        state = {"positions": positions | {"gripper": 50.0}, "calibrated": True} | changes
        (self.path / "state.json").write_text(json.dumps(state))

    @property
    def positions(self) -> dict[str, float]:
        """In LeRobot's units."""
        positions: dict[str, float] = json.loads((self.path / "state.json").read_text())["positions"]
        return positions

    def events(self, *names: str) -> list[dict[str, Any]]:
        try:
            lines = (self.path / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines]
        return [event for event in events if not names or event["what"] in names]

    @property
    def sent(self) -> list[dict[str, float]]:
        return [event["action"] for event in self.events("send")]


def follower_config(arm: ArmFolder, **changes: Any) -> LeRobotConfig:
    given: dict[str, Any] = {
        "python": sys.executable,
        "env": {"PYTHONPATH": str(FAKE), "OMP_NUM_THREADS": "1"},
        "robot": "so101_follower",
        "config": {"port": str(arm.path), **changes.pop("config", {})},
        "linger_s": 0.3,
        "timeout_s": 5.0,
        "control_hz": 5.0,
    }
    return LeRobotConfig.model_validate(given | changes)


def leader_config(arm: ArmFolder, **changes: Any) -> LeRobotLeaderConfig:
    given: dict[str, Any] = {
        "python": sys.executable,
        "env": {"PYTHONPATH": str(FAKE), "OMP_NUM_THREADS": "1"},
        "teleoperator": "so101_leader",
        "config": {"port": str(arm.path)},
        "linger_s": 0.3,
        "timeout_s": 5.0,
    }
    return LeRobotLeaderConfig.model_validate(given | changes)


def bridge_pid(robot: LeRobotRobot) -> int:
    link = robot._process.connect("stop", start=False)
    link.close()
    return link.pid


def wait_for(what: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    end_s = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < end_s, "timed out"
        time.sleep(0.01)
    return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def end_bridges(root: Path) -> None:
    """End the bridges whose sockets are in a folder. They are no children of this process."""
    for proc in Path("/proc").iterdir():
        try:
            line = (proc / "cmdline").read_bytes() if proc.name.isdigit() else b""
            files = [os.readlink(file) for file in (proc / "fd").iterdir()] if b"dovetail_bridge" in line else []
        except OSError:
            continue
        if any(file.startswith(str(root)) for file in files):
            os.kill(int(proc.name), signal.SIGKILL)
