"""The wire format: messages arrive unchanged, and malformed frames are refused."""

import json
import socket
import struct
import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.bfloat16 import BFLOAT16
from dovetail.policies.remote.connection import Connection, ConnectionLost, DeadlineExceeded
from dovetail.policies.remote.wire import MAX_BODY, MAX_HEADER, Message, WireError, decode, encode

DTYPES = st.sampled_from(
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        BFLOAT16,
    ]
)
ARRAYS = DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))
VALUES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
)
MESSAGES = st.builds(
    lambda kind, fields, arrays: Message(kind=kind, fields=fields, arrays=arrays),
    st.text(max_size=10),
    st.dictionaries(st.text(max_size=10), VALUES | st.text(max_size=10), max_size=4),
    st.dictionaries(st.text(max_size=10), ARRAYS, max_size=4),
)
MESSAGE = Message(
    kind="act", fields={"seed": 3}, arrays={"mask": np.array([True]), "x": np.arange(6.0).reshape(2, 3)}
)


def frame(header, body=b"", *, magic=b"DVTL", header_size=None, body_size=None):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    sizes = (len(data) if header_size is None else header_size, len(body) if body_size is None else body_size)
    return struct.pack("<4sIQ", magic, *sizes) + data + body


def header(*arrays, **other):
    descriptions = [dict(zip(("name", "dtype", "shape"), array, strict=True)) for array in arrays]
    return {"kind": "act", "fields": {}, "arrays": descriptions} | other


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    yield Connection(own), peer
    own.close()
    peer.close()


def soon(seconds=5.0):
    return time.monotonic() + seconds


@given(MESSAGES)
def test_messages_arrive_bit_for_bit(message):
    received = decode(encode(message))
    assert (received.kind, received.fields) == (message.kind, message.fields)
    assert list(received.arrays) == list(message.arrays)
    for name, array in message.arrays.items():
        assert received.arrays[name].dtype == array.dtype and received.arrays[name].shape == array.shape
        assert received.arrays[name].tobytes() == array.tobytes()  # NaN and its payload too
        assert received.arrays[name].flags.writeable and received.arrays[name].flags.aligned


@pytest.mark.parametrize(
    "array",
    [np.arange(24).reshape(4, 6).T, np.arange(24)[::-2], np.arange(5, dtype=">f4"), np.array(3.5)],
    ids=["transposed", "reversed", "big-endian", "a number"],
)
def test_arrays_of_every_memory_layout_arrive_in_c_order(array):
    received = decode(encode(Message(kind="x", arrays={"a": array}))).arrays["a"]
    np.testing.assert_array_equal(received, array)
    assert received.shape == array.shape and received.dtype.isnative


@given(MESSAGES, st.data())
def test_incomplete_frame_is_refused(message, data):
    whole = encode(message)
    with pytest.raises(WireError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.data())
