"""Random faults of the LeRobot process and of its device: each one ends in a RobotError in bounded time, never in a hang."""

import json
import os
import random
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.clock import RealClock
from dovetail.core.errors import DovetailError, RobotError
from dovetail.core.types import Observation
from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message, WireError, encode, receive
from dovetail.robots.drivers.lerobot.driver import LeRobotRobot
from dovetail.robots.safety import SafeRobot, SafetyConfig
from support.lerobot_arm import CAMERA, bridge_pid, follower_config, wait_for

FEATURES = {f"{joint}.pos": "float" for joint in
            ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")}  # fmt: skip
FAULTS = (
    "drop", "silence", "half", "garbage", "flip", "huge", "wrong type", "wrong size", "no values", "wrong dtype", "nan",
    "old time", "future time", "no frame", "wrong frame", "error", "no features", "text executed", "nan executed",
)  # fmt: skip


class RogueBridge:
    """A bridge in this process that answers correctly until it is told to make a fault."""

    def __init__(self, robot: LeRobotRobot, seed: int) -> None:
        process = robot._process
        process._folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        (process._folder / "token").write_text("t")
        process.socket_path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(process.socket_path))
        self._listener.listen(16)
        self._random = random.Random(seed)
        self.fault: str | None = None
        self.at: str | None = None  # the request at which the fault happens
        self.made = False
        self._closing = threading.Event()
        self.moved: list[list[float]] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5.0)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link:
            try:
                while (request := receive(link)) is not None:
                    fault = self.fault if request.type == self.at else None
                    answer = self._answer(request, fault)
                    self.made |= fault is not None
                    if answer is not None:
                        link.sendall(answer)
                    if fault in ("drop", "half"):
                        return
                    if fault == "silence":
                        self._closing.wait(5.0)
                        return
            except (OSError, WireError):
                return

    def _answer(self, request: Message, fault: str | None) -> bytes | None:
        fields: dict[str, object] = {"pid": os.getpid()}
        arrays: dict[str, np.ndarray] = {}
        now_ns = time.monotonic_ns()
        if request.type == "open" and fault != "no features":
            shapes = {"front": [24, 32, 3], "front_depth": [24, 32, 1]}
            fields["features"] = {"action": FEATURES, "observation": FEATURES | shapes}
        if request.type == "observe":
            arrays["values"] = np.zeros(6)
            arrays["front"] = self._random.randbytes(24 * 32 * 3)
            arrays["front"] = np.frombuffer(arrays["front"], np.uint8).reshape(24, 32, 3)
            arrays["front_depth"] = np.zeros((24, 32, 1), np.uint16) + self._random.randrange(1000)
            fields |= {"time_ns": now_ns, "captured_ns": {"front": now_ns, "front_depth": now_ns}}
        if request.type == "send":
            self.moved.append(request.arrays["values"].tolist())
            fields["executed"] = request.arrays["values"].tolist()
        changes = {
            "wrong size": lambda: arrays.update(values=np.zeros(5)),
            "no values": lambda: arrays.pop("values", None),
            "wrong dtype": lambda: arrays.update(values=np.zeros(6, np.float32)),
            "nan": lambda: arrays.update(values=np.full(6, np.nan)),
            "old time": lambda: fields.update(time_ns=now_ns - 10**10),
            "future time": lambda: fields.update(time_ns=now_ns + 10**10),
            "no frame": lambda: fields.update(captured_ns={}),
            "wrong frame": lambda: arrays.update(front=np.zeros((24, 32, 4), np.uint8)),
            "text executed": lambda: fields.update(executed="all of it"),
            "nan executed": lambda: fields.update(executed=[None] * 6),
            "huge executed": lambda: fields.update(executed=[10**400] * 6),
            "huge stamp": lambda: fields.update(captured_ns={"front": 10**400, "front_depth": now_ns}),
        }
        if fault in changes:
            changes[fault]()
        if fault == "error":
            return b"".join(bytes(x) for x in encode(Message("error", {"error": "the\nbus is gone"})))
        data = b"".join(bytes(x) for x in encode(Message("x" if fault == "wrong type" else "ok", fields, arrays)))
        if fault in ("drop", "silence"):
            return None
        if fault == "half":
            return data[: self._random.randrange(1, len(data))]
        if fault == "garbage":
            return self._random.randbytes(300)
        if fault == "huge":
            return struct.pack("!4sIQ", b"DVB1", 2**32 - 1, 2**62)
        if fault == "flip":
            at = self._random.randrange(16, 40)
            return data[:at] + bytes((data[at] ^ 0xA5,)) + data[at + 1 :]
        return data


