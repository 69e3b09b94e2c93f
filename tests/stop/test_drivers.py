"""STOP over real drivers and their emulators: the arm stands soon, and nothing moves it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dovetail.bench.stop._system import wait_for
from dovetail.emulators.emulator import EmulatorProcess
from dovetail.emulators.remote.emulator import RemoteEmulator, RemoteEmulatorConfig
from dovetail.live.run_stop import Kind, RunStop
from dovetail.robots.drivers.ros2.dds import DdsNode
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import QosConfig
from support import TESTS
from support.lerobot_arm import ArmFolder, follower_config
from support.ros2_robots import free_domain, igris_settings, loopback

BOUND_S = {"franka": 1.5, "ros2": 1.0, "remote": 1.0, "lerobot": 1.5}  # generous: other work runs beside the tests
PAUSE_S = 1.5
STILL = {
    "franka": 0.0015,
    "ros2": 0.02,
    "remote": 0.01,
    "lerobot": 0.5,
}  # m, rad, rad, deg: an arm stands within this
WATCH_S = 4.0  # after the event: nothing may move the arm again

MARK = f"{os.getpid()}-{time.monotonic_ns()}"  # in the environment of what this test starts
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

    settings: dict[str, Any]
    look: Look
    pause: Callable[[bool], None]  # the robot's computer or the connection to it; False: continue
    cut: Callable[[], None] | None = None


@contextlib.contextmanager
def franka() -> Iterator[Driver]:
    with EmulatorProcess("franka", "port=0") as emulator:
        url = emulator.lines[0]

        def look() -> Any:
            with urllib.request.urlopen(f"{url}/getstate", data=b"", timeout=3.0) as answer:
                return np.array(json.load(answer)["pose"][:3])

        wire = Wire(int(url.rpartition(":")[2]))
        robot = {"type": "franka", "address": wire.address, "gripper": "hil_serl_franka", "timeout_s": 0.5}
        task = {"type": "support.swing_arm:SwingArm", "kind": "ee_delta", "step": 0.01}
        safety = {"workspace": {"low": [0.2, -0.3, 0.0], "high": [0.8, 0.3, 0.7]}}
        settings = {"robot": robot, "task": task, "safety": safety}
        yield Driver(settings, look, pausing(lambda: [emulator.process.pid]), wire.cut)


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
        task = {"type": "support.swing_arm:SwingArm", "kind": "joint_target", "step": 0.06}
        try:
            yield Driver({"robot": robot, "task": task}, look, pausing(lambda: [emulator.process.pid]))
        finally:
            node.close()


@contextlib.contextmanager
def remote() -> Iterator[Driver]:
    """The robot's computer is this process, so its connection is paused."""
    with RemoteEmulator(RemoteEmulatorConfig(control_hz=20.0)) as emulator:
        wire = Wire(int(emulator.server.address.rpartition(":")[2]))
        robot = {"type": "remote", **emulator.robot_settings(address=wire.address, max_clock_error_s=1.0)}
        task = {"type": "support.swing_arm:SwingArm", "kind": "joint_target", "gripper": "gripper", "step": 0.06}

        def pause(paused: bool) -> None:
            (wire.pause if paused else wire.resume)()

        yield Driver({"robot": robot, "task": task}, emulator.arm.position, pause, wire.cut)


@contextlib.contextmanager
def lerobot() -> Iterator[Driver]:
    """Our bridge process with a miniature of LeRobot, whose arm is a folder. The bridge is paused, or killed: a cut."""
    with tempfile.TemporaryDirectory(prefix="dv-", dir="/tmp") as folder:
        arm = ArmFolder(Path(folder))
        arm.set_state()
        robot = {"type": "lerobot", **follower_config(arm, control_hz=20.0, timeout_s=0.9).model_dump(mode="json")}
        task = {"type": "support.swing_arm:SwingArm", "kind": "joint_target", "gripper": "gripper", "step": 0.02}

        def look() -> Any:
            with contextlib.suppress(ValueError, FileNotFoundError):  # it is being written
                return np.array(list(json.loads((arm.path / "state.json").read_text())["positions"].values()))
            raise OSError("no state")

        def bridges() -> list[int]:
            return our_processes(b"dovetail_bridge")

        def cut() -> None:
            for pid in bridges():
                os.kill(pid, signal.SIGKILL)

        try:
            yield Driver({"robot": robot, "task": task}, look, pausing(bridges), cut)
        finally:
            cut()


def pausing(pids: Callable[[], list[int]]) -> Callable[[bool], None]:
    """Pauses and continues processes."""

    def pause(paused: bool) -> None:
        found = pids()
        assert found, "there is no process to pause"
        for pid in found:
            os.kill(pid, signal.SIGSTOP if paused else signal.SIGCONT)

    return pause