def test_changed_frame_is_refused_or_a_valid_message(data):
    garbled = bytearray(encode(MESSAGE))
    for _ in range(data.draw(st.integers(1, 4))):
        garbled[data.draw(st.integers(0, len(garbled) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = decode(bytes(garbled))
    except WireError:
        return
    assert sum(array.nbytes for array in received.arrays.values()) == 49


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise):
    with pytest.raises(WireError):
        decode(noise)
    with pytest.raises(WireError):
        decode(frame(noise))


@pytest.mark.parametrize(
    "wrong",
    [
        frame(header(), magic=b"GET "),
        frame(header(), header_size=MAX_HEADER + 1),
        frame(header(), body_size=MAX_BODY + 1),
        frame(header(("a", "float32", [2])), b"1234"),
        frame(header(("a", "float32", [1 << 40])), b"1234"),
        frame(header(("a", "float32", [1 << 40, 0]))),
        frame(header(("a", "float32", [-1, -1])), b"1234"),
        frame(header(("a", "float32", [1.0])), b"1234"),
        frame(header(("a", "float32", [True])), b"1234"),
        frame(header(("a", "float32", 1)), b"1234"),
        frame(header(("a", "float32", [1] * 9)), b"1234"),
        frame(header(("a", "object", [1])), b"12345678"),
        frame(header(("a", "O", [1])), b"12345678"),
        frame(header(("a", "V4", [1])), b"1234"),
        frame(header(("a", "bool", [1])), b"\x02"),
        frame(header(("a", "uint8", [1]), ("a", "uint8", [1])), b"12"),
        frame(header((3, "uint8", [1])), b"1"),
        frame(header(kind=3)),
        frame(header(fields=[])),
        frame(header(arrays=None)),
        frame([1]),
        frame(b'{"kind": "x", "fields": {"y": NaN}, "arrays": []}'),
        frame(b"[" * 60_000),
        frame(b'{"kind": ' + b"9" * 10_000 + b"}"),
        frame(b"\xff\xfe"),
    ],
)
def test_invalid_frame_is_refused(wrong, pair):
    with pytest.raises(WireError):
        decode(wrong)
    connection, peer = pair
    peer.sendall(wrong)
    peer.close()
    with pytest.raises(WireError):
        connection.receive(deadline_s=soon())


@pytest.mark.parametrize("claimed", [MAX_BODY + 1, 1 << 62, 1001])
def test_no_memory_is_allocated_for_a_body_that_is_too_large(claimed, pair):
    connection, peer = pair
    peer.sendall(frame(header(("a", "uint8", [claimed])), body_size=claimed))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="larger than allowed"):
            connection.receive(deadline_s=soon(), max_body=1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_header_is_checked_before_the_body_arrives(pair):
    connection, peer = pair
    peer.sendall(frame(header(("a", "uint8", [3])), body_size=500))
    with pytest.raises(WireError, match="do not have the size"):
        connection.receive(deadline_s=soon(30.0))


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array([1j])])
def test_arrays_of_other_types_are_not_sent(array):
    with pytest.raises(WireError, match="only plain numbers"):
        encode(Message(kind="x", arrays={"a": array}))


def test_header_above_the_maximum_is_not_sent():
    with pytest.raises(WireError, match="larger than the maximum"):
        encode(Message(kind="x", fields={"y": "z" * MAX_HEADER}))


@settings(max_examples=20, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.integers(1, 50))
def test_messages_in_small_pieces_arrive_in_order(messages, size):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    data = b"".join(map(encode, messages))

    def send_slowly():
        for start in range(0, len(data), size):
            peer.sendall(data[start : start + size])

    sender = threading.Thread(target=send_slowly)
    with own, peer:
        sender.start()
        for message in messages:
            assert encode(Connection(own).receive(deadline_s=soon())) == encode(message)
        sender.join()


def test_slow_message_does_not_extend_the_deadline(pair):
    connection, peer = pair
    data, stop = encode(MESSAGE), threading.Event()

    def send_slowly():
        for byte in data:
            if stop.wait(0.05):
                return
            peer.sendall(bytes([byte]))

    sender = threading.Thread(target=send_slowly)
    sender.start()
    with pytest.raises(DeadlineExceeded):
        connection.receive(deadline_s=soon(0.3))
    stop.set()
    sender.join()


def test_closed_connection_in_a_message_is_reported(pair):
    connection, peer = pair
    assert connection.is_idle()
    peer.sendall(encode(MESSAGE)[:-1])
    peer.close()
    assert not connection.is_idle()
    with pytest.raises(ConnectionLost):
        connection.receive(deadline_s=soon())


def test_close_ends_a_waiting_thread(pair):
    connection, _ = pair
    received = []
    waiter = threading.Thread(target=lambda: received.append(connection.wait_for_data()))
    waiter.start()
    time.sleep(0.1)
    connection.close()
    waiter.join(5)
    assert received == [False]
