"""What goes between the robot's processes: whole messages or none, and a death is an end of file, whenever it comes."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from dovetail.processes.channel import Channel, Gone
from dovetail.processes.wakeup import Ear, Ringer, bell, wait_for


@pytest.fixture
def ends():
    pair = Channel.pair()
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def ring():
    descriptors = list(bell())
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def raw(channel: Channel) -> socket.socket:
    return channel._socket


@pytest.mark.parametrize(
    "message", [{}, {"a": 1, "b": [1.5, None, "ä"], "c": {"d": True}}, {"long": "x" * 5_000_000}]
)
def test_what_is_sent_is_received(ends, message):
    ours, theirs = ends
    sender = threading.Thread(target=ours.send, args=(message,))  # more than a socket holds
    sender.start()
    assert theirs.receive(timeout_s=10.0) == message
    sender.join()


def test_messages_come_one_at_a_time_and_in_order(ends):
    ours, theirs = ends
    for number in range(100):
        ours.send({"number": number})
    for number in range(100):
        assert wait_for(theirs.fileno(), timeout_s=0.0)  # nothing was read ahead, where nobody would look for it
        assert theirs.receive(timeout_s=0.0) == {"number": number}
    assert theirs.receive(timeout_s=0.0) is None


def test_time_is_up(ends):
    _, theirs = ends
    began_s = time.monotonic()
    assert theirs.receive(timeout_s=0.1) is None
    assert 0.09 < time.monotonic() - began_s < 1.0


@pytest.mark.parametrize("num_bytes", [1, 3, 4, 5, 11])
def test_a_message_that_comes_in_parts_keeps_nobody_waiting(ends, num_bytes):
    """Its sender may be stopped in the middle of it; what has come is kept."""
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
def test_a_peer_that_dies_in_the_middle_of_a_message_is_gone(ends, num_bytes):
    ours, theirs = ends
    ours.send({"last": "words"})
    raw(ours).sendall((b"\0\0\0\x0d" + b'{"number": 7}')[:num_bytes])
    ours.close()
    assert theirs.receive(timeout_s=1.0) == {"last": "words"}
    for _ in range(2):
        with pytest.raises(Gone):
            theirs.receive(timeout_s=1.0)


def test_a_process_that_is_killed_while_it_sends_is_gone(ends):
    ours, theirs = ends
    code = (
        "import sys; from dovetail.processes.channel import Channel;"
        "Channel.of(int(sys.argv[1])).send({'long': 'x' * 50_000_000})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(ours.fileno())], pass_fds=[ours.fileno()])
    ours.close()
    assert wait_for(theirs.fileno(), timeout_s=20.0)
    process.send_signal(signal.SIGKILL)  # a socket holds far less than all of it, and nobody has read any
    process.wait()
    with pytest.raises(Gone):
        theirs.receive(timeout_s=5.0)


def test_nobody_can_be_told_who_is_gone(ends):
    ours, theirs = ends
    assert theirs.is_open()
    ours.send({"last": "words"})
    ours.close()
    assert theirs.is_open()  # there is something to be read yet
    assert theirs.receive(timeout_s=0.0) == {"last": "words"}
    assert not theirs.is_open()
    with pytest.raises(Gone):
        theirs.send({"a": 1})
    theirs.close()
    assert not theirs.is_open()
    with pytest.raises(Gone):
        theirs.receive(timeout_s=0.0)


def test_nonsense_is_as_good_as_gone(ends):
    ours, theirs = ends
    raw(ours).sendall(b"\xff\xff\xff\xff")
    with pytest.raises(Gone):
        theirs.receive(timeout_s=1.0)


def test_what_is_too_long_is_not_sent(ends):
    ours, theirs = ends
    with pytest.raises(ValueError, match="67108864 at most"):
        ours.send({"long": "x" * (64 << 20)})
    ours.send({"short": 1})
    assert theirs.receive(timeout_s=1.0) == {"short": 1}


def test_a_bell_is_heard_until_its_ringer_dies(ring):
    ear, ringer = Ear(ring[0]), Ringer(ring[1])
    assert ear.hears()
    began_s = time.monotonic()
    assert ear.wait(0.05)  # alive, and silent
    assert time.monotonic() - began_s > 0.04
    threading.Timer(0.05, ringer.ring).start()
    began_s = time.monotonic()
    assert ear.wait(5.0)
    assert time.monotonic() - began_s < 1.0
    ringer.ring()
    os.close(ring.pop())
    assert ear.hears()  # its last ring
    for _ in range(3):
        assert not ear.wait(5.0)
    assert not ear.hears()


def test_a_bell_that_nobody_hears_never_holds_its_ringer_up(ring):
    ringer = Ringer(ring[1])
    for _ in range(100_000):
        ringer.ring()
    os.close(ring.pop(0))
    ringer.ring()  # nor does one whose hearer is dead


def test_descriptors_above_1023_will_do():
    """Trap: select() refuses them, and a learner that maps its replay has many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 2048 > hard != resource.RLIM_INFINITY:
        pytest.skip(f"no more than {hard} descriptors to be had")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while descriptors[-1] < 1030:
            descriptors.append(os.dup(descriptors[0]))
        ours, theirs = Channel.pair()
        ear, ringer = bell()
        assert min(ours.fileno(), ear) > 1023
        ours.send({"a": 1})
        assert theirs.receive(timeout_s=1.0) == {"a": 1}
        Ringer(ringer).ring()
        assert Ear(ear).wait(1.0)
        for end in (ours, theirs):
            end.close()
        for descriptor in (ear, ringer):
            os.close(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
