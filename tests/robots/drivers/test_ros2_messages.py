"""Every message type over real DDS on loopback, and CDR that Cyclone DDS writes the same."""

import multiprocessing
import struct
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from dovetail.core.errors import RobotError, UsageError
from dovetail.robots.drivers.ros2.dds import DdsNode
from dovetail.robots.drivers.ros2.idl_types import _make
from dovetail.robots.drivers.ros2.messages import Codec, MessageError, read_value, write_value
from dovetail.robots.drivers.ros2.settings import VALUE_SIZES, DdsConfig, QosConfig
from support.ros2_robots import free_domain, loopback

TYPES = tuple(VALUE_SIZES)


def filled(codec: Codec, name: str):
    """A message with a value in each field."""
    message = codec.blank(name)
    if hasattr(message, "header"):
        message.header.stamp.sec, message.header.stamp.nanosec = 17, 123456789
        message.header.frame_id = "base_link"
    values = {
        "geometry_msgs/msg/PoseStamped": {"pose.position.x": 0.25, "pose.position.z": -1.5, "pose.orientation.w": 1.0},
        "sensor_msgs/msg/JointState": {
            "name": ["left", "rechts"], "position": np.array([0.5, -0.25]), "effort": np.array([1.0, 2.0, 3.0]),
        },
        "std_msgs/msg/Float32MultiArray": {"data": np.arange(24, dtype=np.float32)},
        "sensor_msgs/msg/Image": {
            "height": 4, "width": 5, "encoding": "rgb8", "step": 15, "data": np.arange(60, dtype=np.uint8),
        },
        "sensor_msgs/msg/CompressedImage": {"format": "jpeg", "data": np.arange(7, dtype=np.uint8)},
        "std_msgs/msg/Bool": {"data": True},
        "std_msgs/msg/Int32": {"data": -7},
        "std_msgs/msg/Float32": {"data": 0.5},
        "std_msgs/msg/Int64": {"data": 2**40},
        "std_msgs/msg/Float64": {"data": 0.1},
        "std_msgs/msg/String": {"data": "größer"},
    }[name]  # fmt: skip
    for path, value in values.items():
        write_value(message, path, value)
    return message


