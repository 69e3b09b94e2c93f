"""The remote policy: the same chunks as the local policy, and errors of all failures."""

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
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.remote.connection import Connection
from dovetail.policies.remote.handshake import server_handshake
from dovetail.policies.remote.policy import RemoteConfig, RemotePolicy
from dovetail.policies.remote.wire import Message
from dovetail.testing import check_policy
from support.policy_servers import ROBOT, TOKEN, ScriptedPolicy, client, inputs, serving

POLICIES = {
    "gaussian_mlp": lambda: GaussianMLP(GaussianMLPConfig(history={"force": 3}), robot=ROBOT, seed=3),
    "flow": lambda: Flow(
        FlowConfig(inputs=("joint_pos", "front"), history={"joint_pos": 2}, horizon=6, hidden=16, num_layers=2),
        robot=ROBOT,
        seed=3,
    ),
}
DETERMINISTIC = ActContext(deterministic=True)


@contextmanager
def fake_server(*behaviors):
    """A server that runs one behavior per connection and then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def accept():
            for behave in behaviors:
                sock, _ = listener.accept()
                with sock:
                    behave(Connection(sock), sock)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


def welcome(connection, sock=None):
    server_handshake(connection, TOKEN, ScriptedPolicy().spec, deadline_s=time.monotonic() + 5)


def answering(**changes):
    """Accepts the client and answers one request, with these changes to the correct response."""

    def behave(connection, sock):
        welcome(connection)
        if not connection.wait_for_data():
            return
        request = connection.receive(deadline_s=time.monotonic() + 5)
        fields = {"number": request.fields["number"], "policy_version": 7, "server_s": 0.1}
        arrays = {"actions": np.zeros((1, 3, 2), np.float32)}
        fields |= changes.get("fields", {})
        response = Message(kind="chunk", fields=fields, arrays=arrays | changes.get("arrays", {}))
        connection.send(response, deadline_s=time.monotonic() + 5)
        connection.wait_for_data()

    return behave


# ---- same as the local policy


@pytest.mark.parametrize("name", POLICIES)
def test_remote_spec_equals_the_local_one(name):
    local = POLICIES[name]()
    with serving(local) as address, client(address) as remote:
        assert remote.spec == local.spec
        assert isinstance(remote, Policy)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("context", [DETERMINISTIC, ActContext(seed=5), ActContext(seed=2**63 - 1)], ids=str)
def test_remote_chunks_equal_local_ones_bit_for_bit(name, context):
    local = POLICIES[name]()
    with serving(POLICIES[name]()) as address, client(address) as remote:
        for num in (1, 3):
            seen = inputs(local.spec, num=num)
            expected, chunk = local.act(seen, context), remote.act(seen, context)
            assert chunk.actions.tobytes() == expected.actions.tobytes()
            assert chunk.actions.dtype == expected.actions.dtype and chunk.actions.shape == expected.actions.shape
            assert chunk.policy_version == expected.policy_version


def test_remote_guided_chunks_equal_local_ones():
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


def test_context_arrives_unchanged():
    policy = ScriptedPolicy()
    prefix = np.array([[[np.nan, 1.0], [2.0, -0.0]]], np.float32)
    context = ActContext(deterministic=True, seed=None, prefix=prefix, delay=4, horizon=9)
    with serving(policy) as address, client(address) as remote:
        remote.act(inputs(policy.spec), context)
        remote.act(inputs(policy.spec), ActContext(seed=np.int64(2**62)))
    first, second = (context for _, context in policy.calls)
    assert first.prefix.tobytes() == prefix.tobytes()
    assert dataclasses.replace(first, prefix=None) == dataclasses.replace(context, prefix=None)
    assert (second.seed, second.prefix, second.delay, second.horizon) == (2**62, None, 0, 1)


def test_only_the_policys_inputs_are_sent():
    policy = ScriptedPolicy()
    with serving(policy) as address, client(address) as remote:
        remote.act({**inputs(policy.spec), "front": np.zeros((1, 480, 640, 3), np.uint8)}, DETERMINISTIC)
    assert set(policy.calls[0][0]) == {"force"}


@pytest.mark.parametrize("name", POLICIES)
def test_remote_policy_keeps_the_contract(name):
    with serving(POLICIES[name]()) as address, client(address) as remote:
        check_policy(lambda: remote)


def test_reset_reaches_the_server_and_chunks_carry_times():
    policy = ScriptedPolicy()
    with serving(policy) as address, client(address) as remote:
        remote.reset()
        remote.warmup()
        chunk = remote.act(inputs(policy.spec, num=2), DETERMINISTIC)
    assert policy.num_resets == 1 and len(policy.calls) == 2
    assert set(chunk.extras) == {"server_s", "network_s"}
    for seconds in chunk.extras.values():
        assert seconds.shape == (2,) and seconds.dtype == np.float32 and 0.0 <= seconds[0] < 10.0
    assert chunk.at(1).extras["server_s"].shape == ()


# ---- construction


def test_client_imports_neither_torch_nor_ray():
    code = "import sys, dovetail.policies.remote.policy; print([m for m in ('torch', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_constructor_does_not_connect():
    remote = RemotePolicy(RemoteConfig(address="nowhere.invalid:1"), robot=ROBOT, seed=3)
    assert resolve("policy", "remote") is type(remote)
    remote.close()


def test_load_is_refused():
    remote = RemotePolicy(RemoteConfig(address="gpu:7411"), robot=ROBOT)
    with pytest.raises(UsageError, match="cannot load weights: the server at gpu:7411 uses those of its own run"):
        remote.load(WeightSnapshot(version=1, components={}, hashes={}))


# ---- settings and tokens


@pytest.mark.parametrize("address", ["gpu", "gpu:", ":7411", "gpu:port", "gpu:0", "gpu:70000", "gpu:-1", "gpu:٣"])
def test_invalid_address_is_refused(address):
    with pytest.raises(ValueError, match="host:port"):
        RemoteConfig(address=address)


def test_token_is_read_from_a_file(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o600)
    with serving(ScriptedPolicy()) as address, client(address, token_file=str(path)) as remote:
        assert remote.spec.name == "scripted"


@pytest.mark.parametrize(
    ("mode", "content", "because"),
    [
        (0o644, TOKEN, "can be read by other users .mode 644.. Run chmod 600"),
        (0o600, b"short\n", "has 5 characters, but a token needs at least 16"),
        (None, b"", "cannot read token file .*: No such file"),
    ],
)
def test_invalid_token_file_is_refused(tmp_path, mode, content, because):
    path = tmp_path / "token"
    if mode is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with client("127.0.0.1:1", token_file=str(path)) as remote, pytest.raises(UsageError, match=because):
        _ = remote.spec


def test_missing_token_is_refused():
    remote = RemotePolicy(RemoteConfig(address="gpu:1", token_env="NO_SUCH_VARIABLE"), robot=ROBOT)
    with pytest.raises(UsageError, match=r"no token\. .*policy.token_file, or set \$NO_SUCH_VARIABLE"):
        _ = remote.spec


def test_client_with_a_wrong_token_is_refused():
    log = []
    with (
        serving(ScriptedPolicy(), log=log) as address,
        client(address, token=b"another one, long enough") as remote,
    ):
        with pytest.raises(PolicyError, match=r"wrong token\. Copy the token file") as caught:
            _ = remote.spec
        assert "\n" not in str(caught.value)
    assert any("closed: wrong token" in line for line in log)


def test_server_without_the_token_is_refused():
    """A man in the middle that accepts every robot."""

    def impostor(connection, sock):
        deadline_s = time.monotonic() + 5
        connection.send(Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64}), deadline_s=deadline_s)
        proof = connection.receive(deadline_s=deadline_s).fields["proof"]  # the robot's own proof, sent back
        connection.send(Message(kind="welcome", fields={"proof": proof, "spec": {}}), deadline_s=deadline_s)

    with (
        fake_server(impostor) as address,
        client(address) as remote,
        pytest.raises(PolicyError, match="another server"),
    ):
        _ = remote.spec


def test_token_is_never_sent():
    received = bytearray()

    def listen(connection, sock):
        deadline_s = time.monotonic() + 5
        connection.send(Message(kind="hello", fields={"protocol": 1, "nonce": "0" * 64}), deadline_s=deadline_s)
        connection.wait_for_data()
        received.extend(sock.recv(1 << 16))

    with fake_server(listen) as address, client(address) as remote, pytest.raises(PolicyError):
        _ = remote.spec
    assert b"proof" in received and TOKEN not in received


# ---- a server that is gone, slow or sends invalid data


def test_missing_server_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with client(address) as remote, pytest.raises(PolicyError, match=r"cannot connect .*`dovetail serve RUN`"):
        _ = remote.spec


def test_other_protocol_is_refused():
    def newer(connection, sock):
        connection.send(
            Message(kind="hello", fields={"protocol": 2, "nonce": "0" * 64}), deadline_s=time.monotonic() + 5
        )

    because = r"protocol 1, the other 2\. Install the same Dovetail version on both"
    with fake_server(newer) as address, client(address) as remote, pytest.raises(PolicyError, match=because):
        _ = remote.spec


@pytest.mark.parametrize(
    ("behave", "because"),
    [
        (lambda connection, sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not a Dovetail message"),
        (lambda connection, sock: connection.wait_for_data(), "no complete message in time"),
        (lambda connection, sock: None, "connection (closed|lost)"),
    ],
    ids=["other protocol", "silent", "closed"],
)
def test_other_server_is_refused(behave, because):
    with (
        fake_server(behave) as address,
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
            r"float32\[1, 2, 2\], expected float32\[1, 3, 2\]",
        ),
        ({"arrays": {"actions": np.zeros((1, 3, 2))}}, "actions float64"),
        ({"arrays": {"extra/value": np.zeros(2)}}, r"extra 'value' \[2\] for 1 rows"),
        ({"arrays": {"actions": np.zeros((500, 3, 2), np.float32)}}, "larger than allowed"),
        ({"fields": {"number": 17}}, "response does not fit the request"),
        ({"fields": {"policy_version": "new"}}, "response does not fit the request"),
        ({"fields": {"server_s": -1.0}}, "response does not fit the request"),
    ],
)
def test_invalid_response_is_refused_and_the_next_call_connects_again(changes, because):
    with fake_server(answering(**changes), answering()) as address, client(address) as remote:
        seen = inputs(remote.spec)
        with pytest.raises(PolicyError, match=because) as caught:
            remote.act(seen, DETERMINISTIC)
        assert str(caught.value).startswith(f"policy server {address}: ") and "\n" not in str(caught.value)
        assert remote.act(seen, DETERMINISTIC).policy_version == 7


def test_incomplete_response_times_out():
    stop = threading.Event()

    def stall(connection, sock):
        welcome(connection)
        connection.wait_for_data()
        sock.sendall(b"DVTL")
        stop.wait(10)

    with fake_server(stall, answering()) as address, client(address, timeout_s=0.3) as remote:
        seen = inputs(remote.spec)
        with pytest.raises(PolicyError, match=r"no complete message in time\. .*raise policy.timeout_s"):
            remote.act(seen, DETERMINISTIC)
        stop.set()
        assert remote.act(seen, DETERMINISTIC).policy_version == 7


def test_failed_request_is_not_repeated():
    numbers = []

    def listen(connection, sock):
        welcome(connection)
        connection.wait_for_data()
        numbers.append(connection.receive(deadline_s=time.monotonic() + 5).fields["number"])

    with fake_server(listen, listen) as address, client(address) as remote:
        seen = inputs(remote.spec)
        for expected in ([1], [1, 2]):
            with pytest.raises(PolicyError, match=r"connection (closed|lost)"):
                remote.act(seen, DETERMINISTIC)
            assert numbers == expected


def test_server_restart_between_requests_causes_no_error():
    with serving(ScriptedPolicy()) as address, client(address) as remote:
        seen = inputs(remote.spec)
        remote.act(seen, DETERMINISTIC)
        port = int(address.rpartition(":")[2])
    with serving(ScriptedPolicy(), port=port):
        assert remote.act(seen, DETERMINISTIC).policy_version == 7
        remote.close()


def test_restarted_server_with_another_policy_is_refused():
    with serving(ScriptedPolicy()) as address, client(address) as remote:
        assert remote.spec.horizon == 3
        port = int(address.rpartition(":")[2])
    other = ScriptedPolicy()
    other.spec = dataclasses.replace(other.spec, horizon=4)
    with (
        serving(other, port=port),
        pytest.raises(PolicyError, match="another policy than this process or than before"),
    ):
        remote.reset()


@pytest.mark.parametrize(
    ("seen", "because"),
    [
        ({}, "needs observation 'force', which is missing"),
        ({"force": np.zeros((1, 3), np.float32)}, r"should be float32\[B, 2\], got float32\[1, 3\]"),
        ({"force": np.zeros((1, 2))}, "got float64"),
    ],
)
def test_invalid_observations_are_not_sent(seen, because):
    policy = ScriptedPolicy()
    with serving(policy) as address, client(address) as remote, pytest.raises(UsageError, match=because):
        remote.act(seen, DETERMINISTIC)
    assert policy.calls == []
