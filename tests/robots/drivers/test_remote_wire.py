"""The frames of the robot protocol: what goes in comes out, and nothing else is accepted."""

from __future__ import annotations

import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.robots.drivers.remote.robot_side.description import Description, InvalidSpec
from dovetail.robots.drivers.remote.robot_side.wire import MAX_BODY, Link, Message, WireError, decode, encode

NAMES = st.text(min_size=1, max_size=8)
ARRAYS = st.dictionaries(
    NAMES,
    st.sampled_from(["float32", "uint8", "uint16"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=4,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(NAMES, one, max_size=3),
    max_leaves=5,
)
MESSAGES = st.builds(Message, st.text(max_size=10), st.dictionaries(NAMES, PLAIN, max_size=4), ARRAYS)


def _split(frame: bytes) -> tuple[bytes, bytearray]:
    _, header_size, _ = struct.unpack("<4sII", frame[:12])
    return frame[12 : 12 + header_size], bytearray(frame[12 + header_size :])


@given(MESSAGES)
@settings(max_examples=150, deadline=None)
def test_message_survives_encode_and_decode(message: Message) -> None:
    found = decode(*_split(b"".join(encode(message))))
    assert (found.kind, found.fields, set(found.arrays)) == (message.kind, message.fields, set(message.arrays))
    for name, array in message.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()


@given(st.binary(max_size=200), st.binary(max_size=50))
@settings(max_examples=200, deadline=None)
def test_random_bytes_raise_wire_error_only(header: bytes, body: bytes) -> None:
    with pytest.raises(WireError):
        decode(header, bytearray(body))


@given(MESSAGES, st.data())
@settings(max_examples=150, deadline=None)
def test_header_with_other_values_is_refused_or_a_message(message: Message, data: st.DataObject) -> None:
    header, body = _split(b"".join(encode(message)))
    at = data.draw(st.integers(0, len(header) - 1))
    changed = header[:at] + bytes([data.draw(st.integers(0, 255))]) + header[at + 1 :]
    try:
        found = decode(changed, body)
    except WireError:
        return
    assert sum(array.nbytes for array in found.arrays.values()) == len(body)


@pytest.mark.parametrize(
    "header",
    [
        b'{"kind": "x", "fields": {}, "arrays": [["a", "float32", [-1]]]}',
        b'{"kind": "x", "fields": {}, "arrays": [["a", "float32", [4294967296, 4294967296]]]}',
        b'{"kind": "x", "fields": {}, "arrays": [["a", "float64", [1]]]}',
        b'{"kind": "x", "fields": {}, "arrays": [["a", "object", [1]]]}',
        b'{"kind": "x", "fields": {}, "arrays": [["a", "float32", [true]]]}',
        b'{"kind": "x", "fields": {"a": NaN}, "arrays": []}',
        b'{"kind": "x", "fields": [], "arrays": []}',
        b'{"kind": 1, "fields": {}, "arrays": []}',
        b"[" * 20000,
        b"",
    ],
)
def test_hostile_header_is_refused(header: bytes) -> None:
    with pytest.raises(WireError):
        decode(header, bytearray(4))


def _links() -> tuple[Link, Link]:
    ours, theirs = _tcp_pair()
    return Link(ours, is_server=False), Link(theirs, is_server=True)


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


def _soon() -> float:
    return time.monotonic() + 5.0


def test_tags_refuse_changed_repeated_and_foreign_frames() -> None:
    message = Message("send", {"id": 1}, {"action": np.ones(7, np.float32)})
    for spoil in ("none", "flip", "repeat", "reflect", "other key"):
        client, server = _links()
        client.use_key(b"k" * 32)
        server.use_key(b"o" * 32 if spoil == "other key" else b"k" * 32)
        frame = b"".join(client.frame(message))
        if spoil == "flip":
            frame = frame[:-20] + bytes([frame[-20] ^ 1]) + frame[-19:]
        if spoil == "reflect":  # sent back to its author
            server.write([frame], _soon())
            server = client
        else:
            client.write([frame, frame] if spoil == "repeat" else [frame], _soon())
        if spoil in ("none", "repeat"):
            assert server.receive(_soon(), 1000).arrays["action"].tolist() == [1.0] * 7
        if spoil != "none":
            with pytest.raises(WireError, match="changed, lost or repeated"):
                server.receive(_soon(), 1000)
        client.close()
        server.close()


def test_announced_sizes_above_the_limit_are_refused_before_memory_is_allocated() -> None:
    for sizes in ((1 << 31, 0), (10, 1 << 31), (10, 2000)):
        client, server = _links()
        client.write([struct.pack("<4sII", b"DVRB", *sizes)], _soon())
        with pytest.raises(WireError, match="larger than allowed"):
            server.receive(_soon(), 1000)
        client.close()
        server.close()


def test_half_a_message_ends_at_the_deadline_and_not_later() -> None:
    client, server = _links()
    client.write([b"".join(encode(Message("ping")))[:-3]], _soon())
    began_s = time.monotonic()
    with pytest.raises(WireError, match="no complete message in time"):
        server.receive(began_s + 0.2, 1000)
    assert 0.15 < time.monotonic() - began_s < 2.0
    threading.Timer(0.1, client.close).start()
    with pytest.raises(WireError, match="closed"):
        server.receive(_soon(), 1000)
    server.close()


def test_large_arrays_arrive_whole() -> None:
    client, server = _links()
    for link in (client, server):
        link.use_key(b"k" * 32)
    picture = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
    thread = threading.Thread(target=client.send, args=(Message("x", {}, {"front": picture}), _soon()))
    thread.start()
    assert np.array_equal(server.receive(_soon(), MAX_BODY).arrays["front"], picture)
    thread.join()
    client.close()
    server.close()


SPEC = {
    "name": "arm",
    "control_hz": 10,
    "observation": {"joint_pos": {"shape": [2]}},
    "action": [{"name": "arm", "kind": "joint_target", "unit": "rad", "axes": 2, "low": -1, "high": [1.0, 2.0]}],
}


def test_description_expands_limits_and_checks_actions() -> None:
    found = Description.of(SPEC)
    assert found.low.tolist() == [-1.0, -1.0]
    assert found.high.tolist() == [1.0, 2.0]
    assert found.action_problem(np.array([0.5, 2.0], np.float32)) is None
    assert "outside" in (found.action_problem(np.array([0.5, 2.1], np.float32)) or "")


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"control_hz": 0}, "control_hz is 0"),
        ({"observation": {"joint_pos": {"shape": [0]}}}, "shape"),
        ({"observation": {"joint_pos": {"shape": [2], "dtype": "float64"}}}, "dtype 'float64'"),
        ({"observation": {"time_ns": {"shape": [2]}}}, "reserved"),
        ({"observation": {"front": {"shape": [60000, 60000, 3], "dtype": "uint8"}}}, "bytes"),
        ({"action": []}, "at least one"),
        (
            {"action": [{"name": "arm", "kind": "joint_target", "unit": "rad", "low": [1, 2, 3], "high": [2]}]},
            "3 low",
        ),
        (
            {"action": [{"name": "arm", "kind": "joint_target", "unit": "rad", "low": 1, "high": 1}]},
            "low below high",
        ),
        ({"name": {1, 2}}, "set"),
    ],
)
def test_invalid_description_is_refused_in_one_line(change: dict, because: str) -> None:
    with pytest.raises(InvalidSpec, match=because):
        Description.of({**SPEC, **change})