def as_idl(value, kind):
    """The same message as an object of Cyclone DDS."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        names = [name for name in value.__dataclass_fields__ if name != "__msgtype__"]
        return kind(**{name: as_idl(getattr(value, name), kind.__annotations__[name]) for name in names})
    return value


@pytest.mark.parametrize("name", TYPES)
def test_cdr_equals_the_serialization_of_cyclone_dds(name: str) -> None:
    codec = Codec()
    message = filled(codec, name)
    kind = _make(name, codec)
    assert codec.encode(message, name) == as_idl(message, kind).serialize()


def _echo(domain_id: int, ready: Connection) -> None:
    """Another process: sends back each message, on another topic."""
    with DdsNode(loopback(domain_id), Codec()) as node:
        pairs = [
            (node.subscribe(f"/there/t{i}", name, QosConfig()), node.publish(f"/back/t{i}", name, QosConfig()))
            for i, name in enumerate(TYPES)
        ]
        node.start()
        ready.send(True)
        seen: set[str] = set()
        until_s = time.monotonic() + 20.0
        while len(seen) < len(pairs) and time.monotonic() < until_s:
            node.wait(lambda: False, timeout_s=0.02)
            for heard, answer in pairs:
                if heard.newest is not None and heard.topic not in seen and answer.num_subscribers:
                    answer.write(heard.newest.payload)
                    seen.add(heard.topic)
        ready.recv()


def test_each_type_returns_unchanged_from_another_process() -> None:
    domain_id, codec = free_domain(), Codec()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_echo, args=(domain_id, theirs), daemon=True)
    process.start()
    try:
        with DdsNode(loopback(domain_id), codec) as node:
            backs = [node.subscribe(f"/back/t{i}", name, QosConfig()) for i, name in enumerate(TYPES)]
            theres = [node.publish(f"/there/t{i}", name, QosConfig()) for i, name in enumerate(TYPES)]
            node.start()
            assert ours.poll(30.0)
            until_s = time.monotonic() + 20.0
            while not all(there.num_subscribers for there in theres) and time.monotonic() < until_s:
                time.sleep(0.02)
            for there, name in zip(theres, TYPES, strict=True):
                there.write(codec.encode(filled(codec, name), name))
            assert node.wait(lambda: all(back.newest for back in backs), timeout_s=20.0)
            for back, name in zip(backs, TYPES, strict=True):
                assert back.newest is not None
                sent = codec.encode(filled(codec, name), name)
                assert codec.encode(codec.decode(back.newest.payload, name), name) == sent
        ours.send(True)
    finally:
        process.join(10.0)
        process.kill()


def test_a_large_image_arrives_whole() -> None:
    codec, name, rng = Codec(), "sensor_msgs/msg/Image", np.random.default_rng(0)
    domain_id = free_domain()
    with DdsNode(loopback(domain_id), codec) as one, DdsNode(loopback(domain_id), codec) as other:
        heard = one.subscribe("/image", name, QosConfig())
        sends = other.publish("/image", name, QosConfig())
        one.start()
        while not sends.num_subscribers:
            time.sleep(0.01)
        message = codec.blank(name)
        message.data = rng.integers(0, 255, 640 * 480 * 3, dtype=np.uint8)
        sends.write(codec.encode(message, name))
        assert one.wait(lambda: heard.newest is not None, timeout_s=10.0)
        assert heard.newest is not None
        assert np.array_equal(codec.decode(heard.newest.payload, name).data, message.data)


def test_random_bytes_are_a_message_error_or_a_message() -> None:
    """A publisher may send anything. Nothing but MessageError is raised."""
    codec, rng = Codec(), np.random.default_rng(1)
    num_refused = 0
    for name in TYPES:
        good = bytearray(codec.encode(filled(codec, name), name))
        for _ in range(200):
            bad = bytearray(good)
            for _ in range(int(rng.integers(1, 5))):
                bad[int(rng.integers(4, len(bad)))] = int(rng.integers(256))
            payload = bytes(bad[: int(rng.integers(0, len(bad) + 1))]) if rng.random() < 0.5 else bytes(bad)
            try:
                codec.decode(payload, name)
            except MessageError:
                num_refused += 1
    assert num_refused > 500


def test_big_endian_messages_are_read() -> None:
    payload = b"\x00\x00\x00\x00" + struct.pack(">d", 0.25)
    assert read_value(Codec().decode(payload, "std_msgs/msg/Float64"), "data") == 0.25


def test_other_encodings_are_refused() -> None:
    with pytest.raises(MessageError, match="not with CDR"):
        Codec().decode(b"\x00\x07\x00\x00" + bytes(8), "std_msgs/msg/Float64")


def test_a_closed_node_leaves_the_domain() -> None:
    domain_id, codec = free_domain(), Codec()
    with DdsNode(loopback(domain_id), codec) as stays:
        heard = stays.subscribe("/a", "std_msgs/msg/Bool", QosConfig())
        stays.start()
        with DdsNode(loopback(domain_id), codec) as leaves:
            leaves.publish("/a", "std_msgs/msg/Bool", QosConfig())
            until_s = time.monotonic() + 10.0
            while heard.num_publishers == 0 and time.monotonic() < until_s:
                time.sleep(0.01)
            assert heard.num_publishers == 1
        until_s = time.monotonic() + 10.0
        while heard.num_publishers and time.monotonic() < until_s:
            time.sleep(0.01)
        assert heard.num_publishers == 0


def test_one_domain_has_one_network_setting_in_a_process() -> None:
    domain_id, codec = free_domain(), Codec()
    other = DdsConfig(domain_id=domain_id, interface="lo", peers=("127.0.0.2",), multicast=False)
    with DdsNode(loopback(domain_id), codec), pytest.raises(UsageError, match="two network settings"):
        DdsNode(other, codec)
    DdsNode(other, codec).close()


def test_an_unknown_interface_is_an_error_that_names_it() -> None:
    with pytest.raises(RobotError, match="interface none7"):
        DdsNode(DdsConfig(domain_id=free_domain(), interface="none7"), Codec())
