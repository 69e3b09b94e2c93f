"""The policy server: several robots, new weights between chunks, and malicious clients."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.disk import write_atomic
from dovetail.core.errors import PolicyError, PolicyUnreachable, StoreError, UsageError
from dovetail.core.tensor_files import tensor_blocks
from dovetail.core.types import ActContext, ActionChunk, WeightSnapshot
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.remote import handshake
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.requests import act_message
from dovetail.policies.remote.wire import Message
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.policy_components import build_policy
from dovetail.runs.roles.robot import evaluation_episodes
from dovetail.serve import server as serve
from dovetail.serve.server import PolicyServer
from dovetail.serve.weights import ServedWeights
from dovetail.weights.store import DiskWeightStore
from support.policy_servers import ROBOT, TOKEN, ScriptedPolicy, client, inputs, serving

DETERMINISTIC = ActContext(deterministic=True)
TOY = """
task: {{type: "dovetail.testing.fakes:FakeTask", max_steps: 15}}
robot: "dovetail.testing.fakes:FakeArm"
operator: none
algorithm: rlpd
policy: {policy}
"""


def make():
    return GaussianMLP(GaussianMLPConfig(hidden=(8,)), robot=ROBOT, seed=3)


def connected(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def accepted(address):
    """A connection after the handshake, for arbitrary messages."""
    connection = Connection(connected(address))
    handshake.client_handshake(connection, TOKEN, deadline_s=soon())
    return connection


def soon():
    return time.monotonic() + 10


def wait_until(condition):
    deadline_s = soon()
    while not condition():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.01)


# ---- connections


@pytest.mark.parametrize("token", [b"", b"short"])
def test_server_without_a_valid_token_is_refused(token):
    with pytest.raises(UsageError, match="a token needs at least 16"):
        PolicyServer(ScriptedPolicy(), token=token)


def test_used_port_is_refused():
    with (
        serving(ScriptedPolicy()) as address,
        pytest.raises(UsageError, match=r"address already in use.*Choose another"),
    ):
        PolicyServer(ScriptedPolicy(), token=TOKEN).listen(port=int(address.rpartition(":")[2]))


def test_server_listens_on_localhost_by_default():
    server = PolicyServer(ScriptedPolicy(), token=TOKEN)
    assert server.listen().startswith("127.0.0.1:")
    server.close()


def test_client_with_another_protocol_is_refused():
    log = []
    with serving(ScriptedPolicy(), log=log) as address:
        connection = Connection(connected(address))
        connection.receive(deadline_s=soon())
        connection.send(Message(kind="hello", fields={"protocol": 2, "nonce": "0" * 64}), deadline_s=soon())
        answer = connection.receive(deadline_s=soon())
        assert answer.kind == "error" and "protocol 1, the other 2" in answer.fields["message"]
        assert not connection.wait_for_data()  # closed
        connection.close()
    assert any("protocol 1, the other 2" in line for line in log)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"DVTL\xff\xff\xff\xff" + b"\xff" * 8])
def test_client_with_another_protocol_is_closed(data):
    log = []
    with serving(ScriptedPolicy(), log=log) as address, connected(address) as guest:
        guest.sendall(data)
        wait_until(lambda: any("closed" in line for line in log))
        with client(address) as remote:
            assert remote.spec.name == "scripted"


@pytest.mark.parametrize(
    "hello",
    [
        Message(kind="\x1b[2J"),
        Message(kind="hello", fields={"protocol": "\x1b[2J\ud800"}),
        Message(kind="hello", fields={"protocol": 1, "nonce": "\ud800" * 64}),
        Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64, "proof": "\ud800"}),
        Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64}),
        Message(kind="error", fields={"message": "\x1b[2J\ud800\n"}),
    ],
)
def test_text_from_an_unknown_client_is_logged_printable(hello):
    log = []
    with serving(ScriptedPolicy(), log=log) as address:
        unknown = Connection(connected(address))
        unknown.receive(deadline_s=soon())
        unknown.send(hello, deadline_s=soon())
        wait_until(lambda: log)
        unknown.close()
    assert len(log) == 1 and "closed" in log[0] and log[0].isprintable()


def test_request_before_the_handshake_is_refused():
    policy = ScriptedPolicy()
    with serving(policy) as address:
        connection = Connection(connected(address))
        connection.receive(deadline_s=soon())
        connection.send(
            Message(kind="act", arrays={"force": np.zeros((1, 2), np.float32)}), deadline_s=soon()
        )  # with a body, which is not allowed yet
        assert not connection.wait_for_data()
        connection.close()
    assert policy.calls == []


def test_silent_clients_do_not_block_others_and_are_closed(monkeypatch):
    monkeypatch.setattr(serve, "HANDSHAKE_S", 0.5)
    with serving(ScriptedPolicy()) as address:
        silent = [connected(address) for _ in range(5)]
        with client(address) as remote:
            assert remote.act(inputs(remote.spec), DETERMINISTIC).policy_version == 7
        for sock in silent:
            with sock:
                while sock.recv(4096):  # the server's hello, then the end
                    pass


def test_client_above_the_maximum_is_refused(monkeypatch):
    monkeypatch.setattr(serve, "MAX_CLIENTS", 1)
    with serving(ScriptedPolicy()) as address, client(address) as remote:
        assert remote.spec.name == "scripted"
        with (
            client(address) as another,
            pytest.raises(PolicyError, match="1 robots are connected, which is the maximum"),
        ):
            _ = another.spec


def test_client_that_leaves_while_its_request_waits_frees_its_place(monkeypatch):
    monkeypatch.setattr(serve, "MAX_CLIENTS", 2)
    may_end = threading.Event()

    def slow(observations, context):
        may_end.wait(30)
        return np.zeros((len(observations["force"]), 3, 2), np.float32)

    policy = ScriptedPolicy(slow)

    def get_in():
        with contextlib.suppress(PolicyError), client(address) as another:
            return another.spec.name == "scripted"

    with serving(policy) as address, client(address, timeout_s=30.0) as busy:
        num_warmups = len(policy.calls)
        thread = threading.Thread(target=lambda: busy.act(inputs(policy.spec), DETERMINISTIC))
        thread.start()
        wait_until(lambda: len(policy.calls) > num_warmups)
        leaving = accepted(address)
        leaving.send(act_message(1, inputs(policy.spec), DETERMINISTIC), deadline_s=soon())
        time.sleep(0.3)  # it waits
        leaving.close()
        time.sleep(1.0)  # the server notices it meanwhile
        may_end.set()
        thread.join(10)
        wait_until(get_in)


def test_request_to_a_server_that_closes_means_hold():
    """It gets no error, which would stop the arm."""
    policy = ScriptedPolicy()
    server = PolicyServer(policy, token=TOKEN)
    address, stopped = server.listen(), threading.Event()
    thread = threading.Thread(target=server.run, args=(stopped.is_set,))
    thread.start()
    with client(address) as remote:
        assert remote.spec.name == "scripted"
        server._batcher.close()  # the first step of a server's end
        with pytest.raises(PolicyUnreachable):
            remote.act(inputs(policy.spec), DETERMINISTIC)
        stopped.set()
        thread.join(10)


# ---- requests


def test_parallel_clients_get_their_own_responses():
    def echo(observations, context):
        return np.broadcast_to(observations["force"][:, None], (1, 3, 2)).copy()

    wrong = []

    def ask(remote, number):
        for step in range(20):
            force = np.array([[number, step]], np.float32)
            if not np.array_equal(remote.act({"force": force}, DETERMINISTIC).actions[0, 0], force[0]):
                wrong.append((number, step))

    with (
        serving(ScriptedPolicy(echo)) as address,
        client(address) as a,
        client(address) as b,
        client(address) as c,
    ):
        threads = [threading.Thread(target=ask, args=(remote, i)) for i, remote in enumerate((a, b, c))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_failed_inference_is_reported_and_the_server_continues():
    def fail_on_one(observations, context):
        if observations["force"][0, 0] == 1:
            raise RuntimeError("out of\nmemory")
        return np.zeros((1, 3, 2), np.float32)

    log = []
    with serving(ScriptedPolicy(fail_on_one), log=log) as address, client(address) as remote:
        with pytest.raises(PolicyError, match="the request failed: out of memory"):
            remote.act({"force": np.ones((1, 2), np.float32)}, DETERMINISTIC)
        assert remote.act({"force": np.zeros((1, 2), np.float32)}, DETERMINISTIC).policy_version == 7
    assert any("RuntimeError" in line for line in log)


@pytest.mark.parametrize(
    ("fields", "arrays", "because"),
    [
        ({}, {}, "needs observation 'force'"),
        ({}, {"force": np.zeros((1, 3), np.float32)}, "should be float32[B, 2]"),
        ({}, {"force": np.zeros((0, 2), np.float32)}, "1 to 64 rows, got 0"),
        ({"seed": 1.5}, {}, "invalid context"),
        ({"seed": 2**64}, {}, "invalid context"),
        ({"delay": -1}, {}, "invalid context"),
        ({"horizon": 0}, {}, "invalid context"),
        ({}, {"context/prefix": np.zeros((2, 3, 2), np.float32)}, "the prefix should be float [1, H, 2]"),
        ({}, {"context/prefix": np.zeros((1, 3, 2), np.int64)}, "the prefix should be float [1, H, 2]"),
    ],
)
def test_invalid_request_does_not_reach_the_policy(fields, arrays, because):
    policy = ScriptedPolicy()
    valid = {"number": 1, "deterministic": True, "seed": None, "delay": 0, "horizon": 1}
    seen = {} if because.startswith("needs") else {"force": np.zeros((1, 2), np.float32)}
    with serving(policy) as address:
        guest = accepted(address)
        guest.send(Message(kind="act", fields=valid | fields, arrays=seen | arrays), deadline_s=soon())
        response = guest.receive(deadline_s=soon())
        assert response.kind == "error" and because in response.fields["message"]
        guest.send(Message(kind="dance"), deadline_s=soon())
        assert "unknown request 'dance'" in guest.receive(deadline_s=soon()).fields["message"]
        guest.close()
    assert policy.calls == []


def test_request_above_the_maximum_size_is_closed():
    with serving(ScriptedPolicy()) as address:
        guest = accepted(address)
        guest.send(Message(kind="act", arrays={"force": np.zeros((4000, 2), np.float32)}), deadline_s=soon())
        assert not guest.wait_for_data()
        guest.close()


def test_message_larger_than_the_weights_of_a_small_policy_is_closed():
    weights = ServedWeights(object(), max_bytes=1 << 20)
    with serving(ScriptedPolicy(), weights=weights) as address:
        guest = accepted(address)
        part = Message(kind="weights", fields={"component": "actor"}, arrays={"w": np.zeros(1 << 19, np.float32)})
        guest.send(part, deadline_s=soon())  # 2 MB
        assert not guest.wait_for_data()
        guest.close()


def test_server_stops_without_waiting_for_inference():
    ended = threading.Event()

    def slow_inference(observations, context):
        ended.wait(30)
        return np.zeros((1, 3, 2), np.float32)

    failed = []

    def ask(remote):
        try:
            remote.act({"force": np.zeros((1, 2), np.float32)}, DETERMINISTIC)
        except PolicyError as error:
            failed.append(str(error))

    policy = ScriptedPolicy(slow_inference)
    with contextlib.ExitStack() as stack:
        with serving(policy) as address:
            remote = stack.enter_context(client(address, timeout_s=30.0))
            thread = threading.Thread(target=ask, args=(remote,))
            thread.start()
            wait_until(lambda: policy.calls)
        assert not ended.is_set()  # inference still runs, but the server has ended
        thread.join(10)
        assert len(failed) == 1 and "connection" in failed[0]
    ended.set()


# ---- weights


def test_new_weights_are_used_from_the_next_chunk_on(tmp_path):
    store, policy = DiskWeightStore(tmp_path), make()
    store.publish(policy.weights())
    log = []
    following = FollowingPolicy(make, store.latest(), store=DiskWeightStore(tmp_path), log=log.append)
    with following, serving(following) as address, client(address) as remote:
        seen = inputs(remote.spec)
        first = remote.act(seen, DETERMINISTIC)
        assert first.policy_version == 1
        changed = {
            **policy.weights(),
            "actor": {name: value + 0.1 for name, value in policy.weights()["actor"].items()},
        }
        store.publish(changed)
        wait_until(lambda: remote.act(seen, DETERMINISTIC).policy_version == 2)
        policy.load(store.latest())
        assert (
            remote.act(seen, DETERMINISTIC).actions.tobytes() == policy.act(seen, DETERMINISTIC).actions.tobytes()
        )
        assert remote.act(seen, DETERMINISTIC).actions.tobytes() != first.actions.tobytes()
    assert log == ["weights version 2"]


@pytest.mark.parametrize("component", ["actor", "normalizer"])
def test_weights_with_nan_are_refused_and_the_old_ones_stay(tmp_path, component):
    store, good = DiskWeightStore(tmp_path), make().weights()
    store.publish(good)
    log = []
    following = FollowingPolicy(make, store.latest(), store=store, log=log.append)
    seen = inputs(following.spec)
    before = following.act(seen, DETERMINISTIC)
    bad = {name: np.full_like(value, np.nan) for name, value in good[component].items()}
    store.publish({**good, component: bad})
    with following:
        wait_until(lambda: log)
        time.sleep(0.1)
        after = following.act(seen, DETERMINISTIC)
        assert (after.policy_version, after.actions.tobytes()) == (1, before.actions.tobytes())
        store.publish(good)
        wait_until(lambda: following.act(seen, DETERMINISTIC).policy_version == 3)
    assert len(log) == 2 and log[0].startswith("new weights were not loaded: weights version 2")
    assert "holds non-finite numbers" in log[0]


@pytest.mark.parametrize("missing", ["actor", "normalizer"])
def test_weights_without_a_component_are_refused_once(tmp_path, missing):
    store, good = DiskWeightStore(tmp_path), make().weights()
    store.publish(good)
    following = FollowingPolicy(make, store.latest(), store=store)
    store.publish({name: arrays for name, arrays in good.items() if name != missing})
    with pytest.raises((StoreError, KeyError)):
        following.refresh()
    assert following.act(inputs(following.spec), DETERMINISTIC).policy_version == 1
    assert not following.refresh()  # not tried again


def test_initial_weights_with_nan_are_refused():
    good = make().weights()
    bad = {**good, "actor": {name: np.full_like(value, np.nan) for name, value in good["actor"].items()}}
    with pytest.raises(StoreError, match=r"version 4: actor/.* is not finite"):
        FollowingPolicy(make, WeightSnapshot(version=4, components=bad, hashes={}))


def test_policy_that_stages_weights_is_built_once_and_keeps_its_frozen_part(tmp_path):
    base = tmp_path / "base.safetensors"
    flow = {"hidden": 16, "num_layers": 1, "horizon": 2}
    built = []

    def build(**components):
        section = PluginSection.parse("policy", {"type": "steered", **flow, "components": components})
        return build_policy(section, robot=ROBOT, seed=0)

    def frozen():
        built.append(build(actor={"checkpoint": str(base), "frozen": True}))
        return built[-1]

    def addresses(component):
        return [p.data_ptr() for p in built[0].components[component].parameters()]

    write_atomic(base, tensor_blocks(build().weights()["actor"]))
    learner, store = frozen(), DiskWeightStore(tmp_path / "weights")
    built.clear()
    store.publish(learner.weights())
    following = FollowingPolicy(frozen, store.latest(), store=store)
    assert len(built) == 1
    before = {name: addresses(name) for name in ("actor", "steering")}
    for parameter in learner.components["steering"].parameters():
        parameter.data += 0.5
    store.publish(learner.weights())
    assert following.refresh() and len(built) == 1
    assert addresses("actor") == before["actor"]  # one copy of it for ever
    assert not set(addresses("steering")) & set(before["steering"])  # exchanged, not copied
    assert following.telemetry()["weights_swaps"] == 1
    learner.load(store.latest())
    seen = inputs(following.spec)
    assert following.act(seen, DETERMINISTIC).policy_version == 2
    assert np.array_equal(following.act(seen, DETERMINISTIC).actions, learner.act(seen, DETERMINISTIC).actions)


def test_policy_without_a_store_keeps_its_weights():
    following = FollowingPolicy(make, WeightSnapshot(version=4, components=make().weights(), hashes={}))
    with following:
        assert not following.refresh()
        assert following.act(inputs(following.spec), DETERMINISTIC).policy_version == 4


class _SlowLoading:
    """A policy whose `load` waits for an event. It must not be loaded during `act`."""

    def __init__(self, may_load):
        self.spec, self._may_load, self._version, self._busy = ScriptedPolicy().spec, may_load, 0, False

    def act(self, observations, context):
        assert not self._busy
        return ActionChunk(actions=np.zeros((1, 3, 2), np.float32), observed_ns=0, policy_version=self._version)

    def load(self, snapshot):
        self._busy = True
        assert self._may_load.wait(10)
        self._version, self._busy = snapshot.version, False

    def warmup(self):
        pass


def test_requests_do_not_wait_for_loading(tmp_path):
    may_load = threading.Event()
    may_load.set()
    store = DiskWeightStore(tmp_path)
    store.publish({"a": {"x": np.zeros(1)}})
    following = FollowingPolicy(lambda: _SlowLoading(may_load), store.latest(), store=store)
    for version in (2, 3, 4):
        may_load.clear()
        store.publish({"a": {"x": np.full(1, float(version))}})
        loading = threading.Thread(target=following.refresh)
        loading.start()
        for _ in range(10):
            assert following.act({}, DETERMINISTIC).policy_version == version - 1  # during the load
        assert loading.is_alive()
        may_load.set()
        loading.join(10)
        assert following.act({}, DETERMINISTIC).policy_version == version


# ---- whole episodes


def test_episodes_with_a_remote_policy_equal_local_ones(tmp_path, monkeypatch):
    def config(policy):
        (tmp_path / "toy.yaml").write_text(TOY.format(policy=policy))
        return load([str(tmp_path / "toy.yaml")])

    def episodes(config):
        station = build_assembly(config)
        try:
            return list(evaluation_episodes(station, None, num_episodes=2, config_hash=""))
        finally:
            station.close()

    monkeypatch.setenv("DOVETAIL_TOKEN", TOKEN.decode())
    local_config = config("gaussian_mlp")
    with contextlib.closing(build_assembly(local_config)) as station, serving(station.policy()) as address:
        remote_config = config(f"{{type: remote, address: '{address}'}}")
        for local, remote in zip(episodes(local_config), episodes(remote_config), strict=True):
            for name, column in local.segments[0].columns.items():
                np.testing.assert_array_equal(column, remote.segments[0].columns[name], err_msg=name)
