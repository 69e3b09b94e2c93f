"""Clients without the token: whatever they send or keep open, robots are served."""

import contextlib
import socket
import threading
import time
import tracemalloc

import numpy as np
import pytest

from dovetail.core.types import ActContext
from dovetail.policies.remote.connection import Connection, DeadlineExceeded
from dovetail.policies.remote.wire import MAX_BODY, PREFIX, Message, encode
from dovetail.serve import server as serve
from support.policy_servers import ScriptedPolicy, client, inputs, serving
from support.waiting import wait_until

DETERMINISTIC = ActContext(deterministic=True)


def connected(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_robots_are_served_while_300_strangers_stay_connected():
    log = []
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(ScriptedPolicy(), log=log))
        first = stack.enter_context(client(address))
        assert first.act(inputs(first.spec), DETERMINISTIC).policy_version == 7
        for _ in range(300):
            stack.enter_context(connected(address))
        assert first.act(inputs(first.spec), DETERMINISTIC).policy_version == 7  # on its open connection
        for _ in range(3):
            another = stack.enter_context(client(address))
            assert another.act(inputs(another.spec), DETERMINISTIC).policy_version == 7
    crowded = [line for line in log if line.startswith("many connections without the token")]
    assert len(crowded) == 1


def test_strangers_have_at_most_their_share_of_threads():
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(ScriptedPolicy()))
        for _ in range(300):
            stack.enter_context(connected(address))
        with client(address) as remote:
            assert remote.spec.name == "scripted"
        wait_until(
            lambda: threading.active_count() - before <= serve.MAX_UNPROVEN_PER_ADDRESS + 3
        )  # the server, and two that are ending


def test_new_robot_connects_during_inference():
    may_end = threading.Event()

    def slow(observations, context):
        may_end.wait(30)
        return np.zeros((1, 3, 2), np.float32)

    policy = ScriptedPolicy(slow)
    with serving(policy) as address, client(address, timeout_s=30.0) as busy:
        thread = threading.Thread(target=lambda: busy.act(inputs(policy.spec), DETERMINISTIC))
        thread.start()
        wait_until(lambda: policy.calls)
        with client(address, connect_timeout_s=5.0) as another:
            assert another.spec.name == "scripted"
            another.reset()
        may_end.set()
        thread.join(10)


@pytest.mark.parametrize(
    "data",
    [
        PREFIX.pack(b"DVTL", 2**32 - 1, 0),
        PREFIX.pack(b"DVTL", 10, 2**64 - 1),
        PREFIX.pack(b"DVTL", 60_000, 0) + b"[" * 60_000,
        PREFIX.pack(b"DVTL", 60_000, 0) + b'{"a":' * 12_000,
        encode(Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64, "proof": [[[[]]]]})),
        encode(Message(kind="hello", fields={"protocol": [[]]})),
        encode(Message(kind="error", fields={"message": [[]]})),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,  # TLS
    ],
    ids=["header", "body", "lists", "dicts", "proof", "protocol", "error", "http", "tls"],
)
def test_garbage_is_cut_off_with_one_line(data):
    log = []
    with serving(ScriptedPolicy(), log=log) as address, connected(address) as stranger:
        stranger.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
        wait_until(lambda: log)
    assert len(log) == 1 and " closed: " in log[0] and log[0].isprintable()


def test_endless_header_is_cut_off_at_the_time_limit(monkeypatch):
    monkeypatch.setattr(serve, "HANDSHAKE_S", 0.5)
    with serving(ScriptedPolicy()) as address, connected(address) as stranger:
        stranger.sendall(PREFIX.pack(b"DVTL", 60_000, 0))
        with pytest.raises(OSError):  # noqa: PT011, PT012 - reset or broken pipe
            for _ in range(200):
                stranger.sendall(b" ")
                time.sleep(0.05)


def test_stated_size_alone_allocates_no_memory():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    header = (
        b'{"kind": "act", "fields": {}, "arrays": [{"name": "a", "dtype": "uint8", "shape": [%d]}]}' % MAX_BODY
    )
    with theirs:
        theirs.sendall(PREFIX.pack(b"DVTL", len(header), MAX_BODY) + header + b"ten bytes.")
        connection = Connection(ours)
        tracemalloc.start()
        try:
            with pytest.raises(DeadlineExceeded):
                connection.receive(deadline_s=time.monotonic() + 0.3)
            assert tracemalloc.get_traced_memory()[1] < 2 << 20
        finally:
            tracemalloc.stop()
            connection.close()