def observe_and_send(robot: LeRobotRobot) -> None:
    robot.observe()
    robot.send(np.zeros(6, np.float32))


def drive(safe: SafeRobot, num_ticks: int) -> str | None:
    """Run ticks until a fault. Returns it."""
    for _ in range(num_ticks):
        try:
            observation: Observation = safe.observe()
            del observation
            safe.send(np.array([0.02, 0, 0, 0, 0, 0.5], np.float32))
        except DovetailError as error:
            return str(error)
        time.sleep(0.002)
    return None


@pytest.mark.extended
def test_200_random_faults_of_the_process_end_in_a_fault_or_hold_without_a_hang(arm):
    rng = random.Random(7)
    seen: dict[str, int] = {}
    for number in range(200):
        fault, at = rng.choice(FAULTS), rng.choice(["open", "connect", "observe", "observe", "send", "send"])
        config = follower_config(arm, config={"cameras": {"front": CAMERA}, "id": str(number)}, timeout_s=0.05,
                                 control_hz=200.0, start_timeout_s=0.05)  # fmt: skip
        robot = LeRobotRobot(config)
        bridge = RogueBridge(robot, number)
        safe = SafeRobot(robot, SafetyConfig(stale_after_s=5.0, stop_after_s=10.0), RealClock())
        began_s = time.monotonic()
        try:
            bridge.fault, bridge.at = fault, at
            text = drive(safe, num_ticks=30)
            assert bridge.made
            if text is not None:
                assert "\n" not in text
                seen[fault] = seen.get(fault, 0) + 1
            held = np.array(bridge.moved[-1:])
            if fault == "nan" and at == "observe":  # the filter holds at once
                assert not held.size
            assert all(abs(move[0]) <= 2.0 and abs(move[5]) <= 100.0 for move in bridge.moved)
        finally:
            robot.close()
            bridge.close()
        assert time.monotonic() - began_s < 15.0, (fault, at)
    # these are never harmless, wherever they happen
    for fault in ("drop", "silence", "half", "garbage", "huge", "wrong type", "error"):
        assert seen.get(fault, 0) > 0, fault


@pytest.mark.parametrize(
    ("fault", "at", "message"),
    [
        ("drop", "observe", "closed the connection"),
        ("silence", "observe", "has not answered 'observe' for 0.2 s"),
        ("silence", "send", "has not answered 'send' for 0.2 s"),
        ("half", "observe", "lost|has not answered"),
        ("garbage", "send", "is lost: .*expected a message of the bridge"),
        ("huge", "observe", "more than allowed"),
        ("wrong size", "observe", "without its numbers"),
        ("no values", "observe", "without its numbers"),
        ("wrong dtype", "observe", "without its numbers"),
        ("old time", "observe", "an observation with the time"),
        ("future time", "observe", "an observation with the time"),
        ("no frame", "observe", "no frame of camera 'front'"),
        ("wrong frame", "observe", "no frame of camera 'front'"),
        ("no features", "open", "no features"),
        ("text executed", "send", "executed action of another size"),
        ("nan executed", "send", "executed action that is not finite"),
        ("huge executed", "send", "executed action that is not finite"),
        ("huge stamp", "observe", "no frame of camera 'front'"),
        ("error", "observe", "the bus is gone"),
    ],
)
def test_a_wrong_answer_is_a_robot_error(arm, fault, at, message):
    config = follower_config(arm, config={"cameras": {"front": CAMERA}}, timeout_s=0.2, start_timeout_s=0.5)
    robot = LeRobotRobot(config)
    bridge = RogueBridge(robot, 3)
    bridge.fault, bridge.at = fault, at
    try:
        with pytest.raises(RobotError, match=message):
            observe_and_send(robot)
        bridge.fault = None
        assert robot.observe().values["front"].shape == (24, 32, 3)  # connects again
    finally:
        robot.close()
        bridge.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"observe": "raise"}, "There is no status packet"),
        ({"observe": "missing"}, "lacks 'elbow_flex.pos'"),
        ({"observe": "text"}, "is not a number"),
        ({"observe": "hang"}, "has not answered"),
        ({"observe": "exit"}, "closed|lost"),
        ({"send": "raise"}, "There is no status packet"),
        ({"send": "missing"}, "the executed action .* lacks"),
        ({"send": "hang"}, "has not answered"),
    ],
)
def test_a_fault_of_the_device_is_one_line_and_the_next_use_recovers(arm, words, message):
    robot = LeRobotRobot(follower_config(arm, timeout_s=0.5))
    try:
        robot.observe()
        arm.misbehave(**words)
        with pytest.raises(RobotError, match=message) as caught:
            observe_and_send(robot)
        assert "\n" not in str(caught.value)
        arm.misbehave()
        robot.observe()
    finally:
        arm.misbehave()
        robot.close()


