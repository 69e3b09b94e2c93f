"""A whole run with real drivers and their emulators, which STOP or a fault brings to rest.

with DriverSystem(folder, robot="franka", layout="processes") as system:
    press = system.press("console")                    # as of StopSystem
    since_ns = system.suffer("connection cut")
    system.arms[0].delay_ns(since_ns)                  # by where the arm really is
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from dovetail.bench.stop._system import StopSystem
from dovetail.emulators.emulator import EmulatorProcess
from dovetail.emulators.remote.emulator import RemoteEmulator, RemoteEmulatorConfig
from dovetail.robots.drivers.ros2.dds import DdsNode
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import QosConfig
from support import TESTS
from support.lerobot_arm import ArmFolder, follower_config
from support.ros2_robots import free_domain, igris_settings, loopback

__all__ = ["DRIVERS", "FAULTS", "STILL", "DriverSystem"]

FAULTS = ("control killed", "robot paused", "connection cut")
STILL = {
    "franka": 0.0015,
    "ros2": 0.02,
    "remote": 0.01,
    "lerobot": 0.5,
}  # m, rad, rad, deg: an arm stands within this

_PAUSE_S = 1.5
_LOOK_S = 0.01
_QUIET_NS = 500_000_000  # an arm that did not move for so long stands
_MARK = "DOVETAIL_TEST_ARM"  # in the environment of what a test starts

Look = Callable[[], Any]  # where the arm really is


class Wire:
    """A TCP connection that can be cut."""

    def __init__(self, port: int) -> None:
        self._port, self._ends, self._is_cut = port, list[socket.socket](), False
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept() of the other thread
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def pause(self) -> None:
        """Deliver nothing until `resume`, then what was sent meanwhile."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                if self._is_cut:
                    ours.close()
                    return
                theirs = socket.create_connection(("127.0.0.1", self._port))
                self._ends += (ours, theirs)
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class Driver(NamedTuple):
    """A driver and the emulated arm behind it."""

    robot: dict[str, Any]
    swing: dict[str, Any]  # settings of the task and the policy
    look: Look
    pause: Callable[[bool], None]  # the robot's computer or the connection to it; False: continue
    cut: Callable[[], None] | None = None
    safety: dict[str, Any] = {}  # noqa: RUF012


@contextlib.contextmanager
def franka() -> Iterator[Driver]:
    with EmulatorProcess("franka", "port=0") as emulator:
        url = emulator.lines[0]

        def look() -> Any:
            with urllib.request.urlopen(f"{url}/getstate", data=b"", timeout=3.0) as answer:
                return np.array(json.load(answer)["pose"][:3])

        wire = Wire(int(url.rpartition(":")[2]))
        robot = {"type": "franka", "address": wire.address, "gripper": "hil_serl_franka", "timeout_s": 0.5}
        swing = {"kind": "ee_delta", "step": 0.01}
        safety = {"workspace": {"low": [0.2, -0.3, 0.0], "high": [0.8, 0.3, 0.7]}}
        yield Driver(robot, swing, look, pausing(lambda: [emulator.process.pid]), wire.cut, safety)


@contextlib.contextmanager
def ros2() -> Iterator[Driver]:
    """DDS has no connection that could be cut: see test_ros2_faults."""
    domain_id, codec, joints = free_domain(), Codec(), "sensor_msgs/msg/JointState"
    with EmulatorProcess("igris_b", f"domain_id={domain_id}", "pose=start") as emulator:
        node = DdsNode(loopback(domain_id), codec)
        heard = node.subscribe("/igris_b/packy/joint_states", joints, QosConfig())
        node.start()

        def look() -> Any:
            sample = heard.newest
            return None if sample is None else np.array(codec.decode(sample.payload, joints).position)

        robot = {"type": "ros2", **igris_settings(domain_id)}
        swing = {"kind": "joint_target", "step": 0.06}
        try:
            yield Driver(robot, swing, look, pausing(lambda: [emulator.process.pid]))
        finally:
            node.close()


@contextlib.contextmanager
def remote() -> Iterator[Driver]:
    """The robot's computer is this process, so its connection is paused."""
    with RemoteEmulator(RemoteEmulatorConfig(control_hz=20.0)) as emulator:
        wire = Wire(int(emulator.server.address.rpartition(":")[2]))
        robot = {"type": "remote", **emulator.robot_settings(address=wire.address, max_clock_error_s=1.0)}
        swing = {"kind": "joint_target", "fingers": "gripper", "step": 0.06}

        def pause(paused: bool) -> None:
            (wire.pause if paused else wire.resume)()

        yield Driver(robot, swing, emulator.arm.position, pause, wire.cut)


