"""A policy server: several robots at once, new weights between chunks, and guests that behave badly."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import PolicyError, StoreError, UsageError
from dovetail.core.types import ActContext, ActionChunk, WeightSnapshot
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.remote import handshake
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.wire import Message
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.runs.assembly.build import build_station
from dovetail.runs.evaluate import evaluation_episodes
from dovetail.serve import server as serve
from dovetail.serve.server import PolicyServer
from dovetail.weights.store import DiskWeightStore
from support.served import ROBOT, TOKEN, Spoken, client, inputs, serving

STILL = ActContext(deterministic=True)
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


def welcomed(address):
    """A guest who knows the token, and may say what it likes."""
    connection = Connection(connected(address))
    handshake.say_hello(connection, TOKEN, deadline_s=soon())
    return connection


def soon():
    return time.monotonic() + 10


def until(happened):
    deadline_s = soon()
    while not happened():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.01)


# ---- who may come in


@pytest.mark.parametrize("token", [b"", b"short"])
def test_no_server_without_a_token(token):
    with pytest.raises(UsageError, match="a token has at least 16"):
        PolicyServer(Spoken(), token=token)


def test_a_port_that_is_taken():
    with serving(Spoken()) as address, pytest.raises(UsageError, match=r"address already in use.*choose another"):
        PolicyServer(Spoken(), token=TOKEN).listen(port=int(address.rpartition(":")[2]))


def test_it_listens_where_it_is_told_and_nowhere_else():
    server = PolicyServer(Spoken(), token=TOKEN)
    assert server.listen().startswith("127.0.0.1:")
    server.close()


def test_another_protocol_is_refused():
    told = []
    with serving(Spoken(), told=told) as address:
        connection = Connection(connected(address))
        connection.receive(deadline_s=soon())
        connection.send(Message(kind="hello", fields={"protocol": 2, "nonce": "0" * 64}), deadline_s=soon())
        answer = connection.receive(deadline_s=soon())
        assert answer.kind == "error" and "protocol 1, the other 2" in answer.fields["message"]
        assert not connection.wait()  # hung up
        connection.close()
    assert any("protocol 1, the other 2" in line for line in told)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"DVTL\xff\xff\xff\xff" + b"\xff" * 8])
def test_something_else_than_a_robot_is_cut_off(said):
    told = []
    with serving(Spoken(), told=told) as address, connected(address) as guest:
        guest.sendall(said)
        until(lambda: any("cut off" in line for line in told))
        with client(address) as remote:
            assert remote.spec.name == "spoken"


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
def test_what_a_stranger_says_does_no_harm_where_it_is_shown(hello):
    told = []
    with serving(Spoken(), told=told) as address:
        stranger = Connection(connected(address))
        stranger.receive(deadline_s=soon())
        stranger.send(hello, deadline_s=soon())
        until(lambda: told)
        stranger.close()
    assert len(told) == 1 and "cut off" in told[0] and told[0].isprintable()


def test_before_hello_nobody_is_asked_anything():
    policy = Spoken()
    with serving(policy) as address:
        connection = Connection(connected(address))
        connection.receive(deadline_s=soon())
        connection.send(
            Message(kind="act", arrays={"force": np.zeros((1, 2), np.float32)}), deadline_s=soon()
        )  # with a body, before it may
        assert not connection.wait()
        connection.close()
    assert policy.asked == []


def test_whoever_says_nothing_holds_up_nobody_and_is_cut_off(monkeypatch):
    monkeypatch.setattr(serve, "HELLO_S", 0.5)
    with serving(Spoken()) as address:
        silent = [connected(address) for _ in range(5)]
        with client(address) as remote:
            assert remote.act(inputs(remote.spec), STILL).policy_version == 7
        for sock in silent:
            with sock:
                while sock.recv(4096):  # hello, and then it hangs up
                    pass


def test_no_more_guests_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(serve, "MAX_CLIENTS", 1)
    with serving(Spoken()) as address, client(address) as remote:
        assert remote.spec.name == "spoken"
        with client(address) as another, pytest.raises(PolicyError, match="hung up"):
            _ = another.spec


# ---- asking


def test_several_robots_at_once_get_each_their_own_answers():
    def echo(observations, context):
        return np.broadcast_to(observations["force"][:, None], (1, 3, 2)).copy()

    wrong = []

    def ask(remote, number):
        for step in range(20):
            said = np.array([[number, step]], np.float32)
            if not np.array_equal(remote.act({"force": said}, STILL).actions[0, 0], said[0]):
                wrong.append((number, step))

    with serving(Spoken(echo)) as address, client(address) as a, client(address) as b, client(address) as c:
        threads = [threading.Thread(target=ask, args=(remote, i)) for i, remote in enumerate((a, b, c))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_policy_that_fails_is_told_of_and_goes_on():
    def fail_on_one(observations, context):
        if observations["force"][0, 0] == 1:
            raise RuntimeError("out of\nmemory")
        return np.zeros((1, 3, 2), np.float32)

    told = []
    with serving(Spoken(fail_on_one), told=told) as address, client(address) as remote:
        with pytest.raises(PolicyError, match="cannot answer: out of memory"):
            remote.act({"force": np.ones((1, 2), np.float32)}, STILL)
        assert remote.act({"force": np.zeros((1, 2), np.float32)}, STILL).policy_version == 7
    assert any("RuntimeError" in line for line in told)


@pytest.mark.parametrize(
    ("fields", "arrays", "because"),
    [
        ({}, {}, "needs observation 'force'"),
        ({}, {"force": np.zeros((1, 3), np.float32)}, "should be float32[B, 2]"),
        ({}, {"force": np.zeros((0, 2), np.float32)}, "1 to 64 rows, got 0"),
        ({"seed": 1.5}, {}, "context is not one"),
        ({"seed": 2**64}, {}, "context is not one"),
        ({"delay": -1}, {}, "context is not one"),
        ({"horizon": 0}, {}, "context is not one"),
        ({}, {"context/prefix": np.zeros((2, 3, 2), np.float32)}, "a prefix should be [1, H, 2]"),
        ({}, {"context/prefix": np.zeros((1, 3, 2), np.int64)}, "a prefix should be [1, H, 2]"),
    ],
)
def test_a_question_that_does_not_fit_never_reaches_the_policy(fields, arrays, because):
    policy = Spoken()
    right = {"number": 1, "deterministic": True, "seed": None, "delay": 0, "horizon": 1}
    seen = {} if because.startswith("needs") else {"force": np.zeros((1, 2), np.float32)}
    with serving(policy) as address:
        guest = welcomed(address)
        guest.send(Message(kind="act", fields=right | fields, arrays=seen | arrays), deadline_s=soon())
        answer = guest.receive(deadline_s=soon())
        assert answer.kind == "error" and because in answer.fields["message"]
        guest.send(Message(kind="dance"), deadline_s=soon())
        assert "knows no 'dance'" in guest.receive(deadline_s=soon()).fields["message"]
        guest.close()
    assert policy.asked == []


def test_a_question_larger_than_the_policy_can_ask_for_is_cut_off():
    with serving(Spoken()) as address:
        guest = welcomed(address)
        guest.send(Message(kind="act", arrays={"force": np.zeros((4000, 2), np.float32)}), deadline_s=soon())
        assert not guest.wait()
        guest.close()


def test_ending_does_not_wait_for_an_answer_that_is_being_thought_out():
    ended = threading.Event()

    def think(observations, context):
        ended.wait(30)
        return np.zeros((1, 3, 2), np.float32)

    failed = []

    def ask(remote):
        try:
            remote.act({"force": np.zeros((1, 2), np.float32)}, STILL)
        except PolicyError as error:
            failed.append(str(error))

    policy = Spoken(think)
    with contextlib.ExitStack() as stack:
        with serving(policy) as address:
            remote = stack.enter_context(client(address, timeout_s=30.0))
            thread = threading.Thread(target=ask, args=(remote,))
            thread.start()
            until(lambda: policy.asked)
        assert not ended.is_set()  # and yet the server has ended
        thread.join(10)
        assert len(failed) == 1 and "hung up" in failed[0]
    ended.set()


# ---- weights


def test_new_weights_are_taken_up_between_chunks(tmp_path):
    store, policy = DiskWeightStore(tmp_path), make()
    store.publish(policy.weights())
    told = []
    following = FollowingPolicy(make, store.latest(), store=DiskWeightStore(tmp_path), tell=told.append)
    with following, serving(following) as address, client(address) as remote:
        seen = inputs(remote.spec)
        first = remote.act(seen, STILL)
        assert first.policy_version == 1
        changed = {
            **policy.weights(),
            "actor": {name: value + 0.1 for name, value in policy.weights()["actor"].items()},
        }
        store.publish(changed)
        until(lambda: remote.act(seen, STILL).policy_version == 2)
        policy.load(store.latest())
        assert remote.act(seen, STILL).actions.tobytes() == policy.act(seen, STILL).actions.tobytes()
        assert remote.act(seen, STILL).actions.tobytes() != first.actions.tobytes()
    assert told == ["weights version 2"]


@pytest.mark.parametrize("component", ["actor", "normalizer"])
def test_weights_with_nan_are_refused_and_the_old_ones_go_on(tmp_path, component):
    store, good = DiskWeightStore(tmp_path), make().weights()
    store.publish(good)
    told = []
    following = FollowingPolicy(make, store.latest(), store=store, tell=told.append)
    seen = inputs(following.spec)
    before = following.act(seen, STILL)
    bad = {name: np.full_like(value, np.nan) for name, value in good[component].items()}
    store.publish({**good, component: bad})
    with following:
        until(lambda: told)
        time.sleep(0.1)
        after = following.act(seen, STILL)
        assert (after.policy_version, after.actions.tobytes()) == (1, before.actions.tobytes())
        store.publish(good)
        until(lambda: following.act(seen, STILL).policy_version == 3)
    assert len(told) == 2 and told[0].startswith("kept the weights it has: weights version 2")
    assert "not finite" in told[0]


@pytest.mark.parametrize("missing", ["actor", "normalizer"])
def test_weights_that_do_not_fit_are_refused(tmp_path, missing):
    store, good = DiskWeightStore(tmp_path), make().weights()
    store.publish(good)
    following = FollowingPolicy(make, store.latest(), store=store)
    store.publish({name: arrays for name, arrays in good.items() if name != missing})
    with pytest.raises((StoreError, KeyError)):
        following.refresh()
    assert following.act(inputs(following.spec), STILL).policy_version == 1
    assert not following.refresh()  # once is enough


def test_weights_with_nan_to_begin_with():
    good = make().weights()
    bad = {**good, "actor": {name: np.full_like(value, np.nan) for name, value in good["actor"].items()}}
    with pytest.raises(StoreError, match=r"version 4: actor/.* is not finite"):
        FollowingPolicy(make, WeightSnapshot(version=4, components=bad, hashes={}))


def test_without_a_store_it_stays_as_it_is():
    following = FollowingPolicy(make, WeightSnapshot(version=4, components=make().weights(), hashes={}))
    with following:
        assert not following.refresh()
        assert following.act(inputs(following.spec), STILL).policy_version == 4


class _Slow:
    """A policy whose loads take as long as the test wants; and it must never be loaded while it acts."""

    def __init__(self, may_load):
        self.spec, self._may_load, self._version, self._busy = Spoken().spec, may_load, 0, False

    def act(self, observations, context):
        assert not self._busy
        return ActionChunk(actions=np.zeros((1, 3, 2), np.float32), observed_ns=0, policy_version=self._version)

    def load(self, snapshot):
        self._busy = True
        assert self._may_load.wait(10)
        self._version, self._busy = snapshot.version, False

    def warmup(self):
        pass


def test_a_question_never_waits_for_a_load(tmp_path):
    may_load = threading.Event()
    may_load.set()
    store = DiskWeightStore(tmp_path)
    store.publish({"a": {"x": np.zeros(1)}})
    following = FollowingPolicy(lambda: _Slow(may_load), store.latest(), store=store)
    for version in (2, 3, 4):
        may_load.clear()
        store.publish({"a": {"x": np.full(1, float(version))}})
        loading = threading.Thread(target=following.refresh)
        loading.start()
        for _ in range(10):
            assert following.act({}, STILL).policy_version == version - 1  # while it loads
        assert loading.is_alive()
        may_load.set()
        loading.join(10)
        assert following.act({}, STILL).policy_version == version


# ---- the whole way


def test_episodes_go_as_they_would_with_the_policy_at_hand(tmp_path, monkeypatch):
    def config(policy):
        (tmp_path / "toy.yaml").write_text(TOY.format(policy=policy))
        return load([str(tmp_path / "toy.yaml")])

    def episodes(config):
        station = build_station(config)
        try:
            return list(evaluation_episodes(station, None, num_episodes=2, config_hash=""))
        finally:
            station.close()

    monkeypatch.setenv("DOVETAIL_TOKEN", TOKEN.decode())
    here = config("gaussian_mlp")
    with contextlib.closing(build_station(here)) as station, serving(station.policy()) as address:
        there = config(f"{{type: remote, address: '{address}'}}")
        for local, remote in zip(episodes(here), episodes(there), strict=True):
            for name, column in local.segments[0].columns.items():
                np.testing.assert_array_equal(column, remote.segments[0].columns[name], err_msg=name)
