"""Damaged and hostile messages between a policy server and its clients, over real sockets, under a memory limit.

    python -m support.fuzz_policy_wire server|client SECONDS [SEED]

Prints as JSON how many messages were sent. A failure is an exception other than the allowed ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail.config.policy_server import LearningServerConfig
from dovetail.core.errors import PolicyError
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.handshake import client_handshake, server_handshake
from dovetail.policies.remote.trained import TrainedRemotePolicy
from dovetail.policies.remote.weights import component_hash, use_message, weight_messages
from dovetail.policies.remote.wire import PREFIX, Message, WireError, encode
from dovetail.serve.weights import ServedWeights
from support.fuzz.memory import limit_memory
from support.policy_servers import TOKEN, ScriptedPolicy, client, inputs, serving

__all__: list[str] = []

_DETERMINISTIC = ActContext(deterministic=True)
_HUGE = (2**20, 2**28, 2**31 - 1, 2**32 - 1, 2**53, 2**62, 2**63, 2**64 - 1, 10**400)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, "", "hello", "\ud800", "\x1b[2J", "float32", "O", "S999999999", "U9",
    [], {}, [[]], {"a": {}}, *_HUGE, *(-one for one in _HUGE), "x" * 5000,
)  # fmt: skip
_RUN = "0123456789abcdef" * 2
_WEIGHTS = WeightSnapshot(
    version=3,
    components={"actor": {"w": np.arange(6, dtype=np.float32)}, "normalizer": {"mean/x": np.zeros(2, np.float64)}},
    hashes={},
)
_DEEP = ('{"kind": "chunk", "fields": {"x": ' + "[" * 900 + "]" * 900 + '}, "arrays": []}').encode()
_HEADERS = (b"[" * 60_000, b'{"a":' * 12_000, b"1" * 60_000, b"\xff" * 100, b"", b"null", b'{"kind": NaN}', _DEEP)


def mutated(value: Any, rng: random.Random) -> Any:
    """The JSON value with some of its parts replaced, removed or repeated."""
    if rng.random() < 0.12:
        return rng.choice(_VALUES)
    if isinstance(value, dict):
        return {key: mutated(one, rng) for key, one in value.items() if rng.random() > 0.04}
    if isinstance(value, list):
        copies = [mutated(one, rng) for one in value for _ in range(rng.choice((1, 1, 1, 1, 0, 2, 300)))]
        return copies[:400]
    return value


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """A frame with a changed header, other sizes, changed bytes or a part of it."""
    header_size = PREFIX.unpack(frame[: PREFIX.size])[1]
    header, body = frame[PREFIX.size : PREFIX.size + header_size], frame[PREFIX.size + header_size :]
    kind = rng.randrange(6)
    if kind == 0:
        header = rng.choice(_HEADERS)
    elif kind < 4:
        header = json.dumps(mutated(json.loads(header), rng)).encode()
    if rng.random() < 0.3:
        body = body[: rng.randrange(len(body) + 1)] + rng.randbytes(rng.randrange(100))
    sizes = [len(header), len(body)]
    if rng.random() < 0.3:
        sizes[rng.randrange(2)] = rng.choice([one for one in _HUGE if one < 2**32])
    data = bytearray(PREFIX.pack(b"DVTL", *sizes) + header + body)
    if kind == 4:
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if kind == 5:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


def fuzz_server(end_s: float, rng: random.Random) -> Counter[str]:
    """Strangers and clients with the token send damaged messages. A client is served after each."""
    counts, policy, log = Counter[str](), ScriptedPolicy(), list[str]()
    failures: list[Any] = []
    threading.excepthook = failures.append
    hello = encode(Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64, "proof": "0" * 64}))
    fields = {"number": 1, "deterministic": True, "seed": None, "delay": 0, "horizon": 1}
    arrays = {"force": np.zeros((1, 2), np.float32), "context/prefix": np.zeros((1, 3, 2), np.float32)}
    act = encode(Message(kind="act", fields=fields, arrays=arrays))
    requests = (act, act, *map(encode, (use_message(_WEIGHTS, run=_RUN), *weight_messages(_WEIGHTS))))
    taken = _Taken()
    weights = ServedWeights(taken, max_bytes=1 << 20, log=log.append)
    with serving(policy, log=log, weights=weights) as address, client(address) as robot:
        host, _, port = address.rpartition(":")
        limit_memory()
        while time.monotonic() < end_s:
            with socket.create_connection((host, int(port)), timeout=10) as sock:
                connection, is_proven = Connection(sock), rng.random() < 0.6
                if is_proven:
                    client_handshake(connection, TOKEN, deadline_s=time.monotonic() + 10)
                with contextlib.suppress(OSError):  # closed by the server before the end of the message
                    for frame in (
                        rng.sample(requests, rng.randint(0, 3)) if is_proven else ()
                    ):  # parts of weights, too
                        sock.sendall(frame)
                    sock.sendall(damaged(rng.choice(requests) if is_proven else hello, rng))
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
            counts["proven" if is_proven else "stranger"] += 1
            if sum(counts.values()) % 20 == 0:
                with learning_client(address) as sender:
                    sender.load(_WEIGHTS)
                    assert sender.act(inputs(policy.spec), _DETERMINISTIC).policy_version == 7
                assert robot.act(inputs(policy.spec), _DETERMINISTIC).policy_version == 7
    assert not failures, failures[0]
    assert all(line.isprintable() for line in log)
    assert taken.num_used, "no weights arrived complete"
    return counts


class _Taken:
    """Takes weights that arrived complete: those of the hashes, whose sizes the server has checked."""

    num_used = 0

    def use(self, snapshot: WeightSnapshot) -> None:
        assert {name: component_hash(arrays) for name, arrays in snapshot.components.items()} == snapshot.hashes
        self.num_used += 1

    def stored(self, version: int) -> WeightSnapshot | None:
        return None


def fuzz_client(end_s: float, rng: random.Random) -> Counter[str]:
    """A server, with and without the token, sends damaged messages. The client raises PolicyError or gets a valid chunk."""
    counts, spec, ended = Counter[str](), ScriptedPolicy().spec, threading.Event()
    fields = {"number": 1, "policy_version": 7, "server_s": 0.1}
    arrays = {"actions": np.zeros((1, 3, 2), np.float32), "extra/value": np.zeros((1,), np.float32)}
    hello = encode(Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64}))
    chunk = encode(Message(kind="chunk", fields=fields, arrays=arrays))
    error = encode(Message(kind="error", fields={"message": "no"}))
    outdated = encode(Message(kind="outdated", fields={"policy_version": 3}))
    of_weights = [encode(Message(kind=kind)) for kind in ("using", "send", "done")]

    def serve(listener: socket.socket) -> None:
        while not ended.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            with sock:
                try:
                    sock.settimeout(5)
                    if rng.random() < 0.2:
                        sock.sendall(damaged(hello, rng))
                    elif rng.random() < 0.3:
                        welcome(sock, rng)
                    else:
                        server_handshake(Connection(sock), TOKEN, spec, deadline_s=time.monotonic() + 5)
                        connection = Connection(sock)
                        for _ in range(8):
                            request = connection.receive(deadline_s=time.monotonic() + 5)
                            answers = (
                                (chunk, chunk, chunk, error, outdated) if request.kind == "act" else of_weights
                            )
                            answer = rng.choice(answers)
                            sock.sendall(answer if rng.random() < 0.5 else damaged(answer, rng))
                    sock.shutdown(socket.SHUT_WR)
                except (WireError, OSError):
                    pass

    def welcome(sock: socket.socket, rng: random.Random) -> None:
        """The handshake, with a damaged welcome."""

        class Damaging(Connection):
            def send(self, message: Message, *, deadline_s: float) -> None:
                frame = encode(message)
                sock.sendall(damaged(frame, rng) if message.kind == "welcome" else frame)

        server_handshake(Damaging(sock), TOKEN, spec, deadline_s=time.monotonic() + 5)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        limit_memory()
        try:
            while time.monotonic() < end_s:
                with rng.choice((client, learning_client))(address, timeout_s=0.3, connect_timeout_s=0.3) as robot:
                    try:
                        if isinstance(robot, TrainedRemotePolicy):
                            robot.load(_WEIGHTS)
                        robot.warmup()
                        counts["accepted"] += 1
                    except PolicyError as refused:
                        counts["refused" if str(refused).isprintable() else "not printable"] += 1
        finally:
            ended.set()
            thread.join(10)
    return counts


@contextlib.contextmanager
def learning_client(address: str, **settings: float) -> Iterator[TrainedRemotePolicy]:
    """The client of a run that learns: it sends weights."""
    os.environ["TEST_TOKEN"] = TOKEN.decode()
    config = LearningServerConfig(address=address, token_env="TEST_TOKEN", weights_timeout_s=0.3, **settings)
    spec, untrained = ScriptedPolicy().spec, _WEIGHTS.components
    policy = TrainedRemotePolicy(config, spec=spec, run=_RUN, untrained=lambda: untrained, waits=False)
    try:
        yield policy
    finally:
        policy.close()


def main(side: str, seconds: float, seed: int) -> None:
    run = {"server": fuzz_server, "client": fuzz_client}[side]
    counts = run(time.monotonic() + seconds, random.Random(seed))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({**counts, "peak_mb": peak_mb}))  # noqa: T201 - a script


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
