"""Frames: whatever is said arrives as it was, and whatever else arrives is refused."""

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

from dovetail.policies.remote.connection import Connection, HungUp, TooSlow
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
SAID = Message(
    kind="act", fields={"seed": 3}, arrays={"mask": np.array([True]), "x": np.arange(6.0).reshape(2, 3)}
)


def frame(header, body=b"", *, magic=b"DVTL", header_size=None, body_size=None):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    sizes = (len(data) if header_size is None else header_size, len(body) if body_size is None else body_size)
    return struct.pack("<4sIQ", magic, *sizes) + data + body


def header(*arrays, **other):
    described = [dict(zip(("name", "dtype", "shape"), array, strict=True)) for array in arrays]
    return {"kind": "act", "fields": {}, "arrays": described} | other


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    yield Connection(ours), theirs
    ours.close()
    theirs.close()


def soon(seconds=5.0):
    return time.monotonic() + seconds


@given(MESSAGES)
def test_what_is_said_arrives_bit_for_bit(message):
    heard = decode(encode(message))
    assert (heard.kind, heard.fields) == (message.kind, message.fields)
    assert list(heard.arrays) == list(message.arrays)
    for name, array in message.arrays.items():
        assert heard.arrays[name].dtype == array.dtype and heard.arrays[name].shape == array.shape
        assert heard.arrays[name].tobytes() == array.tobytes()  # NaN and its payload too
        assert heard.arrays[name].flags.writeable and heard.arrays[name].flags.aligned


@pytest.mark.parametrize(
    "array",
    [np.arange(24).reshape(4, 6).T, np.arange(24)[::-2], np.arange(5, dtype=">f4"), np.array(3.5)],
    ids=["transposed", "reversed", "big-endian", "a number"],
)
def test_arrays_may_lie_in_memory_as_they_like(array):
    heard = decode(encode(Message(kind="x", arrays={"a": array}))).arrays["a"]
    np.testing.assert_array_equal(heard, array)
    assert heard.shape == array.shape and heard.dtype.isnative


@given(MESSAGES, st.data())
def test_a_frame_cut_off_anywhere_is_refused(message, data):
    whole = encode(message)
    with pytest.raises(WireError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.data())
def test_a_garbled_frame_is_refused_or_is_still_a_message(data):
    garbled = bytearray(encode(SAID))
    for _ in range(data.draw(st.integers(1, 4))):
        garbled[data.draw(st.integers(0, len(garbled) - 1))] = data.draw(st.integers(0, 255))
    try:
        heard = decode(bytes(garbled))
    except WireError:
        return
    assert sum(array.nbytes for array in heard.arrays.values()) == 49


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
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
def test_a_frame_that_breaks_a_rule_is_refused(wrong, pair):
    with pytest.raises(WireError):
        decode(wrong)
    connection, theirs = pair
    theirs.sendall(wrong)
    theirs.close()
    with pytest.raises(WireError):
        connection.receive(deadline_s=soon())


@pytest.mark.parametrize("claimed", [MAX_BODY + 1, 1 << 62, 1001])
def test_nothing_is_reserved_for_a_body_that_is_too_large(claimed, pair):
    connection, theirs = pair
    theirs.sendall(frame(header(("a", "uint8", [claimed])), body_size=claimed))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="more than is taken at once"):
            connection.receive(deadline_s=soon(), max_body=1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_body_is_not_awaited_before_its_header_fits(pair):
    connection, theirs = pair
    theirs.sendall(frame(header(("a", "uint8", [3])), body_size=500))
    with pytest.raises(WireError, match="do not come to the size"):
        connection.receive(deadline_s=soon(30.0))


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array([1j])])
def test_only_plain_numbers_are_sent(array):
    with pytest.raises(WireError, match="only plain numbers"):
        encode(Message(kind="x", arrays={"a": array}))


def test_too_much_is_not_sent():
    with pytest.raises(WireError, match="more than may be sent"):
        encode(Message(kind="x", fields={"y": "z" * MAX_HEADER}))


@settings(max_examples=20, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.integers(1, 50))
def test_messages_arrive_in_order_however_they_trickle_in(messages, size):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    data = b"".join(map(encode, messages))

    def trickle():
        for start in range(0, len(data), size):
            theirs.sendall(data[start : start + size])

    sender = threading.Thread(target=trickle)
    with ours, theirs:
        sender.start()
        for message in messages:
            assert encode(Connection(ours).receive(deadline_s=soon())) == encode(message)
        sender.join()


def test_a_trickle_does_not_put_off_the_deadline(pair):
    connection, theirs = pair
    data, ended = encode(SAID), threading.Event()

    def trickle():
        for byte in data:
            if ended.wait(0.05):
                return
            theirs.sendall(bytes([byte]))

    sender = threading.Thread(target=trickle)
    sender.start()
    with pytest.raises(TooSlow):
        connection.receive(deadline_s=soon(0.3))
    ended.set()
    sender.join()


def test_hanging_up_in_the_middle(pair):
    connection, theirs = pair
    assert connection.is_quiet()
    theirs.sendall(encode(SAID)[:-1])
    theirs.close()
    assert not connection.is_quiet()
    with pytest.raises(HungUp):
        connection.receive(deadline_s=soon())


def test_closing_wakes_up_whoever_waits(pair):
    connection, _ = pair
    heard = []
    waiter = threading.Thread(target=lambda: heard.append(connection.wait()))
    waiter.start()
    time.sleep(0.1)
    connection.close()
    waiter.join(5)
    assert heard == [False]