class Collecting:
    """`dovetail collect` with a driver, in processes of its own."""

    def __init__(self, folder: Path, driver: Driver) -> None:
        self.folder, self._driver = folder, driver
        config = {
            **driver.settings,
            "actor": {"type": "sequential", "layout": "processes"},
            "operator": {"type": "scripted"},
            "policy": {"type": "gaussian_mlp", "hidden": [8]},
            "algorithm": {"type": "imitation"},
            "run": {"demos": 1, "env_steps": 0, "seed": 1},
        }
        (folder / "run.json").write_text(json.dumps(config))
        self._env = {**os.environ, "DOVETAIL_TEST": MARK, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        self.log = (folder / "log").open("w")
        command = ["collect", "run.json", "--name", "r", "--runs-dir", str(folder)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail.cli", *command], cwd=folder, env=self._env, stdout=self.log, stderr=self.log
        )  # fmt: skip

    def happen(self, event: str) -> float:
        """Returns when the arm should begin to stop, monotonic."""
        if event == "dovetail stop":
            stop = RunStop.attach(self.folder / "r")
            try:
                command = [sys.executable, "-m", "dovetail.cli", "stop", str(self.folder / "r")]
                subprocess.run(command, env=self._env, check=True, capture_output=True, timeout=60.0)
                return next(one.time_ns for one in stop.records(start=0) if one.kind is Kind.PRESS) / 1e9
            finally:
                stop.close()
        if event == "control killed":
            (control,) = our_processes(b"process_main\0control")
            began_s = time.monotonic()
            os.kill(control, signal.SIGKILL)
            return began_s
        began_s = time.monotonic()
        if event == "SIGTERM":
            self.process.send_signal(signal.SIGTERM)
        elif event == "robot paused":
            self._driver.pause(True)
            time.sleep(PAUSE_S)
            self._driver.pause(False)
            return time.monotonic()  # the arm stands while it is paused, and should not move on
        else:
            assert self._driver.cut is not None
            self._driver.cut()
        return began_s

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def our_processes(what: bytes) -> list[int]:
    """Of the run, by a part of their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_ours = entry.name.isdigit() and MARK.encode() in (entry / "environ").read_bytes()
            if is_ours and what in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


class Watcher(threading.Thread):
    """Where the arm is, all the time."""

    def __init__(self, look: Look) -> None:
        super().__init__(daemon=True)
        self._look, self.ends = look, threading.Event()
        self._seen: list[tuple[float, Any]] = []

    def run(self) -> None:
        while not self.ends.wait(0.01):
            with contextlib.suppress(OSError):  # a paused emulator does not answer
                self._seen.append((time.monotonic(), self._look()))

    def between(self, first_s: float, last_s: float) -> tuple[Any, Any]:
        """Times [N] and positions [N, D]."""
        chosen = [(at_s, at) for at_s, at in self._seen if first_s <= at_s <= last_s]
        return np.array([at_s for at_s, _ in chosen]), np.array([at for _, at in chosen])


DRIVERS = {"franka": franka, "ros2": ros2, "lerobot": lerobot, "remote": remote}
EVENTS = ("dovetail stop", "SIGTERM", "control killed", "robot paused", "connection cut")
CASES = [
    pytest.param(driver, event, marks=pytest.mark.extended if event == "dovetail stop" else pytest.mark.slow)
    for driver in DRIVERS
    for event in EVENTS
    if (driver, event) != ("ros2", "connection cut")
]


@pytest.mark.parametrize(("name", "event"), CASES)
def test_the_arm_stands_and_stays(
    name: str, event: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DRIVERS[name]() as driver:
        run, watcher = Collecting(tmp_path, driver), Watcher(driver.look)
        try:
            wait_for(lambda: driver.look() is not None, timeout_s=20.0, what="a measurement")
            first = driver.look()

            def moves() -> bool:
                assert run.process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                return bool(np.abs(driver.look() - first).max() > 10 * STILL[name])

            wait_for(moves, timeout_s=120.0, what="the arm to move")
            watcher.start()
            time.sleep(2.0)
            since_s = run.happen(event)
            time.sleep(max(since_s + WATCH_S - time.monotonic(), 0.5))
            times, seen = watcher.between(since_s - 1.0 - PAUSE_S * (event == "robot paused"), time.monotonic())
            rest = seen[-1]
            moving = times[np.abs(seen - rest).max(axis=1) > STILL[name]]
            before = seen[times < since_s]
            assert np.ptp(before, axis=0).max() > 5 * STILL[name], "the arm did not move before the event"
            stood_s = max(float(moving[-1] - since_s), 0.0) if len(moving) else 0.0
            with capsys.disabled():  # for the pages of the drivers
                sys.stdout.write(f"\n{name}, {event}: the arm stood after {stood_s:.3f} s ")
            assert stood_s < BOUND_S[name], (tmp_path / "log").read_text()[-2000:]
        finally:
            watcher.ends.set()
            run.close()
