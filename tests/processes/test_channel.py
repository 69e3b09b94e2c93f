"""Channels and wakeup pipes deliver complete messages, and report the end of the other process."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from dovetail.processes.array_channel import ArrayChannel
from dovetail.processes.channel import Channel, ChannelClosed
from dovetail.processes.wakeup import WakeupReader, WakeupWriter, wait_for


@pytest.fixture
def ends():
    pair = Channel.pair()
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def pipe():
    descriptors = list(os.pipe())
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def raw(channel: Channel) -> socket.socket:
    return channel._socket


@pytest.mark.parametrize(
    "message", [{}, {"a": 1, "b": [1.5, None, "ä"], "c": {"d": True}}, {"long": "x" * 5_000_000}]
)
def test_sent_message_is_received(ends, message):
    ours, theirs = ends
    sender = threading.Thread(target=ours.send, args=(message,))  # larger than the socket's buffer
    sender.start()
    assert theirs.receive(timeout_s=10.0) == message
    sender.join()


def test_messages_are_received_one_at_a_time_and_in_order(ends):
    ours, theirs = ends
    for number in range(100):
        ours.send({"number": number})
    for number in range(100):
        assert wait_for(theirs.fileno(), timeout_s=0.0)  # nothing was read ahead
        assert theirs.receive(timeout_s=0.0) == {"number": number}
    assert theirs.receive(timeout_s=0.0) is None


def test_receive_returns_none_after_the_timeout(ends):
    _, theirs = ends
    began_s = time.monotonic()
    assert theirs.receive(timeout_s=0.1) is None
    assert 0.09 < time.monotonic() - began_s < 1.0


@pytest.mark.parametrize("num_bytes", [1, 3, 4, 5, 11])
def test_incomplete_message_does_not_block_receive(ends, num_bytes):
    """The sender may be stopped in the middle of a message. The received part is kept."""
    ours, theirs = ends
    data = b"\0\0\0\x0d" + b'{"number": 7}'
    raw(ours).sendall(data[:num_bytes])
    for _ in range(2):
        began_s = time.monotonic()
        assert theirs.receive(timeout_s=0.05) is None
        assert time.monotonic() - began_s < 1.0
    raw(ours).sendall(data[num_bytes:])
    ours.send({"number": 8})
    assert theirs.receive(timeout_s=1.0) == {"number": 7}
    assert theirs.receive(timeout_s=1.0) == {"number": 8}


@pytest.mark.parametrize("num_bytes", [0, 2, 4, 9])
def test_peer_that_ends_within_a_message_closes_the_channel(ends, num_bytes):
    ours, theirs = ends
    ours.send({"last": "message"})
    raw(ours).sendall((b"\0\0\0\x0d" + b'{"number": 7}')[:num_bytes])
    ours.close()
    assert theirs.receive(timeout_s=1.0) == {"last": "message"}
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            theirs.receive(timeout_s=1.0)


def test_process_killed_while_sending_closes_the_channel(ends):
    ours, theirs = ends
    code = (
        "import sys; from dovetail.processes.channel import Channel;"
        "Channel.from_descriptor(int(sys.argv[1])).send({'long': 'x' * 50_000_000})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(ours.fileno())], pass_fds=[ours.fileno()])
    ours.close()
    assert wait_for(theirs.fileno(), timeout_s=20.0)
    process.send_signal(signal.SIGKILL)  # the socket's buffer is much smaller than the message
    process.wait()
    with pytest.raises(ChannelClosed):
        theirs.receive(timeout_s=5.0)


def test_send_to_an_ended_process_raises(ends):
    ours, theirs = ends
    assert theirs.is_open()
    ours.send({"last": "message"})
    ours.close()
    assert theirs.is_open()  # a message is left
    assert theirs.receive(timeout_s=0.0) == {"last": "message"}
    assert not theirs.is_open()
    with pytest.raises(ChannelClosed):
        theirs.send({"a": 1})
    theirs.close()
    assert not theirs.is_open()
    with pytest.raises(ChannelClosed):
        theirs.receive(timeout_s=0.0)


def test_invalid_length_closes_the_channel(ends):
    ours, theirs = ends
    raw(ours).sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ChannelClosed):
        theirs.receive(timeout_s=1.0)


def test_too_long_message_is_refused(ends):
    ours, theirs = ends
    with pytest.raises(ValueError, match="the limit is 67108864"):
        ours.send({"long": "x" * (64 << 20)})
    ours.send({"short": 1})
    assert theirs.receive(timeout_s=1.0) == {"short": 1}


def test_wakeups_arrive_until_the_writer_ends(pipe):
    reader, writer = WakeupReader(pipe[0]), WakeupWriter(pipe[1])
    assert reader.drain()
    began_s = time.monotonic()
    assert reader.wait(0.05)  # alive, without a wakeup
    assert time.monotonic() - began_s > 0.04
    threading.Timer(0.05, writer.wake).start()
    began_s = time.monotonic()
    assert reader.wait(5.0)
    assert time.monotonic() - began_s < 1.0
    writer.wake()
    os.close(pipe.pop())
    assert reader.drain()  # the last wakeup
    for _ in range(3):
        assert not reader.wait(5.0)
    assert not reader.drain()


def test_writer_never_blocks_on_a_full_or_closed_pipe(pipe):
    writer = WakeupWriter(pipe[1])
    for _ in range(100_000):
        writer.wake()
    os.close(pipe.pop(0))
    writer.wake()


def test_descriptors_above_1023_work():
    """select() refuses them, and a learner that maps its replay has many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 2048 > hard != resource.RLIM_INFINITY:
        pytest.skip(f"the limit is {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while descriptors[-1] < 1030:
            descriptors.append(os.dup(descriptors[0]))
        ours, theirs = Channel.pair()
        reader, writer = os.pipe()
        assert min(ours.fileno(), reader) > 1023
        ours.send({"a": 1})
        assert theirs.receive(timeout_s=1.0) == {"a": 1}
        WakeupWriter(writer).wake()
        assert WakeupReader(reader).wait(1.0)
        for end in (ours, theirs):
            end.close()
        for descriptor in (reader, writer):
            os.close(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_array_channel_carries_arrays_unchanged():
    ours, theirs = ArrayChannel.pair()
    sent = {
        "empty": np.zeros((0, 3), np.float32),
        "transposed": np.arange(6).reshape(2, 3).T,
        "bool": np.array([True, False]),
        "scalar": np.array(5),
    }
    ours.send({"version": 3}, sent)
    assert theirs.has_data()
    message, received = theirs.receive()
    assert message == {"version": 3}
    assert sent.keys() == received.keys()
    assert all(np.array_equal(sent[name], received[name]) for name in sent)
    assert all(array.flags.writeable for array in received.values())
    ours.close()
    theirs.close()
