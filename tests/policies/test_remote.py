"""A policy on another machine answers as it would on this one; and what is said when it does not."""

import dataclasses
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from dovetail.config.plugins import resolve
from dovetail.core.contracts import Policy
from dovetail.core.errors import PolicyError, UsageError
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.handshake import answer_hello
from dovetail.policies.remote.policy import RemoteConfig, RemotePolicy
from dovetail.policies.remote.wire import Message
from dovetail.testing import check_policy
from support.served import ROBOT, TOKEN, Spoken, client, inputs, serving

POLICIES = {
    "gaussian_mlp": lambda: GaussianMLP(GaussianMLPConfig(history={"force": 3}), robot=ROBOT, seed=3),
    "flow": lambda: Flow(
        FlowConfig(inputs=("joint_pos", "front"), history={"joint_pos": 2}, horizon=6, hidden=16, num_layers=2),
        robot=ROBOT,
        seed=3,
    ),
}
STILL = ActContext(deterministic=True)


@contextmanager
def a_server(*behaviours, token=TOKEN):
    """Who does on each connection what the test says, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def attend():
            for behave in behaviours:
                sock, _ = listener.accept()
                with sock:
                    behave(Connection(sock), sock)

        thread = threading.Thread(target=attend)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


def welcome(connection, sock=None):
    answer_hello(connection, TOKEN, Spoken().spec, deadline_s=time.monotonic() + 5)


def answering(**changes):
    """Welcomes, then answers one question, with these changes to what would be right."""

    def behave(connection, sock):
        welcome(connection)
        if not connection.wait():
            return
        question = connection.receive(deadline_s=time.monotonic() + 5)
        fields = {"number": question.fields["number"], "policy_version": 7, "server_s": 0.1}
        arrays = {"actions": np.zeros((1, 3, 2), np.float32)}
        fields |= changes.get("fields", {})
        answer = Message(kind="chunk", fields=fields, arrays=arrays | changes.get("arrays", {}))
        connection.send(answer, deadline_s=time.monotonic() + 5)
        connection.wait()

    return behave


# ---- as if it were here


@pytest.mark.parametrize("name", POLICIES)
def test_it_says_what_the_policy_there_needs_and_gives(name):
    local = POLICIES[name]()
    with serving(local) as address, client(address) as remote:
        assert remote.spec == local.spec
        assert isinstance(remote, Policy)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("context", [STILL, ActContext(seed=5), ActContext(seed=2**63 - 1)], ids=str)
def test_chunks_are_the_same_bit_for_bit(name, context):
    local = POLICIES[name]()
    with serving(POLICIES[name]()) as address, client(address) as remote:
        for num in (1, 3):
            seen = inputs(local.spec, num=num)
            expected, chunk = local.act(seen, context), remote.act(seen, context)
            assert chunk.actions.tobytes() == expected.actions.tobytes()
            assert chunk.actions.dtype == expected.actions.dtype and chunk.actions.shape == expected.actions.shape
            assert chunk.policy_version == expected.policy_version


def test_guided_chunks_are_the_same_too_unknown_actions_and_all():
    local = POLICIES["flow"]()
    prefix = np.full((2, 6, 2), np.nan, np.float32)
    prefix[0, :4], prefix[1, :2] = 0.2, 0.4
    context = ActContext(seed=5, prefix=prefix, delay=2, horizon=3)
    seen = inputs(local.spec, num=2)
    with serving(POLICIES["flow"]()) as address, client(address) as remote:
        guided = remote.act(seen, context).actions
        free = remote.act(seen, ActContext(seed=5)).actions
    assert guided.tobytes() == local.act(seen, context).actions.tobytes()
    assert not np.array_equal(guided, free)


def test_the_context_arrives_as_it_was():
    policy = Spoken()
    prefix = np.array([[[np.nan, 1.0], [2.0, -0.0]]], np.float32)
    context = ActContext(deterministic=True, seed=None, prefix=prefix, delay=4, horizon=9)
    with serving(policy) as address, client(address) as remote:
        remote.act(inputs(policy.spec), context)
        remote.act(inputs(policy.spec), ActContext(seed=np.int64(2**62)))
    first, second = (context for _, context in policy.asked)
    assert first.prefix.tobytes() == prefix.tobytes()
    assert dataclasses.replace(first, prefix=None) == dataclasses.replace(context, prefix=None)
    assert (second.seed, second.prefix, second.delay, second.horizon) == (2**62, None, 0, 1)


def test_only_what_the_policy_needs_to_see_is_sent():
    policy = Spoken()
    with serving(policy) as address, client(address) as remote:
        remote.act({**inputs(policy.spec), "front": np.zeros((1, 480, 640, 3), np.uint8)}, STILL)
    assert set(policy.asked[0][0]) == {"force"}


@pytest.mark.parametrize("name", POLICIES)
def test_it_keeps_the_contract(name):
    with serving(POLICIES[name]()) as address, client(address) as remote:
        check_policy(lambda: remote)


def test_a_new_episode_is_told_and_it_says_where_the_time_went():
    policy = Spoken()
    with serving(policy) as address, client(address) as remote:
        remote.reset()
        remote.warmup()
        chunk = remote.act(inputs(policy.spec, num=2), STILL)
    assert policy.num_resets == 1 and len(policy.asked) == 2
    assert set(chunk.extras) == {"server_s", "network_s"}
    for seconds in chunk.extras.values():
        assert seconds.shape == (2,) and seconds.dtype == np.float32 and 0.0 <= seconds[0] < 10.0
    assert chunk.at(1).extras["server_s"].shape == ()


# ---- what it needs not


def test_no_torch_where_the_robot_is():
    code = "import sys, dovetail.policies.remote.policy; print([m for m in ('torch', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_is_made_without_a_server():
    remote = RemotePolicy(RemoteConfig(address="nowhere.invalid:1"), robot=ROBOT, seed=3)
    assert resolve("policy", "remote") is type(remote)
    remote.close()


def test_weights_are_the_servers():
    remote = RemotePolicy(RemoteConfig(address="gpu:7411"), robot=ROBOT)
    with pytest.raises(UsageError, match="takes no weights: the server at gpu:7411 follows those of its own run"):
        remote.load(WeightSnapshot(version=1, components={}, hashes={}))


# ---- settings and tokens


@pytest.mark.parametrize("address", ["gpu", "gpu:", ":7411", "gpu:port", "gpu:0", "gpu:70000", "gpu:-1", "gpu:٣"])
def test_an_address_that_is_none(address):
    with pytest.raises(ValueError, match="host:port"):
        RemoteConfig(address=address)


def test_a_token_in_a_file(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o600)
    with serving(Spoken()) as address, client(address, token_file=str(path)) as remote:
        assert remote.spec.name == "spoken"


@pytest.mark.parametrize(
    ("mode", "content", "because"),
    [
        (0o644, TOKEN, "can be read by others .mode 644.: chmod 600"),
        (0o600, b"short\n", "holds 5 characters: a token has at least 16"),
        (None, b"", "cannot read token file .*: No such file"),
    ],
)
def test_a_token_file_that_will_not_do(tmp_path, mode, content, because):
    path = tmp_path / "token"
    if mode is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with client("127.0.0.1:1", token_file=str(path)) as remote, pytest.raises(UsageError, match=because):
        _ = remote.spec


def test_no_token_at_all():
    remote = RemotePolicy(RemoteConfig(address="gpu:1", token_env="NO_SUCH_VARIABLE"), robot=ROBOT)
    with pytest.raises(UsageError, match=r"no token: .*policy.token_file, or put it in \$NO_SUCH_VARIABLE"):
        _ = remote.spec


def test_a_wrong_token_is_refused():
    told = []
    with serving(Spoken(), told=told) as address, client(address, token=b"another one, long enough") as remote:
        with pytest.raises(PolicyError, match="wrong token: copy the token file") as caught:
            _ = remote.spec
        assert "\n" not in str(caught.value)
    assert any("cut off: wrong token" in line for line in told)


def test_a_server_that_does_not_know_the_token_is_refused():
    """Somebody on the way who lets every robot in, to lead it."""

    def impostor(connection, sock):
        deadline_s = time.monotonic() + 5
        connection.send(Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64}), deadline_s=deadline_s)
        proof = connection.receive(deadline_s=deadline_s).fields["proof"]  # the robot's own, sent back to it
        connection.send(Message(kind="welcome", fields={"proof": proof, "spec": {}}), deadline_s=deadline_s)

    with (
        a_server(impostor) as address,
        client(address) as remote,
        pytest.raises(PolicyError, match="not the server"),
    ):
        _ = remote.spec


def test_the_token_never_crosses_the_wire():
    heard = bytearray()

    def listen(connection, sock):
        deadline_s = time.monotonic() + 5
        connection.send(Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64}), deadline_s=deadline_s)
        connection.wait()
        heard.extend(sock.recv(1 << 16))

    with a_server(listen) as address, client(address) as remote, pytest.raises(PolicyError):
        _ = remote.spec
    assert b"proof" in heard and TOKEN not in heard


# ---- a server that is gone, slow, or talks nonsense


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with client(address) as remote, pytest.raises(PolicyError, match=r"cannot be reached .*`dovetail serve RUN`"):
        _ = remote.spec


def test_another_protocol():
    def newer(connection, sock):
        connection.send(
            Message(kind="hello", fields={"protocol": 2, "nonce": "0" * 64}), deadline_s=time.monotonic() + 5
        )

    because = "protocol 1, the other 2: install the same Dovetail on both"
    with a_server(newer) as address, client(address) as remote, pytest.raises(PolicyError, match=because):
        _ = remote.spec


@pytest.mark.parametrize(
    ("behave", "because"),
    [
        (lambda connection, sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not a message of ours"),
        (lambda connection, sock: connection.wait(), "did not answer in time"),
        (lambda connection, sock: None, "hung up"),
    ],
    ids=["something else", "silent", "gone"],
)
def test_not_a_policy_server(behave, because):
    with (
        a_server(behave) as address,
        client(address, connect_timeout_s=0.3) as remote,
        pytest.raises(PolicyError, match=because),
    ):
        _ = remote.spec


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"arrays": {"actions": np.full((1, 3, 2), np.nan, np.float32)}}, "actions that are not finite"),
        ({"arrays": {"actions": np.full((1, 3, 2), np.inf, np.float32)}}, "actions that are not finite"),
        (
            {"arrays": {"actions": np.zeros((1, 2, 2), np.float32)}},
            r"float32\[1, 2, 2\], should be float32\[1, 3, 2\]",
        ),
        ({"arrays": {"actions": np.zeros((1, 3, 2))}}, "actions float64"),
        ({"arrays": {"extra/value": np.zeros(2)}}, "extra 'value' for 1 rows"),
        ({"arrays": {"actions": np.zeros((500, 3, 2), np.float32)}}, "more than is taken at once"),
        ({"fields": {"number": 17}}, "no answer to what was asked"),
        ({"fields": {"policy_version": "new"}}, "no answer to what was asked"),
        ({"fields": {"server_s": -1.0}}, "no answer to what was asked"),
    ],
)
def test_an_answer_that_is_refused(changes, because):
    with a_server(answering(**changes), answering()) as address, client(address) as remote:
        seen = inputs(remote.spec)
        with pytest.raises(PolicyError, match=because) as caught:
            remote.act(seen, STILL)
        assert str(caught.value).startswith(f"policy server {address} ") and "\n" not in str(caught.value)
        assert remote.act(seen, STILL).policy_version == 7  # and the next one connects anew


def test_half_an_answer_and_then_silence():
    ended = threading.Event()

    def stall(connection, sock):
        welcome(connection)
        connection.wait()
        sock.sendall(b"DVTL")
        ended.wait(10)

    with a_server(stall, answering()) as address, client(address, timeout_s=0.3) as remote:
        seen = inputs(remote.spec)
        with pytest.raises(
            PolicyError, match=r"did not answer in time: see what keeps it, or raise policy.timeout_s"
        ):
            remote.act(seen, STILL)
        ended.set()
        assert remote.act(seen, STILL).policy_version == 7


def test_a_question_is_never_asked_twice():
    """A server that hangs up on a question gets no second one until somebody calls again."""
    questions = []

    def listen(connection, sock):
        welcome(connection)
        connection.wait()
        questions.append(connection.receive(deadline_s=time.monotonic() + 5).fields["number"])

    with a_server(listen, listen) as address, client(address) as remote:
        seen = inputs(remote.spec)
        for expected in ([1], [1, 2]):
            with pytest.raises(PolicyError, match="hung up"):
                remote.act(seen, STILL)
            assert questions == expected


def test_a_server_that_was_restarted_between_two_questions_costs_nothing():
    with serving(Spoken()) as address, client(address) as remote:
        seen = inputs(remote.spec)
        remote.act(seen, STILL)
        port = int(address.rpartition(":")[2])
    with serving(Spoken(), port=port):
        assert remote.act(seen, STILL).policy_version == 7
        remote.close()


def test_a_server_that_comes_back_with_another_policy_is_refused():
    with serving(Spoken()) as address, client(address) as remote:
        assert remote.spec.horizon == 3
        port = int(address.rpartition(":")[2])
    other = Spoken()
    other.spec = dataclasses.replace(other.spec, horizon=4)
    with serving(other, port=port), pytest.raises(PolicyError, match="serves another policy than before"):
        remote.reset()


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        ({}, "needs observation 'force', which is not given"),
        ({"force": np.zeros((1, 3), np.float32)}, r"should be float32\[B, 2\], got float32\[1, 3\]"),
        ({"force": np.zeros((1, 2))}, "got float64"),
    ],
)
def test_observations_that_do_not_fit_are_not_sent(seen, because):
    policy = Spoken()
    with serving(policy) as address, client(address) as remote, pytest.raises(UsageError, match=because):
        remote.act(seen, STILL)
    assert policy.asked == []
