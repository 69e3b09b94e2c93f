"""What robots, cameras and input devices send. Each reader gets damaged bytes over a real socket, pipe or message."""

from __future__ import annotations

import io
import itertools
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import av
import numpy as np
from hypothesis import strategies as st
from PIL import Image

from dovetail.core.errors import DovetailError, RobotError, one_line
from dovetail.human import _evdev
from dovetail.human._evdev import ABS_INFO, EVENT, InputDevice, Kernel
from dovetail.robots.cameras import ros_image
from dovetail.robots.cameras.ros_image import RosImageConfig
from dovetail.robots.cameras.video import VideoCamera, VideoConfig
from dovetail.robots.drivers.franka.connection import Connection
from dovetail.robots.drivers.franka.driver import FrankaRobot
from dovetail.robots.drivers.franka.settings import FrankaConfig
from dovetail.robots.drivers.franka.state import read_pose
from dovetail.robots.drivers.lerobot._client import BridgeLink
from dovetail.robots.drivers.lerobot.camera import LeRobotCamera, LeRobotCameraConfig, _Session
from dovetail.robots.drivers.lerobot.dovetail_bridge.feetech import check_lengths
from dovetail.robots.drivers.lerobot.dovetail_bridge.server import PROTOCOL, Server, _log
from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message, WireError, encode, receive
from dovetail.robots.drivers.lerobot.driver import LeRobotRobot
from dovetail.robots.drivers.lerobot.settings import LeRobotConfig, LeRobotLeaderConfig
from dovetail.robots.drivers.lerobot.teleoperator import LeRobotTeleoperator
from dovetail.robots.drivers.ros2.messages import Codec
from dovetail.robots.drivers.ros2.settings import StateTopic
from dovetail.robots.drivers.ros2.topics import StateReader
from support.fuzz.feetech_bus import Bus
from support.fuzz.formats import Format, in_turn
from support.fuzz.mutate import mutate_bytes, mutate_json

__all__ = ["DEVICE_FORMATS"]

_SIZE = (8, 6)  # of all images


@contextmanager
def answering(response: bytes) -> Iterator[str]:
    """A server that answers every request with the same bytes and closes the connection. Gives its address."""

    def serve(server: socket.socket) -> None:
        with suppress(OSError):  # shut down
            while True:
                asked, _ = server.accept()
                with asked, suppress(OSError):
                    data = b""
                    while b"\r\n\r\n" not in data and (piece := asked.recv(1 << 16)):
                        data += piece
                    asked.sendall(response)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(8 * 6 * 3, dtype=np.uint8).reshape(6, 8, 3)).save(file, "JPEG")
    return file.getvalue()


def check_line(error: DovetailError) -> None:
    assert str(error).isprintable(), repr(error)


