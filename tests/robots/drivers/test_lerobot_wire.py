"""Framing of the bridge: what is sent arrives, and damaged bytes end in an error, never in a hang or a wrong array."""

import json
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message, WireError, encode, receive, send

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.sampled_from([np.uint8, "<u2", "<f4", "<f8"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=4,
)
FIELDS = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key not in ("type", "arrays")),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    max_size=4,
)


def through_socket(data: bytes, *, piece: int = 1 << 20, timeout_s: float = 5.0) -> Message | None:
    """Write bytes in pieces, close, and read one message."""
    ours, theirs = socket.socketpair()

    def write() -> None:
        with theirs:
            for at in range(0, len(data), piece):
                try:
                    theirs.sendall(data[at : at + piece])
                except OSError:
                    return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with ours:
            return receive(ours, deadline_s=time.monotonic() + timeout_s)
    finally:
        thread.join()


@settings(max_examples=100, deadline=None)
@given(fields=FIELDS, arrays=ARRAYS, piece=st.integers(1, 200))
def test_a_message_in_pieces_of_any_size_arrives_unchanged(fields, arrays, piece):
    got = through_socket(b"".join(bytes(part) for part in encode(Message("x", fields, arrays))), piece=piece)
    assert got is not None and got.type == "x" and got.fields == fields and list(got.arrays) == list(arrays)
    for name, array in arrays.items():
        assert got.arrays[name].dtype == array.dtype and got.arrays[name].shape == array.shape
        assert got.arrays[name].tobytes() == array.tobytes()


@settings(max_examples=200, deadline=None)
@given(data=st.data(), arrays=ARRAYS)
def test_a_damaged_message_is_an_error_or_a_valid_message(data, arrays):
    whole = bytearray(b"".join(bytes(part) for part in encode(Message("x", {"a": 1}, arrays))))
    how = data.draw(st.sampled_from(["cut", "flip", "insert", "random"]))
    if how == "cut":
        whole = whole[: data.draw(st.integers(1, len(whole) - 1))]
    elif how == "flip":
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    elif how == "insert":
        at = data.draw(st.integers(0, len(whole)))
        whole[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    else:
        whole = bytearray(data.draw(st.binary(min_size=1, max_size=200)))
    try:
        got = through_socket(bytes(whole))
    except WireError:
        return
    assert how in ("flip", "insert") and got is not None  # a changed value, or bytes after the message


def test_a_closed_connection_between_messages_is_no_error():
    assert through_socket(b"") is None


def test_a_message_that_stops_in_the_middle_times_out():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(encode(Message("x", {}, {"a": np.zeros(100)}))[0])
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            receive(ours, deadline_s=began_s + 0.1)
        assert time.monotonic() - began_s < 2.0


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"type": "x", "arrays": [["a", "|O8", [1]]]}, 8),  # objects would need pickle
        ({"type": "x", "arrays": [["a", "<f8", [-1]]]}, 8),
        ({"type": "x", "arrays": [["a", "<f8", [2]]]}, 8),
        ({"type": "x", "arrays": [["a", "<f8", [1 << 40]]]}, 8),
        ({"type": "x", "arrays": [["a", "<f8", [True]]]}, 8),
        ({"type": "x", "arrays": [["a", "|u1", [4]], ["a", "|u1", [4]]]}, 8),
        ({"type": 3, "arrays": []}, 0),
        ({"arrays": []}, 0),
        ([], 0),
    ],
)
def test_an_invalid_header_is_refused(header, size):
    raw = json.dumps(header).encode()
    with pytest.raises(WireError):
        through_socket(struct.pack("!4sIQ", b"DVB1", len(raw), size) + raw + bytes(size))


def test_a_huge_length_is_refused_before_memory_is_used():
    with pytest.raises(WireError, match="more than allowed"):
        through_socket(struct.pack("!4sIQ", b"DVB1", 10, 1 << 60))


def test_a_frame_is_read_into_a_given_buffer():
    ours, theirs = socket.socketpair()
    frame = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    buffer = np.zeros((2, 4, 3), np.uint8)
    with ours, theirs:
        send(theirs, Message("x", {}, {"front": frame}))
        got = receive(ours, buffer_for=lambda name, shape, dtype: buffer if name == "front" else None)
        assert got is not None and got.arrays["front"] is buffer and (buffer == frame).all()
        send(theirs, Message("x", {}, {"front": frame[:1]}))
        with pytest.raises(WireError, match="does not fit its buffer"):
            receive(ours, buffer_for=lambda name, shape, dtype: buffer)