@contextlib.contextmanager
def lerobot() -> Iterator[Driver]:
    """Our bridge process with a miniature of LeRobot, whose arm is a folder. The bridge is paused, or killed: a cut."""
    with tempfile.TemporaryDirectory(prefix="dv-", dir="/tmp") as folder:
        arm = ArmFolder(Path(folder))
        arm.set_state()
        config = follower_config(arm, control_hz=20.0, timeout_s=0.9)
        robot = {"type": "lerobot", **config.model_dump(mode="json")}
        robot["env"][_MARK] = folder
        swing = {"kind": "joint_target", "fingers": "gripper", "step": 0.02}

        def look() -> Any:
            with contextlib.suppress(ValueError, FileNotFoundError):  # it is being written
                return np.array(list(json.loads((arm.path / "state.json").read_text())["positions"].values()))
            raise OSError("no state")

        def bridges() -> list[int]:
            return processes(f"{_MARK}={folder}", "dovetail_bridge")

        def cut() -> None:
            for pid in bridges():
                os.kill(pid, signal.SIGKILL)

        try:
            yield Driver(robot, swing, look, pausing(bridges), cut)
        finally:
            cut()


DRIVERS = {"franka": franka, "ros2": ros2, "lerobot": lerobot, "remote": remote}


def pausing(pids: Callable[[], list[int]]) -> Callable[[bool], None]:
    """Pauses and continues processes."""

    def pause(paused: bool) -> None:
        found = pids()
        assert found, "there is no process to pause"
        for pid in found:
            os.kill(pid, signal.SIGSTOP if paused else signal.SIGCONT)

    return pause


def processes(mark: str, title: str) -> list[int]:
    """Those with a mark in their environment and a text in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_ours = entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            if is_ours and title.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


class WatchedArm(threading.Thread):
    """When an arm moved, by where it is."""

    def __init__(self, look: Look, *, still: float) -> None:
        super().__init__(daemon=True)
        self._look, self._still, self._ends = look, still, threading.Event()
        self._moved_ns: list[int] = []

    def run(self) -> None:
        place: Any = None
        while not self._ends.wait(_LOOK_S):
            try:
                now_ns, here = time.monotonic_ns(), self._look()
            except OSError:  # a paused emulator does not answer
                continue
            if here is None or (place is not None and np.abs(here - place).max() <= self._still):
                continue
            if place is not None:
                self._moved_ns.append(now_ns)
            place = here

    def motions(self, *, after_ns: int = 0) -> list[int]:
        """Times at which the arm was further than `still` from where it was at the time before, in monotonic ns."""
        return [at_ns for at_ns in self._moved_ns if at_ns >= after_ns]

    def delay_ns(self, pressed_ns: int) -> int | None:
        """Time from a press until the arm stood. 0: it stood already. None: it still moves."""
        last_ns = self._moved_ns[-1] if self._moved_ns else 0
        return None if time.monotonic_ns() - last_ns < _QUIET_NS else max(last_ns - pressed_ns, 0)

    def close(self) -> None:
        self._ends.set()
        self.join()


class DriverSystem(StopSystem):
    """`dovetail run` with a driver and its emulator; on Ray, with several arms."""

    def __init__(self, folder: Path, *, robot: str, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self._robot = robot
        self._drivers: list[Driver] = []

    def open_arms(self, stack: contextlib.ExitStack) -> list[Any]:
        self._drivers = [stack.enter_context(DRIVERS[self._robot]()) for _ in range(self.num_arms)]
        arms = [WatchedArm(driver.look, still=STILL[self._robot]) for driver in self._drivers]
        for arm in arms:
            arm.start()
            stack.callback(arm.close)
        return arms

    @property
    def environment(self) -> dict[str, str]:
        inherited = super().environment
        return {**inherited, "PYTHONPATH": os.pathsep.join((str(TESTS), inherited["PYTHONPATH"]))}

    def config(self) -> str:
        first, operator = self._drivers[0], yaml.safe_load(self.operator())
        config = {
            "task": {"type": "support.swing_arm:SwingArm", **first.swing},
            "robot": first.robot,
            "safety": first.safety,
            "policy": {"type": "support.swing_policy:SwingPolicy", "hidden": [8], "horizon": 4, **first.swing},
            "actor": {"type": "sequential", "layout": "processes"},
            "algorithm": {"type": "rlpd", "batch_size": 8, "hidden": [8]},
            "learner": {"utd": 0.001, "warmup_updates": 0, "bc_updates": 0},
            "run": {"demos": 0, "env_steps": 100_000_000, "untrained_episodes": 0, "video_episodes": 0},
            "operator": operator if self.layout != "Ray" else {"type": "none"},
        }
        if self.layout == "Ray":
            config["runtime"] = "ray"
            config["cluster"] = {
                "robots": {
                    f"arm-{number}": {"robot": driver.robot, "operator": operator if number == 0 else {}}
                    for number, driver in enumerate(self._drivers)
                }
            }
        return yaml.safe_dump(json.loads(json.dumps(config)))  # copies, because the loader may refuse aliases

    def suffer(self, fault: str) -> int:
        """Let a fault happen to the first arm. Returns when it should begin to stand, in monotonic ns."""
        driver, began_ns = self._drivers[0], time.monotonic_ns()
        if fault == "control killed":
            controls = [pid for pid, title in self.processes().items() if "process_main control " in title]
            os.kill(controls[0], signal.SIGKILL)
        elif fault == "robot paused":
            driver.pause(True)
            time.sleep(_PAUSE_S)
            driver.pause(False)
            return time.monotonic_ns()  # the arm stands while it is paused, and should not move on
        else:
            assert driver.cut is not None
            driver.cut()
        return began_ns