class FrankaReplies(Format):
    """What the HTTP server of a Franka arm answers."""

    name = "franka replies"
    _STATE: ClassVar = {
        "pose": [0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0],
        "vel": [0.0] * 6,
        "force": [0.1] * 3,
        "torque": [0.1] * 3,
        "q": [0.2] * 7,
        "dq": [0.0] * 7,
        "jacobian": [[0.0] * 7] * 6,
        "gripper_pos": 0.5,
    }

    def make(self, folder: Path) -> None:
        body = json.dumps(self._STATE).encode()
        pieces = [body[at : at + 100] for at in range(0, len(body), 100)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        (folder / "state").write_bytes(self._response(body))
        (folder / "chunked").write_bytes(
            interim + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        )

    def _response(self, body: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def damage(self, folder: Path, data: st.DataObject) -> None:
        how = data.draw(st.sampled_from(["state", "chunked", "tree", "tree"]))
        if how == "tree":
            (folder / "state").write_bytes(self._response(json.dumps(mutate_json(data, self._STATE)).encode()))
        else:
            (folder / how).write_bytes(mutate_bytes(data, (folder / how).read_bytes()))

    def read(self, folder: Path) -> None:
        def observe(name: str) -> None:
            with answering((folder / name).read_bytes()) as address:
                robot = FrankaRobot(FrankaConfig(address=address, gripper="hil_serl_franka"))
                try:
                    values = robot.observe().values
                    assert all(values[key].shape == spec.shape for key, spec in robot.spec.observation.items())
                    assert all(np.isfinite(value).all() for value in values.values())
                    assert np.isfinite(read_pose(Connection(address, timeout_s=1.0))).all()
                except DovetailError as error:
                    check_line(error)
                    raise
                finally:
                    robot.close()

        in_turn(lambda: observe("state"), lambda: observe("chunked"))


class BridgeMessages(Format):
    """What the process with LeRobot answers to robot, leader and camera, and what a client sends to it."""

    name = "lerobot bridge"
    _PREFIX = struct.Struct("!4sIQ")
    _KEYS: ClassVar = [
        f"{joint}.pos"
        for joint in ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
    ]
    _TOKEN = "t" * 16
    _damaged = ""  # only its reader is called; empty: all
    _ROBOT = LeRobotConfig.model_validate(
        {
            "python": "python",
            "robot": "so101_follower",
            "config": {"port": "/dev/null", "cameras": {"front": {"type": "mini", "width": 8, "height": 6}}},
            "timeout_s": 0.2,
            "start_timeout_s": 0.2,
        }
    )
    _LEADER = LeRobotLeaderConfig(
        python="python", teleoperator="so101_leader", follow=True, timeout_s=0.2, start_timeout_s=0.2
    )
    _CAMERA = LeRobotCameraConfig(python="python", camera="mini", size=_SIZE, timeout_s=0.2)

    def make(self, folder: Path) -> None:
        _log.disabled = True
        self._now_ns = now_ns = time.monotonic_ns()  # replaced by the time of each answer
        numbers = dict.fromkeys(self._KEYS, "float")
        image = np.zeros((6, 8, 3), np.uint8)
        torque = {"torque": True, "events": True, "version": "0.6.1"}
        hello = {"token": self._TOKEN, "role": "control", "protocol": PROTOCOL}
        for name, message in {
            "robot-1": Message(
                "ok", {"features": {"action": numbers, "observation": {**numbers, "front": [6, 8, 3]}}}
            ),
            "robot-2": Message("ok"),
            "robot-3": Message(
                "ok",
                {"time_ns": now_ns, "captured_ns": {"front": now_ns}},
                {"values": np.zeros(6), "front": image},
            ),
            "robot-4": Message("ok", {"executed": [0.0] * 6}),
            "leader-1": Message("ok", {"features": {"action": numbers, "feedback": numbers, **torque}}),
            "leader-2": Message("ok"),
            "leader-3": Message("ok", {"time_ns": now_ns}, {"values": np.zeros(6)}),
            "leader-4": Message("ok", {"events": {"success": True}}),
            "camera-1": Message("ok", {"captured_ns": now_ns}, {"frame": image}),
            "server-1": Message("hello", hello),
            "server-2": Message(
                "send", {"keys": self._KEYS, "sent_ns": 1, "deadline_ns": 2}, {"values": np.zeros(6)}
            ),
        }.items():
            (folder / name).write_bytes(b"".join(bytes(part) for part in encode(message)))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        self._damaged = path.name.partition("-")[0]
        frame = path.read_bytes()
        if data.draw(st.integers(0, 3)) == 0:
            path.write_bytes(mutate_bytes(data, frame))
            return
        magic, size, num_bytes = self._PREFIX.unpack_from(frame)
        start = self._PREFIX.size
        header = json.dumps(mutate_json(data, json.loads(frame[start : start + size]))).encode()
        path.write_bytes(self._PREFIX.pack(magic, len(header), num_bytes) + header + frame[start + size :])

    def read(self, folder: Path) -> None:
        readers = {"robot": self._robot, "leader": self._leader, "camera": self._camera, "server": self._server}
        chosen = [readers[self._damaged]] if self._damaged else readers.values()
        try:
            in_turn(*(lambda reader=reader: reader(folder) for reader in chosen))  # type: ignore[misc]
        except DovetailError as error:
            check_line(error)
            raise

    def _robot(self, folder: Path) -> None:
        robot = LeRobotRobot(self._ROBOT)
        with self._answering(folder, "robot") as link:
            robot._process.connect = lambda role, *, start: link  # type: ignore[method-assign]
            seen = robot.observe()
            for key, spec in robot.spec.observation.items():
                assert seen.values[key].shape == spec.shape and str(seen.values[key].dtype) == spec.dtype
            assert all(0 <= time_ns < 1 << 62 for time_ns in (seen.time_ns, *seen.captured_ns.values()))
            executed = robot.send(np.zeros(6, np.float32))
            assert executed.shape == (6,) and np.isfinite(executed).all()

    def _leader(self, folder: Path) -> None:
        leader = LeRobotTeleoperator(self._LEADER)
        with self._answering(folder, "leader") as link:
            leader._process.connect = lambda role, *, start: link  # type: ignore[method-assign]
            assert np.isfinite(leader.read()).all()
            assert all(type(value) is bool for value in leader.events().values())

    def _camera(self, folder: Path) -> None:
        camera = LeRobotCamera(self._CAMERA, name="front")
        with self._answering(folder, "camera") as link:
            session = _Session(link, camera.spec, name="front", timeout_s=0.2)
            session._receive()
            if session.newest is not None:
                time_ns, images = session.newest
                assert 0 <= time_ns <= time.monotonic_ns() and images["front"].shape == (6, 8, 3)

    def _server(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall((folder / "server-1").read_bytes() + (folder / "server-2").read_bytes())
            ours.shutdown(socket.SHUT_WR)
            Server(theirs, token=self._TOKEN, settings={})._serve_client(theirs)
            with suppress(WireError, OSError):
                while (answer := receive(ours, deadline_s=time.monotonic() + 5.0)) is not None:
                    if answer.type == "error":
                        raise RobotError(str(answer.fields["error"]))

    @contextmanager
    def _answering(self, folder: Path, client: str) -> Iterator[BridgeLink]:
        """Answers each request with the next message."""
        ours, theirs = socket.socketpair()
        answers = [path.read_bytes() for path in sorted(folder.glob(f"{client}-*"))]

        def answer() -> None:
            with theirs, suppress(OSError, WireError):
                for frame in answers:
                    if receive(theirs) is None:
                        return
                    now = str(time.monotonic_ns()).encode()
                    theirs.sendall(frame.replace(str(self._now_ns).encode(), now))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        link = BridgeLink(ours, what="the bridge", log=lambda: "")
        try:
            yield link
        finally:
            link.close()
            thread.join()


class RosMessages(Format):
    """CDR of state and image messages."""

    name = "ros messages"
    _TOPICS: ClassVar = {
        "joints": {"msg_type": "JointState", "fields": {"q": {"attr": "position", "slice": [0, 3]}},
                   "expect": {"name": ["a", "b", "c"]}},
        "numbers": {"msg_type": "Float32MultiArray", "fields": {"q": {"attr": "data", "slice": [1, 3]}}},
        "pose": {"msg_type": "PoseStamped", "fields": {"q": "pose"}},
        "count": {"msg_type": "Int64", "fields": {"q": "data"}},
    }  # fmt: skip

    def make(self, folder: Path) -> None:
        self._codec = codec = Codec()
        joints, numbers, pose, count = (
            codec.blank(f"{name}")
            for name in (
                "sensor_msgs/msg/JointState",
                "std_msgs/msg/Float32MultiArray",
                "geometry_msgs/msg/PoseStamped",
                "std_msgs/msg/Int64",
            )
        )
        joints.name, joints.position = ["a", "b", "c"], np.arange(3.0)
        numbers.data = np.arange(3, dtype=np.float32)
        raw, packed = codec.blank("sensor_msgs/msg/Image"), codec.blank("sensor_msgs/msg/CompressedImage")
        raw.width, raw.height, raw.step, raw.encoding = 8, 6, 24, "rgb8"
        raw.data = np.zeros(144, np.uint8)
        packed.format, packed.data = "jpeg", np.frombuffer(jpeg(), np.uint8)
        self._types = {}
        for name, message in {
            "joints": joints, "numbers": numbers, "pose": pose, "count": count, "raw": raw, "jpeg": packed,
        }.items():  # fmt: skip
            self._types[name] = message.__msgtype__
            (folder / name).write_bytes(codec.encode(message, message.__msgtype__))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        content = path.read_bytes()
        head = data.draw(st.sampled_from([0, 4, 4]))  # behind the header, more is read
        path.write_bytes(content[:head] + mutate_bytes(data, content[head:]))

    def read(self, folder: Path) -> None:
        in_turn(
            *(lambda name=name: self._read_state(folder, name) for name in self._TOPICS),  # type: ignore[misc]
            *(lambda name=name: self._read_image(folder, name) for name in ("raw", "jpeg")),  # type: ignore[misc]
        )

    def _read_state(self, folder: Path, name: str) -> None:
        reader = StateReader(StateTopic.from_mapping({"topic": "/s", **self._TOPICS[name]}))
        values = reader.read(self._codec.decode((folder / name).read_bytes(), self._types[name]))
        assert values["q"].shape == (reader.sizes["q"],) and np.isfinite(values["q"]).all()

    def _read_image(self, folder: Path, name: str) -> None:
        config = RosImageConfig.from_mapping({"topic": "/c", "size": list(_SIZE), "compressed": name == "jpeg"})
        message = self._codec.decode((folder / name).read_bytes(), self._types[name])
        try:
            image = ros_image._Images(config).image(message)
        except (ros_image._BadFrame, av.FFmpegError, MemoryError) as error:  # as the camera's thread does
            raise RobotError(one_line(error)) from error
        assert image.shape == (6, 8, 3) and image.dtype == np.uint8


class StatusPackets(Format):
    """What the motors of a Feetech bus answer to a read of two bytes of motor 3."""

    name = "status packets"

    def make(self, folder: Path) -> None:
        (folder / "answer").write_bytes(b"\xff\xff\x03\x04\x00\x12\x08\xde" * 2)

    def read(self, folder: Path) -> None:
        stream = (folder / "answer").read_bytes()
        bus = Bus(stream)
        check_lengths(bus)
        try:
            found, result, error = bus.packet_handler.readRx(bus.port_handler, 3, 2)
        except IndexError as problem:  # as the package; the bridge answers with an error
            raise RobotError("no answer") from problem
        if result != 0:
            raise RobotError("no answer")
        body = bytes((3, 4, error, *found))
        assert b"\xff\xff" + body + bytes((~sum(body) & 0xFF,)) in stream


class CameraStreams(Format):
    """An MJPEG stream over HTTP."""

    name = "camera streams"

    def make(self, folder: Path) -> None:
        picture = jpeg()
        part = (
            b"--edge\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(picture) + picture + b"\r\n"
        )
        head = b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace;boundary=edge\r\n\r\n"
        (folder / "stream").write_bytes(head + 3 * part)

    def read(self, folder: Path) -> None:
        with answering((folder / "stream").read_bytes()) as address:
            camera = VideoCamera(VideoConfig(url=f"http://{address}/", size=_SIZE, timeout_s=1.0), name="front")
            try:
                for frame in itertools.islice(camera._frames(threading.Event()), 100):
                    camera_image = frame.images["front"]
                    assert camera_image.shape == (6, 8, 3) and camera_image.dtype == np.uint8
            except (av.FFmpegError, MemoryError) as error:  # as the camera's thread does
                raise RobotError(one_line(error)) from error


class _Kernel(Kernel):
    """A device with one button and two axes, whose events are in a pipe."""

    def __init__(self, events: bytes, axis: bytes) -> None:
        self._events, self._axis = events, axis

    def open(self, path: str) -> int:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(writer, self._events[: 1 << 15])
        os.close(writer)
        return reader

    def ioctl(self, descriptor: int, number: int, buffer: bytearray) -> None:
        if number == _evdev.GET_KEYS:
            buffer[304 // 8] |= 1 << 304 % 8
        elif number == _evdev.GET_AXES:
            buffer[0] = 3
        elif number in (_evdev.get_abs(0), _evdev.get_abs(1)):
            buffer[:] = self._axis[: ABS_INFO.size].ljust(ABS_INFO.size, b"\0")


class InputEvents(Format):
    """Events of a gamepad, as the kernel gives them."""

    name = "input events"

    def make(self, folder: Path) -> None:
        events = [(1, 5, 3, 0, 3000), (1, 6, 1, 304, 1), (1, 7, 0, 0, 0), (1, 8, 1, 304, 0)]
        (folder / "events").write_bytes(b"".join(EVENT.pack(*event) for event in events))
        (folder / "axis").write_bytes(ABS_INFO.pack(0, -32768, 32767, 0, 0, 0))

    def read(self, folder: Path) -> None:
        kernel = _Kernel((folder / "events").read_bytes(), (folder / "axis").read_bytes())
        device = InputDevice("pad", wanted={304}, operator="gamepad", kernel=kernel)
        device.open()
        try:
            presses: Sequence[int] | None = ()
            for _ in range(3):
                presses = device.update()
                assert all(-1.0 <= value <= 1.0 for value in device.axes.values())
            assert presses is None  # the pipe has ended: an unplugged device
        finally:
            device.close()


_ALL: tuple[Any, ...] = (
    FrankaReplies(),
    BridgeMessages(),
    RosMessages(),
    StatusPackets(),
    CameraStreams(),
    InputEvents(),
)
DEVICE_FORMATS: dict[str, Format] = {one.name: one for one in _ALL}