def test_nan_of_the_device_makes_the_filter_hold(arm):
    robot = LeRobotRobot(follower_config(arm))
    try:
        safe = SafeRobot(robot, SafetyConfig(stale_after_s=5.0, stop_after_s=10.0), RealClock())
        safe.observe()
        arm.misbehave(observe="nan")
        safe.observe()
        assert safe.problem == "observation 'joint_pos' is not finite"
        safe.send(np.full(6, 0.5, np.float32))
        assert arm.sent[-1]["shoulder_pan.pos"] == 0.0
    finally:
        arm.misbehave()
        robot.close()


def test_a_paused_bridge_is_a_fault_in_time(arm):
    robot = LeRobotRobot(follower_config(arm, timeout_s=0.3))
    try:
        robot.observe()
        pid = bridge_pid(robot)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
        try:
            began_s = time.monotonic()
            with pytest.raises(RobotError, match="has not answered"):
                robot.observe()
            assert time.monotonic() - began_s < 3.0
            with pytest.raises(RobotError):
                robot.stop()
            assert time.monotonic() - began_s < 9.0
        finally:
            os.kill(pid, signal.SIGCONT)
    finally:
        robot.close()


@pytest.mark.extended
def test_garbage_sent_to_the_bridge_leaves_it_working(arm):
    rng = random.Random(3)
    robot = LeRobotRobot(follower_config(arm))
    try:
        robot.observe()
        hello = {"token": (robot._process._folder / "token").read_text(), "protocol": 2, "role": "stop"}
        for number in range(60):
            link = socket.socket(socket.AF_UNIX)
            link.connect(str(robot._process.socket_path))
            with link:
                if number % 3 == 0:
                    link.sendall(rng.randbytes(rng.randrange(1, 200)))
                    continue
                link.sendall(b"".join(bytes(x) for x in encode(Message("hello", hello))))
                receive(link, deadline_s=time.monotonic() + 5.0)
                link.sendall(rng.choice([rng.randbytes(50), json.dumps(hello).encode()]))
        robot.observe()
        robot.stop()
    finally:
        robot.close()


def test_folder_that_other_users_can_read_is_refused_before_connecting(arm, lerobot_root):
    """In /tmp, another user could have made the folder with a socket that confirms every STOP."""
    robot = LeRobotRobot(follower_config(arm))
    folder = robot._process.socket_path.parent
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "token").write_text("x" * 64)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        listener.settimeout(0.2)
        with pytest.raises(RobotError, match="should be a folder that only you can read"):
            robot.open_stop().stop()
        with pytest.raises(RobotError, match="should be a folder that only you can read"):
            robot.observe()
        with pytest.raises(TimeoutError):
            listener.accept()


def test_bridge_of_another_user_is_refused(arm, lerobot_root, monkeypatch):
    robot = LeRobotRobot(follower_config(arm))
    folder = robot._process.socket_path.parent
    folder.mkdir(mode=0o700)
    (folder / "token").write_text("x" * 64)
    monkeypatch.setattr("dovetail.robots.drivers.lerobot._client._CREDENTIALS", _OtherUser())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        with pytest.raises(RobotError, match="belongs to another user"):
            robot.observe()
        link, _ = listener.accept()
        with link:
            assert link.recv(1) == b""  # the token was not sent


class _OtherUser:
    size = 12

    def unpack(self, raw: bytes) -> tuple[int, int, int]:
        return 1, os.getuid() + 1, 0
