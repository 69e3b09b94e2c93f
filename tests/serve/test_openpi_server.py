"""The server for openpi's protocol: batches, dropped requests, refusals, hostile messages and the real client."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect
from websockets.uri import parse_uri

from dovetail.core.errors import PolicyError, PolicyUnreachable, SpecMismatch
from dovetail.core.specs import PolicySpec
from dovetail.core.types import ActContext, ActionChunk
from dovetail.policies.openpi.keys import KeyMap, key_map
from dovetail.policies.openpi.packing import MAX_MESSAGE, pack, unpack
from dovetail.serve import batching
from dovetail.serve import listener as limits
from dovetail.serve.openpi_server import OpenpiServer
from support.openpi_servers import ROBOT, observed, openpi_client

TOKEN = b"a-token-for-tests-long-enough"
STILL = ActContext(deterministic=True)
DROID = key_map("droid")


class EchoPolicy:
    """Actions (first joint, 1), (first joint, 2), (first joint, 3). It records the sizes of its batches."""

    def __init__(self, *, history: bool = False, guidable: bool = False) -> None:
        self.sizes: list[int] = []
        self.version, self.delay_s = 7, 0.0
        self.block = threading.Event()
        self.block.set()
        self.inputs: dict[str, Any] = {}
        self.spec = PolicySpec(
            name="echo",
            observation={key: ROBOT.observation[key] for key in ("joint_pos", "wrist")},
            action=ROBOT.action,
            action_kind=ROBOT.action_kind,
            horizon=3,
            history={"joint_pos": 2} if history else {},
            guidable=guidable,
            prompted=True,
        )

    def act(self, observations: Any, context: ActContext) -> ActionChunk:
        self.context = context
        self.inputs = dict(observations)
        self.sizes.append(len(observations["wrist"]))
        self.block.wait(10)
        time.sleep(self.delay_s)
        first = observations["joint_pos"].reshape(len(observations["wrist"]), -1, 3)[:, -1, 0]
        actions = np.stack([np.stack((first, np.full_like(first, i)), axis=-1) for i in (1, 2, 3)], axis=1)
        return ActionChunk(actions=actions, observed_ns=0, policy_version=self.version)

    def reset(self) -> None:
        raise AssertionError("the protocol has no resets")


@contextmanager
def serving(
    policy: Any, *, keys: KeyMap | None = DROID, log: list[str] | None = None, port: int = 0
) -> Iterator[str]:
    server = OpenpiServer(policy, token=TOKEN, keys=keys, log=(log if log is not None else []).append)
    address = server.listen(port=port)
    stopped = threading.Event()
    thread = threading.Thread(target=server.run, args=(stopped.is_set,))
    thread.start()
    try:
        yield address
    finally:
        stopped.set()
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def raw(address: str, *, key: bytes | None = TOKEN, path: str = "/") -> Iterator[ClientConnection]:
    headers = {} if key is None else {"Authorization": f"Api-Key {key.decode()}"}
    with connect(f"ws://{address}{path}", additional_headers=headers, compression=None, proxy=None) as connection:
        yield connection


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "key"
    file.write_bytes(TOKEN)
    file.chmod(0o600)
    return str(file)


def wire(first: float = 0.0) -> dict[str, Any]:
    return DROID.to_wire(observed(first), row=0)


def wait_until(condition):
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.01)


# ---- answers


def test_our_client_and_server_fit_each_other(key_file):
    policy = EchoPolicy()
    keys = {"like": "droid", "image_size": 64}
    with (
        serving(policy, keys=KeyMap.from_mapping({**DROID.model_dump(), "image_size": 64})) as address,
        openpi_client(address, keys=keys, api_key_file=key_file) as client,
    ):
        seen = observed(0.5)
        chunk = client.act(seen, STILL)
        assert chunk.policy_version == 7
        np.testing.assert_array_equal(chunk.actions, [[[0.5, 1], [0.5, 2], [0.5, 3]]])
        assert chunk.extras["server_s"][0] > 0.0
        for key in ("joint_pos", "wrist", "prompt"):
            np.testing.assert_array_equal(policy.inputs[key], seen[key])
        policy.version = 8  # new weights between two chunks
        assert client.act(seen, STILL).policy_version == 8


def test_metadata_and_timing_have_openpis_form():
    with serving(EchoPolicy()) as address, raw(address) as connection:
        metadata = unpack(connection.recv())
        assert metadata["horizon"] == 3 and metadata["action_axes"] == ["a", "b"]
        timings = []
        for _ in range(2):
            connection.send(pack({**wire(), "observation/wrist_image_left": np.zeros((64, 64, 3), np.uint8)}))
            answer = unpack(connection.recv())
            timings.append(set(answer["server_timing"]))
        assert timings == [{"infer_ms"}, {"infer_ms", "prev_total_ms"}]
        assert answer["actions"].shape == (3, 2) and set(answer["policy_timing"]) == {"infer_ms"}


def test_history_belongs_to_a_connection():
    policy = EchoPolicy(history=True)
    image = {"observation/wrist_image_left": np.zeros((3, 64, 64), np.float32)}  # channels first, floats
    with serving(policy) as address:
        for _ in range(2):
            with raw(address) as connection:
                assert unpack(connection.recv())["history"] is True
                for first, expected in ((1.0, [False, True]), (2.0, [True, True])):
                    connection.send(pack({**wire(first), **image}))
                    assert unpack(connection.recv())["actions"][0, 0] == first
                    assert policy.inputs["joint_pos/mask"].tolist() == [expected]
                assert policy.inputs["joint_pos"][0, :, 0].tolist() == [1.0, 2.0]


def small(first: float) -> bytes:
    return pack({**wire(first), "observation/wrist_image_left": np.zeros((64, 64, 3), np.uint8)})


def test_waiting_requests_are_one_batch_and_clients_that_left_are_dropped():
    policy = EchoPolicy()
    with serving(policy) as address:
        clients = [
            connect(f"ws://{address}/", additional_headers={"Authorization": f"Api-Key {TOKEN.decode()}"})
            for _ in range(6)
        ]
        clients = [client.__enter__() for client in clients]
        for client in clients:
            client.recv()
        policy.sizes.clear()
        policy.block.clear()
        clients[0].send(small(0.0))
        wait_until(lambda: policy.sizes == [1])  # computing; the others wait
        for number, client in enumerate(clients[1:], 1):
            client.send(small(float(number)))
        time.sleep(0.2)
        clients[5].close()
        time.sleep(0.2)
        policy.block.set()
        for number, client in enumerate(clients[:5]):
            assert unpack(client.recv(timeout=10))["actions"][0, 0] == number
            client.close()
        assert policy.sizes == [1, 4]


def test_old_request_is_refused(monkeypatch):
    monkeypatch.setattr(batching, "STALE_S", 0.2)
    policy = EchoPolicy()
    with serving(policy) as address, raw(address) as one, raw(address) as other:
        for connection in (one, other):
            connection.recv()
        policy.block.clear()
        one.send(small(1.0))
        wait_until(lambda: policy.sizes[-1:] == [1] and len(policy.sizes) == 4)  # after three warm-ups
        other.send(small(2.0))
        time.sleep(0.4)
        policy.block.set()
        assert unpack(one.recv(timeout=10))["actions"][0, 0] == 1.0
        assert "waited" in other.recv(timeout=10)


def ask_many(ask: Any, *, number: int, count: int, wrong: list[Any]) -> None:
    for index in range(count):
        first = number + index / 1024
        if (found := float(ask(first))) != first:
            wrong.append((first, found))


def from_20_clients(make: Any, *, count: int) -> list[Any]:
    """Swapped or failed answers."""
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            with make() as ask:
                ask_many(ask, number=number % 8, count=count, wrong=wrong)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return wrong


@pytest.mark.extended
def test_20_clients_with_50_requests_get_no_swapped_answer():
    policy = EchoPolicy()
    policy.delay_s = 0.002

    @contextmanager
    def make():
        with raw(address) as connection:
            connection.recv()

            def ask(first):
                connection.send(small(first))
                return unpack(connection.recv(timeout=30))["actions"][2, 0]

            yield ask

    with serving(policy) as address:
        assert from_20_clients(make, count=50) == []
    computed = policy.sizes[3:]  # after the warm-ups
    assert max(computed) > 1 and sum(computed) == 1000


@pytest.mark.extended
@pytest.mark.skipif(importlib.util.find_spec("openpi_client") is None, reason="openpi-client is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_real_openpi_client_works_unchanged_with_20_clients():
    """PYTHONPATH=FOLDER with `pip install --no-deps --target FOLDER openpi-client==0.1.2 dm-tree` (it pins numpy < 2)."""
    from openpi_client import image_tools
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    host, port = "127.0.0.1", 0

    @contextmanager
    def make():
        client = WebsocketClientPolicy(host, port, api_key=TOKEN.decode())
        image = image_tools.resize_with_pad(np.zeros((64, 64, 3), np.uint8), 64, 64)
        assert client.get_server_metadata()["horizon"] == 3
        yield lambda first: client.infer({**wire(first), "observation/wrist_image_left": image})["actions"][0, 0]
        client._ws.close()

    with serving(EchoPolicy()) as address:
        port = int(address.rpartition(":")[2])
        assert from_20_clients(make, count=50) == []
        client = WebsocketClientPolicy(host, port, api_key=TOKEN.decode())
        with pytest.raises(RuntimeError, match="has no 'observation/joint_position'"):
            client.infer({})
        with pytest.raises(InvalidStatus):
            WebsocketClientPolicy(host, port, api_key="wrong")
    frame = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    ours = DROID.to_wire({**observed(), "front": frame[None]}, row=0)["observation/exterior_image_1_left"]
    np.testing.assert_array_equal(ours, image_tools.resize_with_pad(frame, 224, 224))


# ---- refusals


@pytest.mark.parametrize("key", [None, b"wrong", TOKEN + b"x"])
def test_wrong_key_is_refused_at_the_upgrade(key):
    policy = EchoPolicy()
    with serving(policy) as address:
        with pytest.raises(InvalidStatus) as caught, raw(address, key=key):
            pass
        assert caught.value.response.status_code == 401
        with raw(address, path="/openpi/policy") as connection:
            connection.recv()
        with pytest.raises(InvalidStatus) as caught, raw(address, path="/other"):
            pass
        assert caught.value.response.status_code == 404


def test_health_needs_no_key():
    with (
        serving(EchoPolicy()) as address,
        urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as answer,
    ):
        assert (answer.status, answer.read()) == (200, b"OK\n")


def test_health_and_new_clients_are_answered_while_the_policy_computes():
    policy = EchoPolicy()
    with serving(policy) as address, raw(address) as busy:
        busy.recv()
        policy.block.clear()
        busy.send(small(0.5))
        wait_until(lambda: policy.sizes[3:] == [1])  # after the warm-ups
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as answer:
            assert answer.read() == b"OK\n"
        with raw(address) as other:
            assert unpack(other.recv(timeout=5))["horizon"] == 3
            assert other.ping().wait(5)
        policy.block.set()
        assert unpack(busy.recv(timeout=10))["actions"][0, 0] == 0.5


def test_our_client_names_a_wrong_key(tmp_path):
    file = tmp_path / "key"
    file.write_text("wrong")
    file.chmod(0o600)
    with (
        serving(EchoPolicy()) as address,
        openpi_client(address, api_key_file=str(file)) as client,
        pytest.raises(PolicyError, match=r"API key was refused \(HTTP 401\)"),
    ):
        client.warmup()


def bomb(depth: int) -> bytes:
    return b"\x81\xa1a" + b"\x91" * depth + b"\xc0"


def array(**changes: Any) -> bytes:
    fields = {"__ndarray__": True, "data": bytes(12), "dtype": "<f4", "shape": [3], **changes}
    return msgpack.packb({"observation/joint_position": {key.encode(): value for key, value in fields.items()}})


HOSTILE = {
    "empty": b"",
    "not a map": msgpack.packb([1]),
    "nested": bomb(100_000),
    "nested less": bomb(900),
    "stated length": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "stated map": b"\xdf\xff\xff\xff\xff",
    "stated bytes": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "many lists": b"\x81\xa1a\xdc\x03\xe8" + (b"\xdc\x03\xe8" + b"\x90" * 1000) * 1000,
    "extension": msgpack.packb({"a": msgpack.ExtType(42, b"x")}),
    "void": array(dtype="|V4"),
    "object": array(dtype="|O"),
    "complex": array(dtype="<c8"),
    "text dtype": array(dtype="<U1"),
    "fields": array(dtype="f4,f4"),
    "huge shape": array(shape=[2**62, 4]),
    "zero times huge": array(shape=[0, 2**62], data=b""),
    "negative": array(shape=[-1]),
    "short data": array(data=bytes(11)),
    "nan": array(data=np.full(3, np.nan, np.float32).tobytes()),
    "pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_message_is_one_line_and_others_are_served(name):
    policy = EchoPolicy()
    with serving(policy) as address, raw(address) as connection:
        connection.recv()
        connection.send(HOSTILE[name])
        answer = connection.recv(timeout=10)
        assert isinstance(answer, str) and answer.startswith("the request failed: ")
        assert "\n" not in answer and "Traceback" not in answer and "/" not in answer.replace("observation/", "")
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(timeout=10)
        assert caught.value.rcvd.code == 1011
        with raw(address) as other:
            other.recv()
            other.send(small(0.5))
            assert unpack(other.recv(timeout=10))["actions"][0, 0] == 0.5


def test_too_large_message_closes_the_connection():
    with serving(EchoPolicy()) as address, raw(address) as connection:
        connection.recv()
        with contextlib.suppress(ConnectionClosed):  # while it is still sent, or after
            connection.send(bytes(MAX_MESSAGE + 1))
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)


def test_strangers_do_not_keep_clients_out(monkeypatch):
    monkeypatch.setattr(limits, "MAX_UNPROVEN_PER_ADDRESS", 4)
    with serving(EchoPolicy()) as address:
        host, _, port = address.rpartition(":")
        strangers = [socket.create_connection((host, int(port)), timeout=5) for _ in range(8)]
        time.sleep(0.2)
        with raw(address) as connection:
            connection.recv()
            connection.send(small(0.5))
            assert unpack(connection.recv(timeout=10))["actions"][0, 0] == 0.5
        for stranger in strangers[:4]:  # the oldest ones were closed
            with pytest.raises((ConnectionError, AssertionError)):
                assert stranger.recv(1) != b""
        for stranger in strangers:
            stranger.close()


def test_failing_policy_is_one_line_without_paths():
    policy, log = EchoPolicy(), []
    with serving(policy, log=log) as address, raw(address) as connection:
        connection.recv()
        policy.version = "no number"  # type: ignore[assignment]
        connection.send(small(0.5))
        assert connection.recv(timeout=10).startswith("the request failed: ")
        assert any("ValueError" in line for line in log)


def test_keys_that_do_not_cover_the_policy_are_refused():
    with pytest.raises(SpecMismatch, match="needs observation 'wrist', which the keys do not give"):
        OpenpiServer(EchoPolicy(), token=TOKEN, keys=KeyMap(state={"state": ("joint_pos",)}))


def test_killed_server_means_an_error_and_a_restart_continues(key_file):
    settings = {"keys": {"like": "droid", "image_size": 64}, "api_key_file": key_file}
    with serving(EchoPolicy()) as address, openpi_client(address, **settings) as client:
        client.warmup()
    with pytest.raises(PolicyError, match=r"cannot connect|connection lost"):
        client.act(observed(), STILL)
    with serving(EchoPolicy(), port=int(address.rpartition(":")[2])):
        assert client.act(observed(0.5), STILL).actions[0, 0, 0] == 0.5
        client.close()


def test_request_to_a_server_that_closes_means_hold(key_file):
    """It gets no error text, which would stop the arm."""
    server = OpenpiServer(EchoPolicy(), token=TOKEN, keys=key_map("droid"))
    address, stopped = server.listen(), threading.Event()
    thread = threading.Thread(target=server.run, args=(stopped.is_set,))
    thread.start()
    keys = {"like": "droid", "image_size": 64}
    with openpi_client(address, keys=keys, api_key_file=key_file) as client:
        client.reset()
        server._batcher.close()  # the first step of a server's end
        with pytest.raises(PolicyUnreachable, match="connection lost"):
            client.act(observed(), STILL)
        stopped.set()
        thread.join(10)


def test_prefix_delay_and_horizon_reach_the_policy_in_its_own_order_of_axes(key_file):
    policy = EchoPolicy(guidable=True)
    prefix = np.array([[[1.0, 2.0], [3.0, 4.0], [np.nan, np.nan]]], np.float32)
    guided = ActContext(deterministic=False, seed=5, prefix=prefix, delay=1, horizon=2)
    settings = {"keys": {"like": "droid", "image_size": 64}, "api_key_file": key_file, "action_axes": ("b", "a")}
    with serving(policy) as address, openpi_client(address, **settings) as client:
        client.act(observed(4.0), guided)
    seen = policy.context
    assert (seen.deterministic, seen.seed, seen.delay, seen.horizon) == (False, 5, 1, 2)
    np.testing.assert_array_equal(seen.prefix, prefix[..., ::-1])


@pytest.mark.parametrize(
    "context",
    [
        7,
        {},
        {"deterministic": True, "seed": None, "delay": -1, "horizon": 1},
        {"deterministic": True, "seed": None, "delay": 0, "horizon": 1, "prefix": 3},
        {"deterministic": True, "seed": None, "delay": 0, "horizon": 1, "prefix": np.zeros((99, 2), np.float32)},
        {"deterministic": True, "seed": None, "delay": 0, "horizon": 1, "prefix": np.zeros((3, 2), np.int64)},
    ],
)
def test_invalid_context_is_refused_in_one_line(context):
    policy = EchoPolicy(guidable=True)
    with serving(policy) as address, raw(address) as connection:
        connection.recv()
        policy.inputs = {}
        connection.send(pack({**wire(4.0), "dovetail_context": context}))
        answer = connection.recv()
    assert isinstance(answer, str) and "\n" not in answer and ("context" in answer or "prefix" in answer)
    assert not policy.inputs


def test_deterministic_requests_with_the_same_delay_are_joined_and_random_ones_are_not():
    policy = EchoPolicy()
    batcher = batching.Batcher(policy, max_rows=8)
    contexts = [
        *(ActContext(deterministic=True, seed=seed, delay=1, horizon=2) for seed in (1, 2)),
        ActContext(deterministic=False, seed=3, delay=1, horizon=2),
        ActContext(deterministic=True, seed=4, delay=0, horizon=2),
        *(ActContext(deterministic=True, seed=seed, delay=1, horizon=2) for seed in (5, 6)),
    ]
    results = [batcher.submit(client, observed(float(client)), context) for client, context in enumerate(contexts)]
    batcher.start()
    computed = [result.result(10) for result in results]
    batcher.close()
    assert policy.sizes == [4, 1, 1]
    assert [one.chunk.actions[0, 0, 0] for one in computed] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert all(one.chunk.actions.shape == (1, 3, 2) for one in computed)


def test_requests_that_cannot_be_joined_are_not_delayed_by_clients_that_ask_again_at_once():
    policy = EchoPolicy()
    batcher = batching.Batcher(policy, max_rows=4)
    order: list[str] = []
    ended = threading.Event()

    def ask(name: str, context: ActContext, *, times: int) -> None:
        result = batcher.submit(name, observed(0.0), context)

        def again(done: Any) -> None:
            order.append(name)
            if times > 1 and not ended.is_set():
                ask(name, context, times=times - 1)

        result.add_done_callback(again)

    policy.block.clear()
    for number in range(4):
        ask(f"greedy {number}", STILL, times=50)
    lone = batcher.submit("lone", observed(9.0), ActContext(seed=1))
    lone.add_done_callback(lambda done: order.append("lone"))
    batcher.start()
    policy.block.set()
    lone.result(10)
    wait_until(lambda: len(order) == 201)
    batcher.close()
    assert order.index("lone") == 4  # after one batch of the four that came first, before their second requests
    assert [order.count(f"greedy {number}") for number in range(4)] == [50] * 4


def test_clients_that_left_leave_nothing_behind():
    policy = EchoPolicy(history=True)
    server = OpenpiServer(policy, token=TOKEN, keys=DROID)
    address = server.listen()
    stopped = threading.Event()
    thread = threading.Thread(target=server.run, args=(stopped.is_set,))
    thread.start()
    try:
        for way in ("closed", "lost", "lost while it waits"):
            with raw(address) as connection:
                connection.recv()
                connection.send(small(1.0))
                if way != "lost while it waits":
                    connection.recv(timeout=10)
                assert len(server._clients) == 1
                if way != "closed":
                    connection.socket.shutdown(2)
            # a request may wait 3 ms for others before it is dropped
            wait_until(lambda: not server._clients)
            wait_until(lambda: not server._batcher._active and not server._batcher._waiting)
    finally:
        stopped.set()
        thread.join(10)


def test_requests_with_the_key_that_are_no_websocket_take_no_client_place(monkeypatch):
    """A browser or a monitoring tool that shows the key: the server answers 426 and its handler never runs."""
    monkeypatch.setattr(limits, "MAX_CLIENTS", 2)
    with serving(EchoPolicy()) as address:
        for _ in range(3):
            request = urllib.request.Request(
                f"http://{address}/", headers={"Authorization": f"Api-Key {TOKEN.decode()}"}
            )
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=10)
            assert caught.value.code == 426

        def get_in():
            with contextlib.suppress(InvalidStatus):  # until the server has noticed the ends
                return stack.enter_context(raw(address))

        with contextlib.ExitStack() as stack:
            for _ in range(2):
                wait_until(get_in)
            with pytest.raises(InvalidStatus) as refused, raw(address):
                pass
            assert refused.value.response.status_code == 503


def test_long_prompt_of_one_client_does_not_fail_the_others_of_its_batch():
    """A prompt above 256 bytes has a wider array."""
    policy = EchoPolicy()
    batcher = batching.Batcher(policy, max_rows=4)
    prompts = ("insert", "insert " * 50, "press", "press " * 50)
    results = [
        batcher.submit(client, observed(float(client), prompt=prompt), STILL)
        for client, prompt in enumerate(prompts)
    ]
    batcher.start()
    assert [one.result(10).chunk.actions[0, 0, 0] for one in results] == [0.0, 1.0, 2.0, 3.0]
    batcher.close()
    assert policy.sizes == [2, 2]


def test_failing_request_does_not_fail_the_others_of_its_batch():
    class Picky(EchoPolicy):
        def act(self, observations, context):
            if (observations["joint_pos"][:, 0] == 1.0).any():
                raise ValueError("this prompt has too many tokens")
            return super().act(observations, context)

    batcher = batching.Batcher(Picky(), max_rows=4)
    results = [batcher.submit(client, observed(float(client)), STILL) for client in range(4)]
    batcher.start()
    with pytest.raises(ValueError, match="too many tokens"):
        results[1].result(10)
    assert [results[i].result(10).chunk.actions[0, 0, 0] for i in (0, 2, 3)] == [0.0, 2.0, 3.0]
    batcher.close()


def test_client_that_does_not_read_its_answer_is_closed_and_delays_no_other(monkeypatch):
    monkeypatch.setattr(limits, "TRANSFER_S", 3.0)

    class LongChunks(EchoPolicy):
        def act(self, observations, context):
            chunk = super().act(observations, context)
            is_long = chunk.actions[0, 0, 0] == 3.0
            return replace(chunk, actions=chunk.actions.repeat(1 << 19, axis=1) if is_long else chunk.actions)

    log: list[str] = []
    with serving(LongChunks(), log=log) as address, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", int(address.rpartition(":")[2])))
        protocol = ClientProtocol(parse_uri(f"ws://{address}/"))
        upgrade = protocol.connect()
        upgrade.headers["Authorization"] = f"Api-Key {TOKEN.decode()}"
        protocol.send_request(upgrade)
        slow.sendall(b"".join(protocol.data_to_send()))
        while protocol.state is not State.OPEN:
            protocol.receive_data(slow.recv(4096))
        protocol.send_binary(small(3.0))
        slow.sendall(b"".join(protocol.data_to_send()))  # 12 MB come back, and are not read
        with raw(address) as other:
            other.recv()
            for _ in range(20):
                other.send(small(0.5))
                assert unpack(other.recv(timeout=10))["actions"][0, 0] == 0.5
        assert not any("did not read" in line for line in log)  # the other one was served meanwhile
        wait_until(lambda: any("did not read its answer" in line for line in log))


def test_robot_whose_actions_are_not_finite_does_not_stop_the_others_of_its_batch():
    policy = EchoPolicy()
    batcher = batching.Batcher(policy, max_rows=2)
    results = [
        batcher.submit(client, observed(value), ActContext(deterministic=True))
        for client, value in enumerate((float("nan"), 5.0))
    ]
    batcher.start()
    with pytest.raises(PolicyError, match="not finite"):
        results[0].result(10)
    assert results[1].result(10).chunk.actions[0, 0, 0] == 5.0
    batcher.close()
    assert policy.sizes == [2]
