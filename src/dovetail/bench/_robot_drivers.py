"""Each driver with its emulator, in a process of its own."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib.resources import files
from pathlib import Path

import yaml

from dovetail.core.contracts import Robot
from dovetail.core.problem_report import report_line
from dovetail.emulators.emulator import EmulatorProcess, robot_computer_priority

__all__ = ["HZ", "drivers"]

HZ = 50.0


def drivers() -> dict[str, Callable[[], AbstractContextManager[Robot]]]:
    """A driver and its emulator, by the name in the table. `lerobot` needs the environment of `scripts/lerobot-env`."""
    found: dict[str, Callable[[], AbstractContextManager[Robot]]] = {
        "remote": lambda: _remote(camera=False),
        "remote, 640x480 camera": lambda: _remote(camera=True),
        "franka": _franka,
        "ros2": _ros2,
    }
    python = Path(os.environ.get("LEROBOT_ENV", ".venv-lerobot")).absolute() / "bin" / "python"
    if not python.exists():
        report_line(
            f"robots_drivers: 'lerobot' is left out, because there is no {python}. Run scripts/lerobot-env first"
        )
        return found
    return found | {"lerobot": lambda: _lerobot(python)}


@contextmanager
def _remote(*, camera: bool) -> Iterator[Robot]:
    from dovetail.robots.drivers.remote.connection import spec_of
    from dovetail.robots.drivers.remote.driver import RemoteRobot
    from dovetail.robots.drivers.remote.robot_side.handshake import read_token
    from dovetail.robots.drivers.remote.settings import RemoteRobotConfig

    cameras = ("cameras=[front]", "image_size=[640, 480]") if camera else ()
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        token_file = Path(folder) / "robot.token"
        settings = (f"token_file={token_file}", f"control_hz={HZ:g}", *cameras)
        with EmulatorProcess("remote", *settings, prefix=robot_computer_priority()) as emulator:
            address = emulator.lines[0]
            spec = spec_of(address, read_token(token_file), timeout_s=10.0)
            link = {"address": address, "token_file": str(token_file), "timeout_s": 2.0, "max_clock_error_s": 1.0}
            with closing(RemoteRobot(RemoteRobotConfig.from_mapping({**spec, **link}))) as robot:
                yield robot


@contextmanager
def _franka() -> Iterator[Robot]:
    from dovetail.robots.drivers.franka.driver import FrankaRobot
    from dovetail.robots.drivers.franka.settings import FrankaConfig

    with EmulatorProcess("franka", "port=0", prefix=robot_computer_priority()) as emulator:
        address = emulator.lines[0].removeprefix("http://")
        config = FrankaConfig(address=address, gripper="hil_serl_franka", control_hz=HZ, timeout_s=2.0)
        with closing(FrankaRobot(config)) as robot:
            yield robot


@contextmanager
def _ros2() -> Iterator[Robot]:
    """The robot of the recipe, without the targets of its task."""
    from dovetail.robots.drivers.ros2.driver import Ros2Robot
    from dovetail.robots.drivers.ros2.settings import Ros2Config

    robot = yaml.safe_load(files("dovetail.config").joinpath("recipes/igris-b.yaml").read_text())["robot"]
    del robot["type"]
    robot["dds"]["domain_id"] = domain_id = _free_domain()
    robot |= {"control_hz": HZ, "state": [{**topic, "stale_after_s": 2.0} for topic in robot["state"]]}
    settings = (f"domain_id={domain_id}", "pose=start", f"publish_hz={2 * HZ:g}")
    with (
        EmulatorProcess("igris_b", *settings, prefix=robot_computer_priority()),
        closing(Ros2Robot(Ros2Config.from_mapping(robot))) as driver,
    ):
        yield driver


@contextmanager
def _lerobot(python: Path) -> Iterator[Robot]:
    from dovetail.robots.drivers.lerobot.driver import LeRobotRobot
    from dovetail.robots.drivers.lerobot.settings import LeRobotConfig

    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        port, calibration = Path(folder) / "so101", Path(folder) / "arm.json"
        settings = (f"link={port}", f"calibration_file={calibration}")
        with EmulatorProcess("feetech", *settings, prefix=robot_computer_priority()):
            config = {
                "python": str(python),
                "imports": ["dovetail_lerobot_env"],
                "robot": "so101_follower",
                "config": {"port": str(port), "id": "arm", "calibration_dir": folder},
                "control_hz": HZ,
                "timeout_s": 2.0,
                "linger_s": 0.0,
            }
            with closing(LeRobotRobot(LeRobotConfig.from_mapping(config))) as robot:
                yield robot


def _free_domain() -> int:
    """A DDS domain whose first discovery port is free."""
    for domain_id in range(99, 0, -1):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", 7410 + 250 * domain_id))
            except OSError:
                continue
            return domain_id
    raise RuntimeError("no DDS domain from 1 to 99 is free on this machine")
